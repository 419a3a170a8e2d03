"""`calmix recipes`."""

import json
from pathlib import Path
from typing import Any

from calmix.recipes import RECIPES


def test_all_are_listed_with_their_options(calmix: Any) -> None:
    ended = calmix("recipes")
    assert ended.code == 0
    for name in RECIPES:
        assert name in ended.out
    assert "--set alpha=0.4" in ended.out


def test_one_can_be_asked_for(calmix: Any) -> None:
    out = calmix("recipes", "erl").out
    assert "erl" in out
    assert "input-mixup" not in out


def test_json_has_all_of_it(calmix: Any) -> None:
    found = json.loads(calmix("recipes", "--json").out)
    assert list(found) == list(RECIPES)
    alpha = found["input-mixup"]["options"]["alpha"]
    assert (alpha["takes"], alpha["default"]) == ("number", 0.4)
    assert found["input-mixup"]["paper"]


def test_a_name_that_is_nearly_right_is_guessed(calmix: Any) -> None:
    ended = calmix("recipes", "input-mixp")
    assert ended.code == 2
    assert "did you mean input-mixup?" in ended.err


def test_a_recipe_of_ones_own_is_shown_too(calmix: Any, place: Path) -> None:
    (place / "mine.py").write_text('def mine(*, strength: float = 0.5):\n    """My own."""\n')
    ended = calmix("recipes", "mine.py:mine")
    assert ended.code == 0, ended.err
    assert "My own." in ended.out
    assert "--set strength=0.5" in ended.out
