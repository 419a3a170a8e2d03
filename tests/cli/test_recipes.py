"""`calmix recipes`."""

import json
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
