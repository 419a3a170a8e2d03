"""The risk–coverage curve."""

import numpy as np
import pytest

from calmix.metrics import aurc
from calmix.report import draw_risk_coverage, prepare_risk_coverage

RNG = np.random.default_rng(0)
PROBS = RNG.dirichlet(np.ones(3), 900)
LABELS = RNG.integers(0, 3, 900)


def test_few_points_keep_the_whole_curves_area_and_its_end() -> None:
    whole, few = prepare_risk_coverage(PROBS, LABELS, most=900), prepare_risk_coverage(PROBS, LABELS, most=50)
    assert whole.area == few.area == pytest.approx(aurc(PROBS, LABELS))
    assert len(few.risk) == 50
    assert few.coverage[-1] == 1
    assert few.risk[-1] == pytest.approx((PROBS.argmax(1) != LABELS).mean())
    assert (np.diff(few.threshold) <= 0).all()


def test_one_row_is_a_curve() -> None:
    assert prepare_risk_coverage(PROBS[:1], LABELS[:1]).coverage.tolist() == [1.0]


def test_the_figure_names_its_curves_whatever_they_are_called() -> None:
    pytest.importorskip("matplotlib")
    curve = prepare_risk_coverage(PROBS, LABELS)
    figure = draw_risk_coverage({"in $": {"a $b": curve, "c": curve}, "out": {"c": curve}})
    shown = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in figure.axes]
    assert shown == [
        [rf"a \$b (area {curve.area:.3f})", f"c (area {curve.area:.3f})"],
        [f"c (area {curve.area:.3f})"],
    ]
    assert [axes.get_title(loc="left") for axes in figure.axes] == [r"in \$", "out"]
