"""Every public function, given what hypothesis draws, answers within its bounds, or says what is wrong in a line.

Arguments are drawn by their names, and those that users bring are spoilt, too: NaN, infinities, other shapes, types and
sizes. `calmix.train`, `distil` and `load` read files: see `bad_inputs.py` and `tools/fuzz.py`. Recipes are in
`mixing/test_properties.py`. The tests of each room know what is right; here it is that nothing else happens.
"""

import copy
import inspect
import json
import math
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calmix import dynamics, metrics, recalibration
from calmix.calibration import ConformalSets, SelectiveThreshold
from calmix.errors import InputError

# Values that an argument of a type can take, and few of which can be meant.
WILD: dict[type, tuple[Any, ...]] = {
    int: (0, -1, 1, 2, 7, -(10**9)),
    float: (0.0, -1.0, 1.0, 2.0, 1e-9, 1e300, math.nan, math.inf, -math.inf),
    str: ("", "0.5", "nan", "in", "head", "x\ny"),
    bool: (True, False),
    tuple: ((), (1, 99), (-3,)),
}


class Drawn:
    """What one example draws its arguments from: sizes that fit each other, and numbers."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.n, self.k = draw(st.integers(1, 12)), draw(st.integers(2, 5))
        self.rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        self.generator = torch.Generator().manual_seed(int(self.rng.integers(2**31)))

    def one_of(self, *values: Any) -> Any:
        return self.draw(st.sampled_from(values))

    def probs(self) -> Any:
        return self.rng.dirichlet(np.full(self.k, self.one_of(0.05, 1.0, 50.0)), self.n)

    def labels(self) -> Any:
        return self.rng.integers(0, self.k, self.n)

    def logits(self) -> Any:
        return self.rng.normal(size=(self.n, self.k)) * self.one_of(0.0, 1e-3, 1.0, 50.0)

    def scores(self) -> Any:
        return self.rng.integers(-3, 4, self.rng.integers(1, 12)) * self.one_of(0.1, 1.0, 1e6)

    def tensor(self, array: Any) -> torch.Tensor:
        return torch.from_numpy(np.asarray(array))

    def halves(self) -> torch.Tensor:
        return self.tensor(self.rng.integers(-1, 2, self.n))

    def recorded(self) -> dynamics.Dynamics:
        """Dynamics of `n` samples, of which some were never seen and some only sometimes."""
        recorder = dynamics.Recorder(self.n)
        labels = self.tensor(self.labels())
        for _ in range(self.one_of(0, 1, 3)):
            rows = torch.arange(self.n)
            rows[self.tensor(self.rng.random(self.n) < self.one_of(0.0, 0.3, 1.0))] = -1
            recorder.update(self.tensor(self.logits()).float(), labels, rows)
            recorder.end_epoch()
        return recorder.dynamics()


ARGUMENTS: dict[str, Callable[[Drawn], Any]] = {
    "probs": Drawn.probs,
    "other": Drawn.probs,
    "true_probs": Drawn.probs,
    "labels": Drawn.labels,
    "logits": Drawn.logits,
    "scores_in": Drawn.scores,
    "scores_out": Drawn.scores,
    "bins": lambda d: d.one_of(1, 2, 15),
    "positive_class": lambda d: d.one_of(None, 0),
    "expected": lambda d: d.one_of(None, 0.5, 2.0),
    "positive": lambda d: d.one_of("in", "out"),
    "metric": lambda d: d.one_of(metrics.accuracy, metrics.ece, metrics.brier),
    "n": lambda d: d.one_of(2, 20),
    "level": lambda d: d.one_of(0.5, 0.95),
    "generator": lambda d: d.one_of(0, np.random.default_rng(0)),
    "accuracy": lambda d: d.one_of(0.5, 0.99),
    "error": lambda d: d.one_of(0.05, 0.5),
    "score": lambda d: d.one_of("lac", "aps"),
}

# The same twenty examples of each function every time; with `HYPOTHESIS_EXAMPLES=1000` so many, and others.
ASKED = os.environ.get("HYPOTHESIS_EXAMPLES")
few = settings(max_examples=int(ASKED or 20), derandomize=ASKED is None)

# What is done to an argument that is an array.
SPOILT: tuple[Callable[[Any], Any], ...] = (
    lambda a: a * np.nan,
    lambda a: a + np.inf,
    lambda a: -a - 1,
    lambda a: a * 3,
    lambda a: a[:0],
    lambda a: a[1:],
    lambda a: a[..., :1],
    lambda a: a[None],
    lambda a: a.astype(str),
    lambda a: a.astype(object),
    lambda a: a.astype(complex),
    lambda a: a.astype(np.int64),
    lambda a: a.astype(np.float16),
    lambda a: a[::-1],
    np.asfortranarray,
    lambda a: torch.from_numpy(a.copy()),
    lambda a: a.tolist(),
)
# Infinite where a label was given no probability, and NaN where there is nothing in a bin: documented.
NOT_FINITE = {"nll", "reliability", "bootstrap", "paired_bootstrap"}
MEASURES = {name: getattr(metrics, name) for name in metrics.__all__ if inspect.isfunction(getattr(metrics, name))}
RECALIBRATED = {
    f"{kind.__name__}.fit": kind.fit
    for kind in (
        recalibration.Temperature,
        recalibration.VectorScaling,
        recalibration.Isotonic,
        recalibration.Histogram,
    )
}
FITTED = {**RECALIBRATED, "ConformalSets.fit": ConformalSets.fit, "SelectiveThreshold.fit": SelectiveThreshold.fit}


def arguments(function: Callable[..., Any], drawn: Drawn) -> dict[str, Any]:
    """Return arguments for every parameter that has no default, and for some of those that have one."""
    parameters = inspect.signature(function).parameters.values()
    # `n` resamples are a thousand if nobody says so.
    wanted = [p.name for p in parameters if p.default is p.empty or p.name == "n" or drawn.one_of(True, False)]
    return {name: ARGUMENTS[name](drawn) for name in wanted}


def wild(drawn: Drawn, value: Any) -> Any:
    """Return another value of the same type."""
    return drawn.one_of(*WILD.get(type(value), (value,)))


def numbers(value: Any) -> Iterable[float]:
    """Yield all numbers of a result."""
    if isinstance(value, float | int | np.ndarray | torch.Tensor):
        yield from np.asarray(value, dtype=float).ravel()
    elif isinstance(value, dict):
        for each in value.values():
            yield from numbers(each)
    elif hasattr(value, "__dataclass_fields__"):
        yield from numbers({name: getattr(value, name) for name in value.__dataclass_fields__})
    elif isinstance(value, tuple | list):
        for each in value:
            yield from numbers(each)


def refused_or(work: Callable[[], bool], kind: type[ValueError] = ValueError) -> bool:
    """Return whether it is true, or said in one line why there is no answer."""
    try:
        return work()
    except kind as error:
        return "\n" not in str(error)


@pytest.mark.parametrize("name", [*MEASURES, *FITTED])
@few
@given(data=st.data())
def test_a_measure_answers_with_numbers_and_leaves_its_arguments_alone(name: str, data: Any) -> None:
    function = (MEASURES | FITTED)[name]
    drawn = Drawn(data.draw)
    given_ = arguments(function, drawn)
    before = copy.deepcopy(given_)
    result = function(**given_)
    assert name in NOT_FINITE or all(map(math.isfinite, numbers(result)))
    for key, value in given_.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, before[key])
    if name in RECALIBRATED:
        logits = drawn.logits()
        again = recalibration.from_json(json.loads(json.dumps(result.to_json())))
        np.testing.assert_array_equal(again(logits), result(logits))
        np.testing.assert_allclose(result(logits).sum(1), 1.0)


@pytest.mark.parametrize("name", [*MEASURES, *FITTED])
@few
@given(data=st.data())
def test_a_measure_says_in_one_line_what_is_wrong_with_its_arguments(name: str, data: Any) -> None:
    function = (MEASURES | FITTED)[name]
    drawn = Drawn(data.draw)
    given_ = arguments(function, drawn)
    key = drawn.one_of(*given_)
    value = given_[key]
    given_[key] = drawn.one_of(*SPOILT)(value) if isinstance(value, np.ndarray) else wild(drawn, value)
    assert refused_or(lambda: bool(str(function(**given_))), InputError)


def rows_of(found: Any, n: int) -> bool:
    """Return whether all of these are rows of `n`."""
    return all(0 <= row < n for row in np.asarray(found).ravel())


def vectors(d: Drawn, width: int = 3) -> torch.Tensor:
    return d.tensor(d.rng.integers(-2, 3, (d.n, width)) * d.one_of(1.0, 1e-200, 1e200))


def relabelled(d: Drawn) -> list[Any]:
    """Return threshold samples, alone or a pair of disjoint sets, of some of the rows."""
    rows = np.flatnonzero(d.rng.random(d.n) < 0.7)
    labels = d.labels()
    return [
        dynamics.threshold_samples(labels, d.k, rows, d.rng, wording=d.one_of("balanced", "literal")),
        *dynamics.threshold_pair(labels, d.k, rows, d.rng),
    ]


def judged_once(d: Drawn) -> bool:
    """Return whether runs with threshold samples together judge every row of a region once."""
    rows = np.flatnonzero(d.rng.random(d.n) < 0.7)
    runs = dynamics.threshold_runs(d.labels(), d.k, rows, d.rng, wording=d.one_of("balanced", "literal"))
    return sorted(row for run in runs for row in run.judged.tolist()) == rows.tolist()


def kept_of_pair(d: Drawn) -> bool:
    _, one, two = relabelled(d)
    first, second = d.recorded(), d.recorded()
    return refused_or(lambda: rows_of(dynamics.aum_filter_pair(first, one, second, two, k=d.one_of(0, 50, 100)), d.n))


def partners_of(d: Drawn) -> bool:
    halves, both = d.halves(), d.one_of(True, False)
    given_ = (vectors(d), vectors(d, 4)) if both else vectors(d)
    three = not both and d.one_of(True, False)
    if three:
        given_ = dynamics.saliency_map(d.tensor(d.rng.normal(size=(d.n, 3))), d.tensor(d.rng.integers(0, 3, d.n)))
    how = {"candidates": d.one_of(0, 1, 100), "three_classes": three}
    found = dynamics.set_partners(given_, halves, generator=d.generator, **how)
    return all(across(halves, each) for each in found)


def across(halves: torch.Tensor, partners: torch.Tensor) -> bool:
    """Return whether everybody has a partner of the other half, or is alone."""
    own = torch.arange(len(halves))
    return bool(((halves + halves[partners] == 1) | (partners == own)).all())


def unit(cosines: torch.Tensor, n: int) -> bool:
    return cosines.shape == (n, n) and bool((cosines.abs() <= 1 + 1e-9).all())


def gap(d: Drawn) -> torch.Tensor:
    return dynamics.residual(d.tensor(d.logits()), d.tensor(d.labels()))


def looked_up(d: Drawn) -> bool:
    ids = [str(value) for value in d.rng.integers(0, 40, d.n)]
    return refused_or(lambda: dynamics.row_lookup(ids)(ids[::-1]).tolist() == [*range(d.n)][::-1])


# Function of dynamics → whether what it answers can be true.
OF_DYNAMICS: dict[str, Callable[[Drawn], bool]] = {
    "absent_classes": lambda d: set(dynamics.absent_classes(d.recorded(), np.arange(d.n // 2))) <= {*range(d.k)},
    "aum_filter": lambda d: refused_or(
        lambda: rows_of(dynamics.aum_filter(d.recorded(), relabelled(d)[0], k=d.one_of(0, 80, 100)), d.n)
    ),
    "aum_filter_pair": kept_of_pair,
    "aum_halves": lambda d: {*dynamics.aum_halves(d.recorded()).tolist()} <= {-1, 0, 1},
    "batch_partners": lambda d: all(
        across(halves, each)
        for halves in [d.halves()]
        for each in dynamics.batch_partners(dynamics.cosine(vectors(d)), halves)
    ),
    "cosine": lambda d: unit(dynamics.cosine(vectors(d)), d.n),
    "distinct_partners": lambda d: 1 <= dynamics.distinct_partners(d.tensor(d.rng.integers(0, d.n, d.n))) <= d.n,
    "easy_and_ambiguous": lambda d: refused_or(
        lambda: rows_of(
            np.concatenate(dynamics.easy_and_ambiguous(d.recorded(), fraction=d.one_of(*WILD[float], 0.3, 0.5))), d.n
        )
    ),
    "farthest_of_drawn": lambda d: rows_of(
        dynamics.farthest_of_drawn((vectors(d),), (vectors(d),), d.one_of(1, 5), generator=d.generator), d.n
    ),
    "head_cosine": lambda d: unit(dynamics.head_cosine(gap(d), vectors(d)), d.n),
    "label_issues": lambda d: all(
        math.isnan(score) or 0 <= score <= 1 for score in dynamics.label_issues(d.recorded()).score
    ),
    "nearest_of_all": lambda d: rows_of(dynamics.nearest_of_all((vectors(d),), (vectors(d),)), d.n),
    "nearest_of_three_classes": lambda d: rows_of(dynamics.nearest_of_three_classes(vectors(d), vectors(d)), d.n),
    "random_partners": lambda d: all(
        across(halves, dynamics.random_partners(halves, generator=d.generator)) for halves in [d.halves()]
    ),
    "regions": lambda d: refused_or(
        lambda: len(dynamics.regions(d.recorded(), fraction=d.one_of(*WILD[float], 0.3, 0.5))) == d.n
    ),
    "residual": lambda d: bool((gap(d).sum(1).abs() < 1e-12).all()),
    "row_lookup": looked_up,
    "saliency_map": lambda d: bool(
        (dynamics.saliency_map(d.tensor(d.logits()), d.tensor(d.probs())) <= 1 + 1e-9).all()
    ),
    "set_partners": partners_of,
    "threshold_pair": lambda d: all(not {*one.rows.tolist()} & {*two.rows.tolist()} for _, one, two in [relabelled(d)]),
    "threshold_runs": judged_once,
    "threshold_samples": lambda d: all(rows_of(each.rows, d.n) for each in relabelled(d)),
    "two_class_vectors": lambda d: refused_or(lambda: dynamics.two_class_vectors(gap(d), vectors(d)).shape == (d.n, 3)),
}


@pytest.mark.parametrize("name", OF_DYNAMICS)
@few
@given(data=st.data())
def test_a_function_of_dynamics_answers_what_can_be_true(name: str, data: Any) -> None:
    assert OF_DYNAMICS[name](Drawn(data.draw))


def test_no_public_function_is_left_out() -> None:
    assert {name for name in dynamics.__all__ if inspect.isfunction(getattr(dynamics, name))} == {*OF_DYNAMICS}
    assert {*recalibration.__all__} - {name.removesuffix(".fit") for name in RECALIBRATED} == {
        "Recalibrator",  # a protocol
        "from_json",  # above, and in tools/fuzz.py
        "fold",  # of models: test_temperature.py
        "folded_temperature",
    }
