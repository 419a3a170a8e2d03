"""One model, several threads: everybody is answered as if alone."""

import gc
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import Any

import numpy as np
import pytest
import tiny
from torch import nn

from calmix.models import Classifier, Dropout, Predictor, load, locks, predicting
from calmix.models.locks import exclusive, shared

THREADS, CALLS = 8, 48


@pytest.fixture(autouse=True)
def _restless() -> Iterator[None]:
    """Threads change places as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def predictor(checkpoint: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Predictor:
    if request.param == "accelerated":
        monkeypatch.setattr(predicting, "_MANY", 0)
    found: dict[str, Callable[[], Predictor]] = {
        "plain": lambda: load(checkpoint("bert")),
        "accelerated": lambda: load(checkpoint("bert")),
        "ensemble": lambda: load([checkpoint("bert"), checkpoint("roberta")]),
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
    ["plain", "accelerated", "ensemble", "dropout", "dropout of several", "dropout without a layer of it"],
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


def test_a_model_in_training_mode_predicts_for_each_thread_without_dropout(checkpoint: Any) -> None:
    classifier = load(checkpoint("bert"))
    assert isinstance(classifier, Classifier)
    texts = tiny.texts(CALLS)[0]
    expected = [classifier.predict_proba([text]) for text in texts]
    classifier.model.train()
    found = asked_at_once(lambda turn: classifier.predict_proba([texts[turn]]))
    np.testing.assert_array_equal(np.concatenate(found), np.concatenate(expected))
    assert classifier.model.training


def test_predictions_that_change_nothing_are_made_at_the_same_time(checkpoint: Any) -> None:
    classifier = load(checkpoint("bert"))
    assert isinstance(classifier, Classifier)
    both = Barrier(2, timeout=60)

    def meet(*_: Any) -> None:
        both.wait()

    classifier.model.register_forward_pre_hook(meet)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: classifier.predict_proba(["the cat"]), range(2)))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(("mine", "theirs"), [(exclusive, exclusive), (exclusive, shared), (shared, exclusive)])
def test_who_changes_a_model_has_it_alone_and_may_ask_for_it_again(mine: Any, theirs: Any) -> None:
    model, order, asked = nn.Linear(1, 1), [], Event()

    def other() -> None:
        asked.set()
        with theirs(model):
            order.append("other")

    with ThreadPoolExecutor(1) as pool:
        with mine(model):
            waiting = pool.submit(other)
            asked.wait(60)
            with mine(model), shared(model):
                order.append("owner")
        waiting.result(60)
    assert order == ["owner", "other"]


def test_who_waits_to_be_alone_is_not_overtaken_for_ever() -> None:
    model, done = nn.Linear(1, 1), Event()

    def change() -> None:
        with exclusive(model):
            done.set()

    def use() -> None:
        while not done.is_set():
            with shared(model):
                pass

    with ThreadPoolExecutor(4) as pool:
        busy = [pool.submit(use) for _ in range(3)]
        try:
            pool.submit(change).result(60)
        finally:
            done.set()
        for each in busy:
            each.result(60)


def test_a_model_that_is_gone_leaves_no_lock() -> None:
    model = nn.Linear(1, 1)
    with shared(model):
        pass
    before = len(locks._TURNS)
    del model
    gc.collect()
    assert len(locks._TURNS) < before
