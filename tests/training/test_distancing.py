"""What is far from the training data, and a run that is less sure there."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from accelerate import Accelerator

import calmix
from calmix.data import read_table
from calmix.models import Classifier, encode, load_trained, predict_logits
from calmix.training import train
from calmix.training.distancing import (
    _whitening,
    _with_distances,
    fitted_slope,
    knows_something,
    what_is_said,
)


def said_by(
    folder: Path, rows: int = 300, held: int = 120, kind: str = "text", slope: float = 0.2, *, right: bool = True
) -> tuple[Any, ...]:
    """Return a model, its packs, and what it says about dev, where it is always right or hardly ever, and test."""
    model, tokenizer = load_trained(folder)
    sets = {"train": tiny.examples(rows, kind=kind), "dev": tiny.examples(held, kind=kind, seed=1)}
    sets["test"] = tiny.examples(30, kind=kind, seed=2)
    packed = {name: encode(examples, tokenizer, max_length=tiny.POSITIONS) for name, examples in sets.items()}
    if right:
        winners = predict_logits(model, packed["dev"]).argmax(1)
        sets["dev"] = replace(sets["dev"], labels=winners)
    return model, packed, what_is_said(model, packed, sets, Accelerator(cpu=True), slope=slope, seed=0)


def test_whitened_rows_have_the_same_spread_in_every_direction() -> None:
    draw = torch.Generator().manual_seed(0)
    shape = torch.tensor([[3.0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 2, 1], [0, 0, 0, 1]])
    rows = torch.randn(20_000, 4, generator=draw) @ shape
    white = (rows - rows.mean(0)) @ _whitening(rows - rows.mean(0))
    torch.testing.assert_close(white.T @ white / len(white), torch.eye(4), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("kind", ["text", "choices"])
def test_what_is_said_is_what_the_correction_makes_of_it_and_dev_is_as_far_as_usual(checkpoint: Any, kind: str) -> None:
    model, packed, said = said_by(checkpoint("bert", choices=kind == "choices"), kind=kind)
    cooling = said.cooling
    assert len(cooling.centres) == (1 if kind == "choices" else 3)
    for name in ("dev", "test"):
        np.testing.assert_allclose(said.raw[name], predict_logits(model, packed[name]), atol=1e-5)
        np.testing.assert_allclose(said.cooled[name], predict_logits(model, packed[name], cooling=cooling), atol=1e-4)
    _, far = _with_distances(model, packed["dev"], cooling, Accelerator(cpu=True))
    assert far.mean() == pytest.approx(0, abs=1e-3)
    assert far.std() == pytest.approx(1, abs=1e-2)


def test_other_data_are_farther(checkpoint: Any) -> None:
    model, packed, said = said_by(checkpoint("bert"))
    ids = torch.full_like(packed["dev"].ids, int(packed["dev"].ids[1]))
    _, far = _with_distances(model, replace(packed["dev"], ids=ids), said.cooling, Accelerator(cpu=True))
    assert far.mean() > 1


@pytest.mark.parametrize(("rows", "held", "slope"), [(20, 120, 0.2), (300, 30, 0.2), (300, 120, 0.0)])
def test_too_little_data_or_no_wish_is_no_correction(checkpoint: Any, rows: int, held: int, slope: float) -> None:
    _, _, said = said_by(checkpoint("bert"), rows, held, slope=slope)
    assert said.cooling is None
    assert said.cooled is said.raw
    assert bool(said.notes) == (slope > 0)


@pytest.mark.parametrize("kind", ["text", "choices"])
def test_a_model_that_only_guesses_has_the_temperature_alone_and_says_so(checkpoint: Any, kind: str) -> None:
    model, packed, said = said_by(checkpoint("bert", choices=kind == "choices"), kind=kind, right=False)
    assert said.cooling is None
    assert said.cooled is said.raw
    assert ["guessing" in note for note in said.notes] == [True]
    np.testing.assert_allclose(said.raw["test"], predict_logits(model, packed["test"]), atol=1e-5)


def test_knowing_is_judged_by_what_the_rows_can_tell() -> None:
    rng = np.random.default_rng(0)
    labels = (rng.random(4000) < 0.3).astype(np.int64)
    # Log-odds that lean to the truth by 0.2 on average, and spread as such log-odds must.
    weak = rng.normal(np.where(labels == 1, 0.2, -0.2), 0.4**0.5) + np.log(0.3 / 0.7)
    logits = np.stack([np.zeros(4000), weak], 1).astype(np.float32)
    assert knows_something(logits, labels)
    assert not knows_something(logits[:50], labels[:50])
    # The more frequent class for all is right in seven of ten, and knows nothing.
    assert not knows_something(np.tile(np.float32([[1, 0]]), (4000, 1)), labels)


def test_of_choices_all_are_as_likely_and_those_that_are_not_there_do_not_count() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 400)
    logits = np.full((400, 3), -np.inf, np.float32)
    logits[:, :2] = rng.normal(size=(400, 2))
    assert not knows_something(logits, labels, choices=True)
    logits[np.arange(400), labels] += 1
    assert knows_something(logits, labels, choices=True)


def test_dev_data_move_the_slope_but_not_far() -> None:
    rng = np.random.default_rng(0)
    far, labels = rng.normal(size=4000), rng.integers(0, 2, 4000)
    # Right less often the farther away, by as much as each true slope says; equally sure everywhere.
    found = []
    for true in (0.0, 0.2, 0.6):
        right = rng.random(4000) < 1 / (1 + np.exp(-2 / np.exp(true * np.clip(far, -3, 4))))
        said = np.where(right, labels, 1 - labels)
        logits = np.where(np.arange(2) == said[:, None], 2.0, 0.0).astype(np.float32)
        found.append(fitted_slope(logits, far, labels, expected=0.2))
    assert found[0] < found[1] < found[2]
    assert found[1] == pytest.approx(0.2, abs=0.06)
    assert found[0] >= 0
    assert found[2] < 0.5
    few = [fitted_slope(logits[:20], far[:20], labels[:20], expected=e) for e in (0.1, 0.3)]
    assert few == pytest.approx([0.1, 0.3], abs=0.05)


def run(model: Path, out: Path, *, rows: int = 200, held: int = 110, recipe: str = "auto") -> Any:
    sets = {"dev": tiny.examples(held, seed=1), "test": tiny.examples(12, seed=2)}
    return train(tiny.examples(rows), model=model, recipe=recipe, out=out, epochs=4, lr=5e-3, **sets)


def test_the_default_predicts_what_plain_training_does_and_is_sure_otherwise(checkpoint: Any, tmp_path: Path) -> None:
    made = [run(checkpoint("bert"), tmp_path / recipe, recipe=recipe) for recipe in ("auto", "erm")]
    auto, plain = (read_table(each.folder / "predictions-test.parquet") for each in made)
    assert made[0].metrics["cooling"]["slope"] > 0
    assert auto["predicted"].to_pylist() == plain["predicted"].to_pylist()
    for split in ("dev", "test"):
        one, other = (each.metrics["splits"][split]["after"]["accuracy"] for each in made)
        assert one == other
    assert auto["confidence"].to_pylist() != plain["confidence"].to_pylist()


def test_a_run_says_that_it_is_less_sure_far_away_and_its_model_is(checkpoint: Any, tmp_path: Path) -> None:
    made = run(checkpoint("bert"), tmp_path / "run")
    assert 0 <= made.metrics["cooling"]["slope"] < 0.5
    assert any("only calmix applies it" in note for note in made.metrics["notes"])
    assert "Weights cannot hold that" in (made.model / "README.md").read_text(encoding="utf-8")
    classifier = calmix.load(made.folder)
    assert isinstance(classifier, Classifier)
    assert classifier.beside.cooling is not None
    table = read_table(made.folder / "predictions-test.parquet")
    found = classifier.probabilities(tiny.examples(12, seed=2))
    np.testing.assert_allclose(found.max(1), table["confidence"].to_numpy(), atol=1e-4)


def test_a_run_with_too_little_data_falls_back_to_the_temperature_and_says_so(checkpoint: Any, tmp_path: Path) -> None:
    made = run(checkpoint("bert"), tmp_path / "run", held=20)
    assert "cooling" not in made.metrics
    assert any("temperature alone" in note for note in made.metrics["notes"])
    assert not (made.model / "calmix.safetensors").exists()


def test_what_was_said_already_is_not_asked_again(checkpoint: Any) -> None:
    model, packed, said = said_by(checkpoint("bert"), 20, 30)
    sets = {"train": tiny.examples(20), "dev": tiny.examples(30, seed=1), "test": tiny.examples(30, seed=2)}
    before = {"dev": said.raw["dev"] + 1}
    again = what_is_said(model, packed, sets, Accelerator(cpu=True), slope=0.2, seed=0, known=before)
    np.testing.assert_array_equal(again.raw["dev"], before["dev"])
    np.testing.assert_array_equal(again.raw["test"], said.raw["test"])
