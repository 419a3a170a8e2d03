"""An evaluation on disk."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from calmix.data import write_table
from calmix.errors import InputError
from calmix.training import read_predictions
from calmix.training.recording import bare_predictions, evaluation_folder, record_evaluation

CONFIG = {"command": "evaluate", "model": "some where/my run", "bins": 15, "data": {"a.csv": "1"}}
PROBS = np.array([[0.7, 0.3], [0.2, 0.8]])
LABELS = np.array([0, 0])


def test_the_folder_is_named_after_the_model_and_what_was_evaluated() -> None:
    first, other = evaluation_folder(CONFIG), evaluation_folder({**CONFIG, "bins": 10})
    assert first.parent == Path("evaluations")
    assert first.name.startswith("my-run-")
    assert first != other
    assert evaluation_folder({**CONFIG, "model": ".."}).name.startswith("model-")


@pytest.mark.parametrize("named", [True, False])
def test_predictions_made_anywhere_read_the_same_as_ours(tmp_path: Path, named: bool) -> None:
    columns = {"p_a": PROBS[:, 0], "p_b": PROBS[:, 1]} if named else {"probs": list(PROBS)}
    table = pa.table({"label": ["a", "a"] if named else ["0", "0"], "more": [1, 2], **columns})
    write_table(bare_predictions(PROBS, LABELS, table), tmp_path / "p.parquet")
    probs, labels, again = read_predictions(tmp_path / "p.parquet")
    np.testing.assert_array_equal(probs, PROBS)
    np.testing.assert_array_equal(labels, LABELS)
    assert again["predicted"].to_pylist() == (["a", "b"] if named else ["0", "1"])


def test_files_of_one_name_get_names_of_their_own(tmp_path: Path) -> None:
    table = bare_predictions(PROBS, LABELS, pa.table({"p_a": [0.0, 0.0], "p_b": [0.0, 0.0]}))
    files = ["x/test.csv", "y/test.csv", "/&.csv"]
    figures = {file: {"n": 2} for file in files}
    record_evaluation(tmp_path / "out", CONFIG, figures, dict.fromkeys(files, table))
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["files"] == {"test": "x/test.csv", "test-2": "y/test.csv", "data": "/&.csv"}
    assert metrics["splits"]["test-2"] == {"after": {"n": 2}}
    assert {p.name for p in (tmp_path / "out").glob("*.parquet")} == {
        f"predictions-{name}.parquet" for name in metrics["files"]
    }


def test_the_same_again_is_written_anew_and_another_is_refused(tmp_path: Path) -> None:
    record_evaluation(tmp_path / "out", CONFIG, {}, {})
    record_evaluation(tmp_path / "out", CONFIG, {"a.csv": {"n": 2}}, {})
    assert "a.csv" in (tmp_path / "out" / "metrics.json").read_text()
    with pytest.raises(InputError, match="holds a different run"):
        record_evaluation(tmp_path / "out", {**CONFIG, "bins": 3}, {}, {})
