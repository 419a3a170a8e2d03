"""What the pages about images, figures, unfamiliar data, ensembles and the sentence CNN say, done in small.

So are the studies of Thulasidasan et al.: every network, recipe and option of theirs, on a few rows.
"""

import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tiny
from pages import follow

import calmix
from calmix.data import Examples, read_examples, read_table, write_table
from calmix.data.gathering import gather
from calmix.data.tasks import builtin_tasks, parse_task
from calmix.training import train

STUDIES = Path(__file__).parents[1] / "studies"

pytest.importorskip("matplotlib")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: Any, image_checkpoint: Any) -> Path:
    """A folder to work in, where names of pretrained networks mean tiny ones."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CALMIX_DATA", raising=False)
    from calmix.training import pipeline

    tiny_ones = {"minilm": str(checkpoint("bert")), "microsoft/resnet-50": str(image_checkpoint("resnet"))}
    known = pipeline.resolve
    monkeypatch.setattr(pipeline, "resolve", lambda name: tiny_ones.get(str(name)) or known(name))
    return tmp_path


@pytest.fixture
def small_vgg16(place: Path, monkeypatch: pytest.MonkeyPatch, image_checkpoint: Any) -> None:
    """A tiny network is called vgg16."""
    from calmix.training import pipeline

    known = pipeline.resolve
    monkeypatch.setattr(
        pipeline, "resolve", lambda name: str(image_checkpoint("convnet")) if name == "vgg16" else known(name)
    )


def _table(path: Path, rows: int = 30, seed: int = 0) -> None:
    write_table(_labelled(tiny.examples(rows, seed=seed)), path)


def _labelled(examples: Examples) -> pa.Table:
    labels = [examples.label_names[k] for k in examples.labels]
    return examples.table.append_column("label", pa.array(labels))


def _run(out: str, checkpoint: Any, **options: Any) -> None:
    asked: dict[str, Any] = {"dev": tiny.examples(24, seed=1), "lr": 1e-2, "epochs": 2, "batch_size": 16}
    train(tiny.examples(30), model=str(checkpoint("bert")), out=Path(out), **asked | options)


def test_the_page_about_unfamiliar_data_is_so(place: Path, checkpoint: Any, small_vgg16: None) -> None:
    for seed, name in enumerate(("test.csv", "news.csv")):
        _table(place / name, seed=seed + 2)
    for seed, name in enumerate(("run", "run-a", "run-b")):
        _run(name, checkpoint, seed=seed)
    for split, rows in (("train", 60), ("test", 12)):
        tiny.image_folder(place / "cifar10" / split, rows)
    _idx(place / "fashion-mnist", "t10k", 12)
    follow("ood", smaller={"8000": "24", "--epochs 10": "--epochs 1", ".gz": ""})
    assert (place / "fig.pdf").is_file()
    # What is written for the images is what a study of so many rows trains on.
    task = parse_task("cifar10", {**builtin_tasks()["cifar10"], "rows": 24}, "here")
    sets = gather(task, place)
    for name, images in (("few", sets.train), ("dev", sets.dev)):
        assert read_examples(place / f"{name}.parquet").digest() == images.digest()
    found = read_table(place / "images-ood" / "ood.csv").to_pylist()
    assert {row["model"] for row in found} == {
        f"{name}{how}" for name in ("plain", "mixup") for how in ("", " +TS", " +dropout")
    }
    assert {int(row["runs"]) for row in found} == {3}
    assert {row["data"] for row in found} == {"clothes", "gaussian-noise"}


def test_the_page_about_ensembles_is_so(place: Path, checkpoint: Any) -> None:
    for seed, name in enumerate(("new.csv", "test.csv", "dev.csv")):
        _table(place / name, seed=seed + 2)
    for seed in (1, 2, 3):
        _run(f"run-{seed}", checkpoint, seed=seed)
    follow("ensembles")
    # The folder of the three is the three of them, with a temperature of its own.
    texts = tiny.texts(6)[0]
    mean = np.mean([calmix.load(f"run-{k}").predict_proba(texts) for k in (1, 2, 3)], axis=0)
    assert (calmix.load("trio").predict_proba(texts).argmax(1) == mean.argmax(1)).all()


def test_the_page_about_the_sentence_cnn_is_so(place: Path, checkpoint: Any) -> None:
    _table(place / "reviews.csv")
    (place / "glove.6B.300d.txt").write_text("cat 1 2 3\nrain 4 5 6\nbread 0 1 0\n")
    _run("big-run", checkpoint)
    follow("sentence-cnn")
    kinds = {calmix.load(name).model.config.model_type for name in ("run", "run-1", "small")}
    assert kinds == {"calmix-sentence-cnn"}


def _idx(folder: Path, split: str, rows: int) -> None:
    """Write grey images and their labels as IDX files."""
    pixels, labels = tiny.pixels(rows, grey=True)
    codes = np.array([tiny.LABELS.index(label) for label in labels], np.uint8)
    folder.mkdir(exist_ok=True, parents=True)
    for kind, array in (("images-idx3", np.stack(pixels)), ("labels-idx1", codes)):
        head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
        (folder / f"{split}-{kind}-ubyte").write_bytes(head + array.tobytes())


def _small(name: str, folder: Path, **changes: str) -> Path:
    """Copy a study that is shipped, with one seed, two members of ensembles, one epoch, and other changes."""
    text = (STUDIES / f"{name}.toml").read_text(encoding="utf-8")
    for old, new in {"seeds = 3": "seeds = 1", "members = 5": "members = 2", **changes}.items():
        assert old in text, f"{name} has no {old!r} any more"
        text = text.replace(old, new)
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return folder / f"{name}.toml"


def _texts(place: Path) -> None:
    """Write the data of P5's texts, and a few vectors, beside the study."""
    for task, names in (("mr", ("neg", "pos")), ("imdb", ("neg", "pos")), ("trec6", tiny.LABELS)):
        for seed, (split, rows) in enumerate((("train", 40), ("dev", 20), ("test", 20))):
            texts, labels = tiny.texts(rows, seed=seed)
            known = [names[tiny.LABELS.index(label) % len(names)] for label in labels]
            write_table(pa.table({"text": texts, "label": known}), place / task / f"{split}.jsonl")
    (place / "glove.6B.100d.subset.txt").write_text("cat 1 2 3\nrain 4 5 6\nbread 0 1 0\n")


