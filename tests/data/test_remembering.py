"""Columns that were named once are known later, without loading a model."""

import json
from pathlib import Path

import pytest

from calmix.data.remembering import COLUMNS, remember_columns, remembered_columns


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


@pytest.mark.parametrize(
    ("named", "known"),
    [
        ({"label": "Topic"}, {"text": "Body", "text_b": "Reply", "label": "Topic"}),
        ({"text": "Words", "label": None}, {"text": "Words", "label": "Queue"}),  # no longer pairs
        ({"text": None}, {"text": "Body", "text_b": "Reply", "label": "Queue"}),
    ],
)
@pytest.mark.parametrize("members", [[""], ["member-1", "member-2"]])
def test_what_is_named_later_is_remembered_beside_what_was_before(
    tmp_path: Path, named: dict[str, str | None], known: dict[str, str], members: list[str]
) -> None:
    for member in members:
        (tmp_path / member).mkdir(exist_ok=True)
        before = {"x": float("inf"), COLUMNS: {"text": "Body", "text_b": "Reply", "label": "Queue"}}
        (tmp_path / member / "config.json").write_text(json.dumps(before))
    remember_columns(tmp_path, named)
    for member in members:
        state = json.loads((tmp_path / member / "config.json").read_text())
        assert state == {"x": float("inf"), COLUMNS: known}
    assert remembered_columns(tmp_path) == known
