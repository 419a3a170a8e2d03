"""Every command on images, and image files that are not what they should be."""

import csv
import io
import json
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from PIL import Image

from calmix.data import read_examples, read_table
from calmix.data.idx import read_idx

TRAINING = ("--optimizer", "sgd", "--lr", "0.05", "--epochs", "2", "--batch-size", "12", "--folds", "0")


@pytest.fixture
def folder(place: Path) -> Path:
    return tiny.image_folder(place / "images", 36)


@pytest.fixture
def trained(calmix: Any, folder: Path, place: Path, image_checkpoint: Any) -> Path:
    ended = calmix(
        "train", folder, "--model", image_checkpoint("convnet"), *TRAINING, "--dev-fraction", 0.1, "--out", "run"
    )
    assert ended.code == 0, ended.err
    return place / "run"


def _bomb(path: Path) -> None:
    """Write a PNG file of a few bytes that says it has 20,000 × 20,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))))


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:80])


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (_truncated, "the image is cut short or damaged"),
    "empty": (lambda path: path.write_bytes(b""), "the image is empty (zero bytes)"),
    "text": (lambda path: path.write_text("id,text\n1,hello\n"), "this is no PNG, JPEG, BMP, WebP or GIF image"),
    "bomb": (_bomb, "more than 80 million pixels: too large"),
}

ODD: dict[str, Callable[[Path], Any]] = {
    "CMYK": lambda path: Image.new("CMYK", (8, 8), (10, 20, 30, 40)).save(path, "JPEG"),
    "palette": lambda path: Image.new("P", (8, 8), 3).save(path, "PNG"),
    "16-bit": lambda path: Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(path, "PNG"),
    "alpha": lambda path: Image.new("RGBA", (8, 8), (10, 20, 30, 128)).save(path, "PNG"),
    "one pixel": lambda path: Image.new("RGB", (1, 1), (10, 20, 30)).save(path, "PNG"),
    "wide": lambda path: Image.new("RGB", (300, 2), (10, 20, 30)).save(path, "PNG"),
    "one bit": lambda path: Image.new("1", (8, 8), 1).save(path, "PNG"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_file_that_cannot_be_used_is_named_in_one_line_and_nothing_is_written(
    calmix: Any, folder: Path, place: Path, image_checkpoint: Any, kind: str
) -> None:
    spoil, message = BAD[kind]
    bad = folder / "food" / "001.png"
    spoil(bad)
    ended = calmix("train", folder, "--model", image_checkpoint("convnet"), *TRAINING, "--out", "run")
    assert (ended.code, ended.out) == (2, "")
    last = ended.err.strip().splitlines()[-1]
    assert str(bad) in last
    assert message in last
    assert "Traceback" not in ended.err
    assert not (place / "run").exists()


@pytest.mark.parametrize("kind", ODD)
def test_a_file_that_is_merely_odd_is_trained_on(
    calmix: Any, folder: Path, place: Path, image_checkpoint: Any, kind: str
) -> None:
    ODD[kind](folder / "food" / "001.png")
    ended = calmix("train", folder, "--model", image_checkpoint("convnet"), *TRAINING, "--out", "run", "--no-report")
    assert ended.code == 0, ended.err
    assert (place / "run" / "metrics.json").is_file()


@pytest.mark.parametrize("command", ["predict", "evaluate", "calibrate"])
def test_a_bad_file_stops_every_command_that_reads_images(
    calmix: Any, folder: Path, trained: Path, place: Path, command: str
) -> None:
    others = tiny.image_folder(place / "others", 36, seed=1)
    _truncated(others / "animal" / "000.png")
    out = {"predict": "out.csv"}.get(command, "out")
    ended = calmix(command, trained, others, "--out", out)
    assert ended.code == 2
    assert "000.png: the image is cut short or damaged" in ended.err
    assert not (place / out).exists()


def test_a_model_of_texts_does_not_read_images(calmix: Any, folder: Path, checkpoint: Any, place: Path) -> None:
    ended = calmix("train", folder, "--model", checkpoint("bert"), "--out", "run")
    assert ended.code == 2
    assert "no image classification model for architecture 'bert'); give resnet18" in ended.err
    assert not (place / "run").exists()


def test_a_run_has_a_page_with_the_names_of_the_images(trained: Path) -> None:
    page = (trained / "report.html").read_text(encoding="utf-8")
    assert "<html" in page
    names = read_table(trained / "datamap.parquet")["image_from"].to_pylist()
    assert all(name.endswith(".png") for name in names)


def test_images_are_predicted_measured_and_calibrated(calmix: Any, folder: Path, trained: Path, place: Path) -> None:
    assert calmix("predict", trained, folder, "--out", "predicted.csv").code == 0
    predicted = read_table(place / "predicted.csv")
    assert predicted.num_rows == 36
    assert {f"p_{name}" for name in tiny.LABELS} <= set(predicted.column_names)
    assert {Path(name) for name in predicted["image_from"].to_pylist()} == set(folder.rglob("*.png"))
    measured = calmix("evaluate", trained, folder, "--out", "judged", "--json")
    assert measured.code == 0, measured.err
    assert "accuracy" in measured.out
    ended = calmix("calibrate", trained, folder, "--out", "calibrated")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "the model was trained on 32 of these 36 rows" in ended.err
    others = tiny.image_folder(place / "others", 36, seed=1)
    assert calmix("calibrate", trained, others, "--out", "calibrated").code == 0
    assert calmix("predict", place / "calibrated", folder, "--out", "again.csv").code == 0
    again = read_table(place / "again.csv")
    assert again["predicted"].to_pylist() == predicted["predicted"].to_pylist()
    assert calmix("report", trained).code == 0


def test_images_are_predicted_one_by_one(calmix: Any, folder: Path, trained: Path, place: Path) -> None:
    assert calmix("predict", trained, folder, "--out", "all.jsonl").code == 0
    expected = {row["image_from"]: row["predicted"] for row in read_table(place / "all.jsonl").to_pylist()}
    names = [folder / "weather" / "002.png", folder / "animal" / "000.png"]
    for chosen in (names, names[:1]):
        ended = calmix("predict", trained, *chosen)
        assert (ended.code, ended.err) == (0, "")
        rows = list(csv.DictReader(io.StringIO(ended.out)))
        assert [(row["image_from"], row["predicted"]) for row in rows] == [(str(n), expected[str(n)]) for n in chosen]


@pytest.mark.parametrize("command", ["evaluate", "calibrate", "ood", "export"])
def test_texts_are_refused_as_such_by_a_model_of_images(
    calmix: Any, image_checkpoint: Any, place: Path, command: str
) -> None:
    (place / "texts.csv").write_text("text,label\ngood,yes\nbad,no\n")
    data = {"ood": ["--test", "texts.csv", "--ood", "gaussian-noise"], "export": ["--check", "texts.csv"]}
    words = data.get(command, ["texts.csv"])
    ended = calmix(command, image_checkpoint("convnet"), *words, "--out", "new")
    assert (ended.code, ended.out, ended.err) == (
        2, "", "calmix: texts.csv: holds text data, but this model reads images\n"
    )  # fmt: skip
    assert not (place / "new").exists()


def test_images_are_refused_as_such_by_a_model_of_texts(calmix: Any, checkpoint: Any, folder: Path) -> None:
    (folder / "food").rename(folder / "bread")
    ended = calmix("evaluate", checkpoint("bert"), folder)
    assert (ended.code, ended.err) == (
        2, f"calmix: {folder}: holds image data, but this model reads plain texts or pairs\n"
    )  # fmt: skip


def test_a_folder_without_a_dev_split_says_what_to_calibrate_on(
    calmix: Any, folder: Path, place: Path, image_checkpoint: Any
) -> None:
    for split in ("train", "test"):
        shutil.copytree(folder, place / "split" / split)
    model = image_checkpoint("convnet")
    ended = calmix("calibrate", model, "split", "--out", "new")
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert "there is no folder 'dev' in it (there are: 'test', 'train')" in ended.err
    assert ended.err.endswith("name the one to read, as in split/test\n")
    assert calmix("calibrate", model, "split/test", "--out", "new").code == 0


def test_a_model_of_images_asks_for_images_to_check_its_export_on(
    calmix: Any, image_checkpoint: Any, place: Path
) -> None:
    ended = calmix("export", image_checkpoint("convnet"), "--out", "new")
    assert (ended.code, ended.err) == (
        2, "calmix: give images to check a model of images on: --check FOLDER\n"
    )  # fmt: skip
    assert not (place / "new").exists()


def test_image_files_have_no_columns_to_copy(calmix: Any, folder: Path, trained: Path) -> None:
    for words in (("000.png", "--with-columns"), ("000.png", "003.png", "--with-columns")):
        ended = calmix("predict", trained, *(folder / "animal" / w if w.endswith("png") else w for w in words))
        assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
        assert "is no table, so --with-columns has nothing to write" in ended.err


@pytest.mark.filterwarnings("default")
def test_files_that_are_left_out_are_a_note_like_others(calmix: Any, folder: Path, image_checkpoint: Any) -> None:
    (folder / "food" / "notes.txt").write_text("mine")
    ended = calmix("train", folder, "--model", image_checkpoint("convnet"), *TRAINING, "--out", "run", "--dry-run")
    assert ended.code == 0, ended.err
    assert ended.err.splitlines()[0] == (
        f"· {folder}: 1 files or folders are left out, hidden or not images by their names: 'food/notes.txt'"
    )


def test_noise_is_told_from_images(calmix: Any, folder: Path, trained: Path) -> None:
    ended = calmix("evaluate", trained, folder, "--ood", "gaussian-noise", "--out", "judged", "--json")
    assert ended.code == 0, ended.err
    assert "auroc" in ended.out


def test_a_network_of_images_is_exported(calmix: Any, folder: Path, trained: Path, place: Path) -> None:
    pytest.importorskip("onnxruntime")
    split = place / "split" / "test"
    shutil.copytree(folder, split)
    shutil.copytree(next(folder.iterdir()), place / "split" / "train" / next(folder.iterdir()).name)
    ended = calmix("export", trained, "--check", split.parent, "--out", "exported")
    assert ended.code == 0, ended.err
    assert "on 36 images its probabilities" in ended.out
    assert {path.name for path in (place / "exported").iterdir()} >= {"model.onnx", "preprocessor_config.json"}


def test_images_are_mapped_and_suspects_left_out(calmix: Any, folder: Path, place: Path, image_checkpoint: Any) -> None:
    options = ("--model", image_checkpoint("convnet"), "--epochs", "2", "--lr", "1e-2", "--batch-size", "12")
    ended = calmix("map", folder, *options, "--out", "map", "--clean", "clean.parquet", "--json")
    assert ended.code == 0, ended.err
    issues = json.loads(ended.out)["label_issues"]
    kept = read_examples(place / "clean.parquet")
    assert (kept.kind, len(kept)) == ("image", 36 - issues)
    assert {path.name for path in (place / "map").iterdir()} >= {"datamap.parquet", "report.html", "metrics.json"}


def test_a_subset_of_images_is_a_table_to_train_on(
    calmix: Any, folder: Path, place: Path, image_checkpoint: Any
) -> None:
    model = ("--model", image_checkpoint("convnet"))
    assert calmix("map", folder, *model, "--epochs", 1, "--out", "known", "--no-report").code == 0
    words = ("subset", folder, "--dynamics", "known", "--take", "easy", "--out")
    ended = calmix(*words, "part.csv")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "only a Parquet file holds images" in ended.err
    for unfit in (("map", folder, *model, "--out", "map", "--clean", "kept.csv"), (*words, "part.jsonl")):
        assert calmix(*unfit).code == 2
    assert not (place / "map").exists()
    ended = calmix(*words, "part.parquet")
    assert ended.code == 0, ended.err
    part = read_examples("part.parquet")
    assert 10 <= len(part) <= 12
    assert set(part.label_names) <= set(read_examples(folder).label_names)


def test_idx_files_are_trained_on_in_grey(calmix: Any, place: Path) -> None:
    for split, count in (("train", 24), ("t10k", 12)):
        pixels, labels = tiny.pixels(count, grey=True)
        codes = np.array([tiny.LABELS.index(label) for label in labels], np.uint8)
        for kind, array in (("images-idx3", np.stack(pixels)), ("labels-idx1", codes)):
            head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            (place / f"{split}-{kind}-ubyte").write_bytes(head + array.tobytes())
    test = place / "t10k-images-idx3-ubyte"
    ended = calmix(
        "train", place / "train-images-idx3-ubyte", "--test", test, "--model", "resnet18", "--epochs", "1",
        "--out", "run", "--augment", "crop", "--no-report",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert len(read_table(place / "run" / "predictions-test.parquet")) == len(read_idx(test)) == 12