EPOCHS_OF_TEXTS = {f"epochs = {n}": "epochs = 1" for n in (10, 15, 6)} | {".txt.xz": ".txt"}


def test_the_page_about_figures_is_so(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, split in enumerate(("train", "dev", "test")):
        _table(place / f"{split}.csv", seed=seed)
    monkeypatch.setattr("calmix.data.corpus.corpus_path", lambda split: place / f"{split}.csv")
    _small("p5-text", place / "studies", **EPOCHS_OF_TEXTS)
    _texts(place / "studies")
    follow("figures", smaller={"--epochs 100": "--epochs 3", "--epochs 20": "--epochs 5", "--epoch 20": "--epoch 4"})
    drawn = {path.name for path in place.glob("fig*")}
    assert drawn == {f"fig{name}.pdf" for name in ("1", "2a", "2h", "5", "6", "7")} | {"fig1.csv", "fig2h.csv"}
    rows = read_table(place / "fig2h.csv").to_pylist()
    assert {float(row["alpha"]) for row in rows} == {0.0, 0.1, 0.2, 0.4, 1.0}
    assert {row["figure"] for row in rows} == {"accuracy", "ece", "oe"}


@pytest.mark.slow
def test_the_page_about_images_is_so(place: Path) -> None:
    tiny.image_folder(place / "images", 36)
    new = tiny.image_folder(place / "new-images", 6, seed=1)
    for path, name in zip(sorted(new.rglob("*.png")), ("one.png", "other.jpg"), strict=False):
        shutil.copy(path, place / name)
    faster = {"epochs = 10": "epochs = 1", "rows = 8000": "rows = 24"}
    for name in ("p5-fashion-mnist", "p5-cifar10"):
        _small(name, place / "studies", **faster)
    for split, rows in (("train", 40), ("t10k", 12)):
        _idx(place / "data" / "fashion-mnist", split, rows)
    for split, rows in (("train", 40), ("test", 12)):
        tiny.image_folder(place / "data" / "cifar10" / split, rows)
    follow("images")
    for name, models in (("p5-fashion-mnist", {"resnet18"}), ("p5-cifar10", {"vgg16", "resnet34"})):
        rows = read_table(place / "results" / name / "study.parquet").to_pylist()
        assert {row["model"] for row in rows} == models
        methods = {row["method"] for row in rows}
        assert methods > {"erm", "label-smoothing", "erl", "features only", "5 × erm"}
        assert methods > {f"mixup alpha={alpha}" for alpha in (0.1, 0.2, 0.4, 1.0)}
