"""The picture of a data map."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

matplotlib = pytest.importorskip("matplotlib")

from calmix.dynamics import Dynamics, Region, label_issues, regions  # noqa: E402
from calmix.report import draw_datamap, prepare_datamap, save_figure  # noqa: E402
from calmix.report.datamap import fitting_limits  # noqa: E402


def dynamics_of(n: int, *, wrong: int = 0, never: int = 0) -> Dynamics:
    """Dynamics of n samples; the first are never seen, the last have wrong labels."""
    logits = np.random.default_rng(0).normal(size=(3, n, 3))
    logits[:, :, 0] += 2
    logits[:, n - wrong :, 1] += 9
    logits[:, :never] = np.nan
    return Dynamics.from_logits(logits, np.zeros(n, dtype=np.int64))


def legend(figure: object) -> list[str]:
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]  # type: ignore[attr-defined]


def test_all_samples_that_were_seen_are_points() -> None:
    dynamics = dynamics_of(50, wrong=4, never=5)
    points = prepare_datamap(dynamics)
    assert points.total == len(points.region) == 45
    np.testing.assert_array_equal(points.confidence, dynamics.confidence[5:])
    np.testing.assert_array_equal(points.variability, dynamics.variability[5:])
    np.testing.assert_array_equal(points.region, regions(dynamics)[5:])
    np.testing.assert_array_equal(points.suspect, label_issues(dynamics).flagged[5:])


def test_of_too_many_a_sample_is_drawn_that_keeps_the_suspects() -> None:
    dynamics = dynamics_of(500, wrong=7)
    suspects = int(label_issues(dynamics).flagged.sum())
    points, again, other = (prepare_datamap(dynamics, most=100, seed=seed) for seed in (0, 0, 1))
    assert 7 <= suspects < 100
    assert len(points.region) == 100
    assert points.suspect.sum() == points.suspects == suspects
    assert points.total == 500
    np.testing.assert_array_equal(points.confidence, again.confidence)
    assert points.confidence.tolist() != other.confidence.tolist()
    few = prepare_datamap(dynamics, most=3)
    assert few.suspect.all()
    assert few.suspects == suspects


def test_the_legend_counts_the_samples_not_the_points() -> None:
    dynamics = dynamics_of(1500, wrong=7)
    codes = regions(dynamics)
    sizes = {region: int((codes == region).sum()) for region in (Region.EASY, Region.AMBIGUOUS, Region.HARD)}
    suspects = int(label_issues(dynamics).flagged.sum())
    figure = draw_datamap(prepare_datamap(dynamics, most=200))
    assert legend(figure) == [
        f"easy ({sizes[Region.EASY]:,})",
        f"ambiguous ({sizes[Region.AMBIGUOUS]:,})",
        f"hard ({sizes[Region.HARD]:,})",
        f"label looks wrong ({suspects:,})",
    ]
    assert figure.axes[0].get_title(loc="left") == "Data map of 200 of 1,500 training samples"
    drawn = [len(points.get_offsets()) for points in figure.axes[0].collections]
    assert sum(drawn[:3]) == 200


def test_without_suspects_none_are_mentioned_and_nothing_seen_is_an_empty_map() -> None:
    logits = np.zeros((2, 6, 3))
    logits[:, :, 0] = 5
    certain = Dynamics.from_logits(logits, np.zeros(6, dtype=np.int64))
    assert legend(draw_datamap(prepare_datamap(certain))) == ["easy (2)", "ambiguous (2)", "hard (2)"]
    assert prepare_datamap(dynamics_of(5, never=5)).total == 0
    draw_datamap(prepare_datamap(dynamics_of(5, never=5)))


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_the_same_map_is_the_same_file(tmp_path: Path, kind: str) -> None:
    for name in ("a", "b"):
        save_figure(draw_datamap(prepare_datamap(dynamics_of(40, wrong=3))), tmp_path / f"{name}.{kind}")
    content = (tmp_path / f"a.{kind}").read_bytes()
    assert content == (tmp_path / f"b.{kind}").read_bytes()
    assert content.startswith(b"\x89PNG" if kind == "png" else b"<?xml")
    assert not re.search(rb"<dc:date>|Creation Time|tIME", content)


def test_nothing_global_is_touched(tmp_path: Path) -> None:
    before, backend = dict(matplotlib.rcParams), matplotlib.rcParams._get_backend_or_none()
    save_figure(draw_datamap(prepare_datamap(dynamics_of(40))), tmp_path / "map.svg")
    assert dict(matplotlib.rcParams) == before
    assert matplotlib.rcParams._get_backend_or_none() == backend
    import sys

    if "matplotlib.pyplot" in sys.modules:
        assert sys.modules["matplotlib.pyplot"].get_fignums() == []


def limits_of(low: float, high: float, varied: float) -> tuple[float, float, float]:
    limits = fitting_limits(np.linspace(0, varied, 50), np.linspace(low, high, 50))
    return limits.right, limits.bottom, limits.top


@pytest.mark.parametrize(
    ("low", "high", "varied", "expected"),
    [
        (0.05, 0.99, 0.31, (0.35, 0.0, 1.0)),  # most of the scale: all of it
        (0.09, 0.33, 0.118, (0.12, 0.0, 0.35)),  # little of it, down to its lower end
        (0.31, 0.69, 0.1, (0.1, 0.0, 0.7)),
        (0.80, 0.99, 0.2, (0.2, 0.75, 1.0)),  # far from 0
        (0.0063, 0.0115, 0.0026, (0.003, 0.003, 0.014)),  # a network that has hardly begun, of 150 classes
    ],
)
def test_the_axes_fit_the_points(low: float, high: float, varied: float, expected: tuple[float, ...]) -> None:
    assert limits_of(low, high, varied) == pytest.approx(expected)


def test_noise_is_not_stretched_to_fill_the_axes() -> None:
    right, bottom, top = limits_of(0.499, 0.501, 0.001)
    assert top - bottom > 0.1
    assert right >= 0.05


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 0.5)), min_size=1, max_size=30),
    st.floats(0.001, 1),
)
def test_no_point_is_off_the_axes(points: list[tuple[float, float]], scale: float) -> None:
    confidence, variability = (scale * np.array(column) for column in zip(*points, strict=True))
    limits = fitting_limits(variability, confidence)
    assert 0 <= limits.bottom <= confidence.min() + 1e-9
    assert confidence.max() - 1e-9 <= limits.top <= 1
    assert variability.max() - 1e-9 <= limits.right
    assert limits.bottom < limits.top


def test_the_figure_has_these_axes() -> None:
    logits = np.random.default_rng(0).normal(scale=0.1, size=(3, 300, 50))
    points = prepare_datamap(Dynamics.from_logits(logits, np.arange(300) % 50))
    limits, axes = fitting_limits(points.variability, points.confidence), draw_datamap(points).axes[0]
    assert axes.get_xlim() == (0, limits.right)
    assert axes.get_ylim()[0] == limits.bottom
    assert limits.top <= axes.get_ylim()[1] < 0.1
