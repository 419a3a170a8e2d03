"""One model, several threads: everybody is answered as if alone."""

import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from calmix.models import (
    Beside,
    Classifier,
    Cooling,
    Dropout,
    Predictor,
    head_of,
    load,
    load_trained,
    predicting,
    write_beside,
)
from calmix.models.locks import locked_model

THREADS, CALLS = 8, 120


@pytest.fixture(autouse=True)
def _restless() -> Iterator[None]:
    """Threads change places as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def far_less_sure(folder: Path) -> Path:
    """Keep a correction beside a checkpoint by which confidence falls with the distance."""
    width = head_of(load_trained(folder)[0]).in_features
    draw = torch.Generator().manual_seed(0)
    cooling = Cooling(0.5, torch.randn(3, width, generator=draw), torch.eye(width), (1.0, 0.5))
    write_beside(folder, Beside(cooling=cooling))
    return folder


@pytest.fixture
def predictor(checkpoint: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Predictor:
    copies = [far_less_sure(shutil.copytree(checkpoint(kind), tmp_path / kind)) for kind in ("bert", "roberta")]
    found: dict[str, Callable[[], Predictor]] = {
        "plain": lambda: load(checkpoint("bert")),
        "corrected": lambda: load(copies[0]),
        "ensemble": lambda: load(copies),
        "dropout": lambda: load(checkpoint("bert"), mc_dropout=Dropout(3, 0.3)),
        "dropout of several": lambda: load([checkpoint("bert"), checkpoint("roberta")], mc_dropout=Dropout(3, 0.3)),
        "dropout without a layer of it": lambda: load(checkpoint("llama"), mc_dropout=Dropout(3, 0.3)),
    }
    return found[request.param]()


def asked_at_once(ask: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(ask, range(CALLS)))


@pytest.mark.parametrize(
    "predictor",
    ["plain", "corrected", "ensemble", "dropout", "dropout of several", "dropout without a layer of it"],
    indirect=True,
)
def test_each_thread_is_answered_as_if_it_were_alone(predictor: Predictor) -> None:
    texts = tiny.texts(CALLS)[0]
    expected = [predictor.predict_proba([text]) for text in texts]
    found = asked_at_once(lambda turn: predictor.predict_proba([texts[turn]]))
    np.testing.assert_array_equal(np.concatenate(found), np.concatenate(expected))


@pytest.mark.parametrize("other", [{"mc_dropout": Dropout(3, 0.3)}, {"precision": "bf16"}])
def test_a_model_that_is_accelerated_for_one_call_is_not_for_another(
    checkpoint: Any, monkeypatch: pytest.MonkeyPatch, other: Any
) -> None:
    monkeypatch.setattr(predicting, "_MANY", 60)
    changed = load(checkpoint("bert"), **other)
    assert isinstance(changed, Classifier)
    # The same model, predicted with in two ways: many texts at once in one of them.
    quick = Classifier(changed.model, changed.tokenizer, changed.label_names)
    texts = tiny.texts(CALLS)[0]

    def ask(turn: int) -> Any:
        return quick.predict_proba(texts[:20]) if turn % 2 else changed.predict_proba([texts[turn]])

    expected = [ask(turn) for turn in range(CALLS)]
    found = asked_at_once(ask)
    for one, other_one in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other_one)
    assert not changed.model.training


def test_who_has_a_model_may_ask_for_it_again_and_others_wait(checkpoint: Any) -> None:
    classifier = load(checkpoint("bert"))
    assert isinstance(classifier, Classifier)
    order: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        with locked_model(classifier.model):
            waiting = pool.submit(lambda: (classifier.predict(["the cat"]), order.append("other")))
            classifier.predict(["the cat"])
            order.append("owner")
        waiting.result()
    assert order == ["owner", "other"]
