"""What is far from the training data, and a run that is less sure there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

import calmix
from calmix.data import Examples, read_table
from calmix.models import Classifier, encode, load_trained, predict_logits
from calmix.training import train
from calmix.training.distancing import _whitening, cooling_for


def packed_of(folder: Path, examples: Examples) -> tuple[Any, Any]:
    model, tokenizer = load_trained(folder)
    return model, encode(examples, tokenizer, max_length=tiny.POSITIONS)


def test_whitened_rows_have_the_same_spread_in_every_direction() -> None:
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(20_000, 4, generator=draw) @ torch.tensor(
        [[3.0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 2, 1], [0, 0, 0, 1]]
    )
    white = (rows - rows.mean(0)) @ _whitening(rows - rows.mean(0))
    torch.testing.assert_close(white.T @ white / len(white), torch.eye(4), rtol=0.05, atol=0.05)


def test_few_rows_are_taken_for_a_ball_rather_than_for_a_line() -> None:
    rows = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    found = _whitening(rows - rows.mean(0))
    assert found.isfinite().all()
    scales = torch.linalg.svdvals(found)
    assert scales.max() / scales.min() < 10


def test_held_out_data_are_as_far_as_usual_and_other_data_are_farther(checkpoint: Any) -> None:
    model, known = packed_of(checkpoint("bert"), tiny.examples(300))
    _, held = packed_of(checkpoint("bert"), tiny.examples(120, seed=1))
    cooling = cooling_for(model, known, held, slope=0.5, seed=0)
    assert cooling is not None
    assert cooling.layer == 1
    ratio = np.log(predict_logits(model, held) / predict_logits(model, held, cooling=cooling))[:, 0] / 0.5
    assert 0.1 < ratio.mean() < 0.8  # of a deviation, those nearer than usual being 0
    odd = tiny.examples(40, seed=2)
    table = odd.table.set_column(odd.table.column_names.index("text"), "text", [["zzz"] * 40])
    _, far = packed_of(checkpoint("bert"), Examples(table, odd.labels, odd.label_names))
    beyond = np.log(predict_logits(model, far) / predict_logits(model, far, cooling=cooling))[:, 0] / 0.5
    assert beyond.mean() > ratio.mean() + 1


@pytest.mark.parametrize(("train_rows", "dev_rows", "slope"), [(20, 120, 0.5), (300, 30, 0.5), (300, 120, 0.0)])
def test_too_little_data_or_no_wish_is_no_correction(
    checkpoint: Any, train_rows: int, dev_rows: int, slope: float
) -> None:
    model, known = packed_of(checkpoint("bert"), tiny.examples(train_rows))
    _, held = packed_of(checkpoint("bert"), tiny.examples(dev_rows, seed=1))
    assert cooling_for(model, known, held, slope=slope, seed=0) is None


def run(model: Path, out: Path, *, rows: int = 200, held: int = 110) -> Any:
    sets = {"dev": tiny.examples(held, seed=1), "test": tiny.examples(12, seed=2)}
    options = {"average": 0.0, "cooling": 0.3}
    return train(tiny.examples(rows), model=model, recipe="auto", options=options, out=out, epochs=1, lr=1e-3, **sets)


def test_a_run_says_that_it_is_less_sure_far_away_and_its_model_is(checkpoint: Any, tmp_path: Path) -> None:
    made = run(checkpoint("bert"), tmp_path / "run")
    assert made.metrics["cooling"]["slope"] == 0.3
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
