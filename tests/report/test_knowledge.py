"""What a model knows, before a word on its confidence."""

from typing import Any

import numpy as np
import pytest

from calmix.calibration import Temperature
from calmix.report.knowledge import Course, prepare_knowledge
from calmix.report.runs import Judged


def of(probs: np.ndarray, labels: np.ndarray, *, classes: bool = True) -> Judged:
    names = tuple(f"class {k}" for k in range(probs.shape[1])) if classes else ()
    return Judged("test", "test", False, {"after": {}}, {"after": probs}, labels, names, ())


def drawn(shares: list[float], skill: float, n: int, seed: int = 0) -> Judged:
    """Honest predictions whose labels are drawn from them; without skill they are the shares of the classes."""
    rng = np.random.default_rng(seed)
    probs = np.asarray(Temperature(1.0)(np.log(shares) + skill * rng.normal(size=(n, len(shares)))))
    labels = (probs.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return of(probs, labels)


@pytest.mark.parametrize(
    ("shares", "skill", "n", "state"),
    [
        ([0.5, 0.5], 2.0, 1000, "learnt"),
        ([0.5, 0.5], 0.2, 1000, "hardly"),
        ([0.7, 0.3], 0.3, 1000, "hardly"),
        ([1 / 150] * 150, 0.1, 600, "hardly"),
        ([1 / 150] * 150, 4.0, 600, "learnt"),
    ],
)
def test_what_is_no_better_than_a_constant_answer_has_hardly_learnt(
    shares: list[float], skill: float, n: int, state: str
) -> None:
    assert prepare_knowledge(drawn(shares, skill, n)).state == state


def test_a_rare_class_that_it_finds_is_knowledge_though_the_commonest_is_as_often_right() -> None:
    rng = np.random.default_rng(0)
    rare = np.where(rng.random(2000) < 0.04, 0.45, 0.001)
    labels = (rng.random(2000) < rare).astype(np.int64)
    found = prepare_knowledge(of(np.stack([1 - rare, rare], axis=1), labels))
    assert found.right <= found.constant
    assert found.state == "learnt"


def test_a_gain_that_chance_does_not_make_is_still_hardly_any_where_the_loss_is_as_without() -> None:
    found = prepare_knowledge(drawn([0.5, 0.5], 0.2, 20_000))
    assert found.interval[0] > found.constant
    assert found.state == "hardly"


def test_one_who_is_often_right_and_absurdly_sure_has_learnt() -> None:
    labels = np.arange(1000) % 2
    said = np.where(np.arange(1000) < 900, labels, 1 - labels)
    found = prepare_knowledge(of(np.eye(2)[said], labels))
    assert (found.right, found.state) == (0.9, "learnt")


@pytest.mark.parametrize("labels", [np.zeros(500, dtype=np.int64), np.arange(30) % 2])
def test_one_class_alone_and_a_handful_of_rows_tell_nothing(labels: np.ndarray) -> None:
    assert prepare_knowledge(of(np.full((len(labels), 2), 0.5), labels)).state == "learnt"


def test_of_multiple_choice_it_is_beside_a_guess() -> None:
    probs = np.array([[0.7, 0.1, 0.1, 0.1], [0.5, 0.5, 0.0, 0.0]] * 40)
    found = prepare_knowledge(of(probs, np.zeros(80, dtype=np.int64), classes=False))
    assert found.constant == pytest.approx((1 / 4 + 1 / 2) / 2)
    assert found.sentence == "Guessing would be right 38 % of the time."


def history(*accuracies: float, losses: tuple[float, ...]) -> list[dict[str, Any]]:
    return [
        {"epoch": epoch, "loss": None if epoch == 0 else 1.0, "dev": {"accuracy": right, "nll-ts": loss}}
        for epoch, (right, loss) in enumerate(zip(accuracies, losses, strict=True))
    ]


def test_the_fitted_head_stands_beside_it_on_the_rows_that_both_were_judged_on() -> None:
    course = Course(history(0.883, 0.9, 0.92, losses=(0.5, 0.4, 0.39)), 2, 1.1)
    found = prepare_knowledge(drawn([0.5, 0.5], 2.0, 1000), course)
    assert (found.before, found.now) == (0.883, 0.92)
    assert found.sentence.endswith(
        "On the dev rows it is right 92.0 % of the time; its head before fine-tuning was at 88.3 %."
    )
    without = prepare_knowledge(drawn([0.5, 0.5], 2.0, 1000), Course(course.history[1:], 2, 1.1))
    assert without.before is None
    assert "dev" not in without.sentence


@pytest.mark.parametrize(("epochs", "why"), [(1, "nothing was fine-tuned"), (2, "no epoch of fine-tuning was better")])
def test_a_head_that_is_the_model_is_called_that(epochs: int, why: str) -> None:
    course = Course(history(0.88, 0.8, losses=(0.5, 0.6))[:epochs], 0, 0.4)
    found = prepare_knowledge(drawn([0.5, 0.5], 2.0, 1000), course)
    assert found.state == "learnt"
    assert why in found.sentence


def test_a_training_that_broke_off_is_unfinished() -> None:
    one, fell = drawn([0.1] * 10, 3.0, 1000), history(0.1, 0.4, 0.5, losses=(3.0, 2.0, 1.8))[1:]
    found = prepare_knowledge(one, Course(fell, 2, 0.05))
    assert found.state == "unfinished"
    assert "by 10 % in the last epoch" in found.sentence
    assert "temperature of 0.05" in found.sentence
    assert prepare_knowledge(one, Course(fell, 2, 0.9)).state == "learnt"
    assert prepare_knowledge(one, Course(fell, 1, 0.05)).state == "learnt"
