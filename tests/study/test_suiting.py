"""Whether the models of a study can be trained as it asks."""

from pathlib import Path
from typing import Any

import pytest

from calmix.errors import InputError
from calmix.study.conducting import Order, prepare
from calmix.study.executing import Failure


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("resnet18", "resnet18: is a network for images"),
        ("{empty}", "has no config.json, so it is not a transformers checkpoint"),
    ],
)
def test_a_model_that_cannot_be_trained_on_the_task_is_told_before_anything_trains(
    written: Any, data: Path, tmp_path: Path, model: str, words: str
) -> None:
    (tmp_path / "empty").mkdir()
    order = Order(written(), tmp_path / "out", data=data, models=(model.format(empty=tmp_path / "empty"),))
    with pytest.raises(InputError, match=words):
        prepare(order)
    assert not (tmp_path / "out").exists()


def test_a_layer_that_a_model_has_not_is_told_before_anything_trains(ready: Any) -> None:
    with pytest.raises(InputError, match=r"study.toml: manifold-mixup on tiny with .*levels 0 to 3, there is no 50"):
        ready('[[method]]\nrecipe = "manifold-mixup"\noptions = { layers = [50] }\n')


def test_paraphrases_that_are_not_there_are_told_before_anything_trains(ready: Any) -> None:
    method = '[[method]]\nrecipe = "back-translation"\n'
    with pytest.raises(InputError, match=r"back-translation on tiny with .*has no column 'paraphrase'"):
        ready(method)
    assert ready(method + 'options = { column = "text" }\n').plan.runs
    assert ready(method + 'options = { there = "a", back = "b" }\n').plan.runs  # which are loaded when their turn comes


def test_recipes_of_ones_own_are_left_to_their_runs(ready: Any, tmp_path: Path) -> None:
    own = "from dataclasses import replace\nfrom calmix.recipes import erm\n"
    own += "def mine():\n    return replace(erm(), variants=lambda model: 1 / 0)\n"
    (tmp_path / "own.py").write_text(own)
    assert ready(f'[[method]]\nname = "own"\nrecipe = "{tmp_path / "own.py"}:mine"\n').plan.runs


def test_runs_that_are_finished_or_failed_need_no_model_any_more(ready: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = ready()
    one, *others = prepared.plan.runs.values()
    for spec in others:
        prepared.storage.fail(spec, Failure("it was late", ""))

    def refuse(*_: Any) -> None:
        raise InputError("no model")

    monkeypatch.setattr("calmix.study.suiting.outline", refuse)
    with pytest.raises(InputError, match="no model"):
        ready()
    prepared.storage.fail(one, Failure("it was late", ""))
    assert len(ready().plan.runs) == 4
