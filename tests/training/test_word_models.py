"""The sentence CNN through the whole pipeline: every recipe, resumed, distilled to, predicted with, exported."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from runs import Killed, assert_same_weights, dying_at

import calmix
from calmix.models import encode
from calmix.models.wordlevel import fresh_sentence_cnn
from calmix.recipes import RECIPES
from calmix.training import distil, survey
from calmix.training.lowering import Lowered
from calmix.training.together import train_together


@pytest.fixture
def vectors(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    lines = [f"{word} {' '.join(f'{x:.3f}' for x in rng.normal(size=8))}" for word in tiny.WORDS]
    (tmp_path / "vectors.txt").write_text("\n".join(lines))
    return f"sentence-cnn:{tmp_path / 'vectors.txt'}"


def test_it_learns_is_saved_and_predicts_the_same(quick: Any, vectors: str) -> None:
    run = quick(train=tiny.examples(300), test=tiny.examples(60, seed=7), model=vectors, epochs=8, lr=3e-3)
    assert run.metrics["splits"]["test"]["after"]["accuracy"] > 0.9
    assert "begin with a pretrained vector" in " ".join(run.metrics["notes"])
    assert (run.folder / "datamap.parquet").is_file()
    classifier = calmix.load(run.folder)
    config = json.loads((run.model / "config.json").read_text())
    assert (config["widths"], config["maps"], config["dropout"]) == ([3, 4, 5], 100, 0.5)
    found = classifier.probabilities(tiny.examples(60, seed=7))
    assert (found.argmax(1) == tiny.examples(60, seed=7).labels).mean() > 0.9
    assert (calmix.load(run.folder, mc_dropout=3).probabilities(tiny.examples(5)) != found[:5]).any()


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name not in ("distil", "back-translation")])
def test_every_recipe_trains_it(quick: Any, recipe: str) -> None:
    if recipe == "tdmixup":
        run = quick(model="sentence-cnn", recipe=recipe, online=True)
    else:
        run = quick(model="sentence-cnn", recipe=recipe)
    assert np.isfinite(run.metrics["splits"]["dev"]["before"]["nll"])


@pytest.mark.usefixtures("often")
def test_killed_it_goes_on_to_the_same_weights(quick: Any, vectors: str) -> None:
    settings = {"model": vectors, "recipe": "input-mixup", "checkpoint_minutes": 0.0}
    whole = quick("whole", **settings)
    with pytest.raises(Killed):
        quick("killed", **settings, on_progress=dying_at(4))
    assert_same_weights(quick("killed", **settings).folder, whole.folder)


def test_an_encoder_teaches_it_and_it_is_mapped_with(quick: Any, tmp_path: Path) -> None:
    teacher = quick("teacher")
    student = distil(
        teacher.folder,
        tiny.examples(24),
        dev=tiny.examples(12, seed=1),
        student="sentence-cnn",
        out=tmp_path / "student",
    )
    assert calmix.load(student.folder).label_names == tiny.LABELS
    found = survey(tiny.examples(30), out=tmp_path / "map", model="sentence-cnn", epochs=2, lr=1e-3)
    assert len(found.dynamics) == 30


def test_pairs_are_read_by_it(quick: Any) -> None:
    run = quick(train=tiny.examples(24, kind="pair"), dev=tiny.examples(12, kind="pair", seed=1), model="sentence-cnn")
    assert calmix.load(run.folder).predict([("the cat", "a dog")])[0] in tiny.LABELS


def test_several_seeds_are_computed_by_one_forward() -> None:
    models = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        models.append(fresh_sentence_cnn("sentence-cnn", tiny.examples(12), label_names=tiny.LABELS))
    packed = encode(tiny.examples(4), models[0][1], max_length=32)
    batch = packed.batch(torch.arange(4), width=12)
    assert Lowered([model for model, _ in models], dtype=torch.float32).agrees(batch)


@pytest.mark.parametrize("recipe", ["erm", "input-mixup"])
def test_several_seeds_are_trained_in_the_same_steps(recipe: str, vectors: str, tmp_path: Path) -> None:
    settings = {"train": tiny.examples(45), "dev": tiny.examples(12, seed=1), "model": vectors, "recipe": recipe}
    settings |= {"epochs": 2, "batch_size": 8, "lr": 1e-3}
    found = train_together([{**settings, "out": tmp_path / str(k), "seed": k} for k in range(2)], on_cpu=True)
    runs = [run for run in found if not isinstance(run, Exception)]
    assert [run.metrics["trained_beside"] for run in runs] == [1, 1]
    losses = [epoch["loss"] for run in runs for epoch in run.metrics["epochs"]]
    assert np.isfinite(losses).all()
    assert losses[0] != losses[2]


def test_it_is_exported(quick: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from calmix.models import load_one
    from calmix.training import export_onnx

    run = quick(model="sentence-cnn")
    figures = export_onnx(load_one(run.folder), tiny.examples(9), out=tmp_path / "graph")
    assert figures["onnx"]["largest_difference"] < 1e-3
