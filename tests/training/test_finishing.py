"""The end of a run: figures last, and whatever they are, JSON can hold them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from calmix.calibration import Temperature
from calmix.data import read_table
from calmix.models import folded_temperature, load, load_trained
from calmix.training.finishing import finish

CONFIG: dict[str, Any] = {
    "model": "bert",
    "recipe": "erm",
    "options": {},
    "seed": 0,
    "bins": 15,
    "guarantee": None,
}
FACTS: dict[str, Any] = {
    "best_epoch": 1,
    "epochs": [{"epoch": 1}],
    "rows": {"train": 9, "dev": 6},
    "notes": [],
    "seconds": 1.0,
}


def finished(folder: Path, checkpoint: Any, logits: Any, *, lean: bool = False, **config: Any) -> dict[str, Any]:
    model, tokenizer = load_trained(checkpoint("bert"))
    judged = {"dev": tiny.examples(6), "test": tiny.examples(6, seed=1)}
    if config.get("guarantee"):
        judged["guard"] = tiny.examples(6, seed=2)
    found = {name: np.asarray(logits, dtype=np.float32) for name in judged}
    return finish(folder, model, tokenizer, judged, found, CONFIG | config, FACTS, lean=lean)


LOGITS = [[2, 0, 0], [0, 2, 0], [0, 0, 2], [2, 0, 0], [2, 0, 0], [0, 0, 2]]


def test_the_folder_holds_predictions_model_card_and_figures(tmp_path: Path, checkpoint: Any) -> None:
    (tmp_path / "checkpoints" / "step-1").mkdir(parents=True)
    metrics = finished(tmp_path, checkpoint, LOGITS)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "metrics.json",
        "model",
        "predictions-dev.parquet",
        "predictions-test.parquet",
    ]
    assert json.loads((tmp_path / "metrics.json").read_text()) == metrics
    assert folded_temperature(load(tmp_path / "model").model) == metrics["temperature"]
    assert (tmp_path / "model" / "README.md").is_file()


def test_every_set_has_its_figures_with_intervals_before_and_after(tmp_path: Path, checkpoint: Any) -> None:
    splits = finished(tmp_path, checkpoint, LOGITS)["splits"]
    assert list(splits) == ["dev", "test"]
    for stages in splits.values():
        assert list(stages) == ["before", "after"]
        for figures in stages.values():
            low, high = figures["intervals"]["accuracy"]
            assert low <= figures["accuracy"] <= high


def test_the_figures_are_written_last(tmp_path: Path, checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def noted(path: Path, _value: Any) -> None:
        order.append(path.name)
        assert sorted(p.name for p in tmp_path.iterdir() if p.suffix != ".parquet") == ["model"]

    monkeypatch.setattr("calmix.training.finishing.write_json", noted)
    finished(tmp_path, checkpoint, LOGITS)
    assert order == ["metrics.json"]


def test_a_certain_mistake_is_null_not_a_crash(tmp_path: Path, checkpoint: Any) -> None:
    certain = [[0, 4000, 0], *LOGITS[1:]]
    metrics = finished(tmp_path, checkpoint, certain)
    assert json.loads((tmp_path / "metrics.json").read_text()) == metrics
    assert "NaN" not in (tmp_path / "metrics.json").read_text()


def test_a_guarantee_goes_beside_the_model(tmp_path: Path, checkpoint: Any) -> None:
    metrics = finished(tmp_path, checkpoint, LOGITS, guarantee=0.5)
    assert json.loads((tmp_path / "model" / "calmix.json").read_text()) == metrics["guarantee"]


def test_the_scores_before_the_temperature_are_kept_with_the_predictions(tmp_path: Path, checkpoint: Any) -> None:
    metrics = finished(tmp_path, checkpoint, LOGITS)
    table = read_table(tmp_path / "predictions-dev.parquet")
    assert table["logits"].to_pylist() == np.asarray(LOGITS, dtype=np.float32).tolist()
    expected = Temperature(metrics["temperature"])(np.asarray(LOGITS, dtype=np.float32)).max(axis=1)
    np.testing.assert_allclose(table["confidence"].to_numpy(), expected, rtol=1e-6)


def test_a_lean_run_has_its_figures_and_what_they_are_made_of(tmp_path: Path, checkpoint: Any) -> None:
    whole, lean = finished(tmp_path / "whole", checkpoint, LOGITS), finished(tmp_path, checkpoint, LOGITS, lean=True)
    assert lean == whole
    assert sorted(p.name for p in tmp_path.glob("*.*")) == [
        "metrics.json",
        "predictions-dev.parquet",
        "predictions-test.parquet",
    ]
    assert not (tmp_path / "model").exists()
    assert "id" not in read_table(tmp_path / "predictions-dev.parquet").column_names
