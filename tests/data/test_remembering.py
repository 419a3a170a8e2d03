"""Columns that were named once are known later, without loading a model."""

import json
from pathlib import Path

import pytest

from calmix.data.remembering import COLUMNS, remembered_columns


@pytest.mark.parametrize("inside", ["model/config.json", "config.json", "member-1/config.json"])
def test_a_run_a_checkpoint_and_an_ensemble_remember_in_their_config(tmp_path: Path, inside: str) -> None:
    file = tmp_path / inside
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"model_type": "bert", COLUMNS: {"text": "Body", "label": "Queue"}}))
    assert remembered_columns(tmp_path) == {"text": "Body", "label": "Queue"}


def test_a_map_remembers_in_its_figures(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text(json.dumps({"n": 3, "columns": {"text": "Body"}}))
    assert remembered_columns(str(tmp_path)) == {"text": "Body"}


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"calmix_columns": 3}', '{"calmix_columns": {"text": 1}}', "\xff"]
)
def test_what_cannot_be_used_is_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content, encoding="latin-1")
    assert remembered_columns(tmp_path) == {}
    assert remembered_columns("org/name") == {}
