"""Training curves."""

import pytest

from calmix.report import draw_curves, fine_tuned, prepare_curves

HISTORY = [
    {"epoch": 1, "loss": 1.5, "dev": {"nll": 1.0, "nll-ts": 0.9, "accuracy": 0.5, "ece": 0.1}},
    {"epoch": 2, "loss": 1.0, "dev": {"nll": None, "nll-ts": 0.7, "accuracy": 0.6, "ece": 0.05}},
]


def test_each_panel_has_the_series_that_the_log_has() -> None:
    found = prepare_curves(HISTORY, best=2)
    assert found.epochs == (1, 2)
    assert list(found.panels) == ["loss", "accuracy", "calibration error (ECE)"]
    assert found.panels["loss"] == {
        "training loss": (1.5, 1.0),
        "dev NLL": (1.0, None),
        "dev NLL, scaled": (0.9, 0.7),
    }


def test_a_log_without_dev_has_the_loss_alone_and_none_has_nothing() -> None:
    assert list(prepare_curves([{"epoch": 1, "loss": 0.5}]).panels) == ["loss"]
    assert prepare_curves([]).panels == {}


def test_the_figure_has_a_panel_each() -> None:
    pytest.importorskip("matplotlib")
    figure = draw_curves(prepare_curves(HISTORY, best=2))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["loss", "accuracy", "calibration error (ECE)"]
    shown = [text.get_text() for text in figure.axes[1].get_legend().get_texts()]
    assert shown == ["dev accuracy", "kept"]


BEFORE = {"epoch": 0, "step": 0, "loss": None, "dev": {"nll": 1.1, "nll-ts": 0.95, "accuracy": 0.4, "ece": 0.2}}


def test_what_was_before_fine_tuning_is_a_point_of_its_own() -> None:
    pytest.importorskip("matplotlib")
    curves = prepare_curves([BEFORE, *HISTORY], best=0)
    assert curves.epochs == (0, 1, 2)
    assert curves.panels["loss"]["training loss"] == (None, 1.5, 1.0)
    axes = draw_curves(curves).axes[1]
    line, point = axes.lines[:2]
    assert (line.get_xdata().tolist(), point.get_xdata().tolist()) == ([1, 2], [0])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["dev accuracy", "kept"]
    named = axes.xaxis.get_major_formatter()
    assert (named(0), named(2)) == ("before", "2")


def test_without_fine_tuning_there_are_no_curves() -> None:
    assert prepare_curves([BEFORE], best=0).panels == {}
    assert not fine_tuned([BEFORE])
    assert fine_tuned([BEFORE, *HISTORY])
