"""Loss and calibration over the epochs of several runs."""

import pytest

from calmix.errors import InputError
from calmix.report import draw_extended, prepare_extended


def test_every_epoch_of_every_run_is_a_row() -> None:
    history = [{"epoch": e, "loss": 1 / e, "dev": {"accuracy": 0.5, "ece": 0.1 * e, "nll": 1.0}} for e in (1, 2, 3)]
    table = prepare_extended({"plain": history, "map": [{"epoch": 1, "loss": 2.0}]})
    assert table["run"].to_pylist() == ["plain"] * 3 + ["map"]
    assert table["ece"].to_pylist() == [0.1, 0.2, pytest.approx(0.3), None]
    figure = draw_extended(table)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "training loss",
        "ECE on dev data",
        "accuracy on dev data",
    ]
    assert figure.axes[1].lines[0].get_ydata().tolist() == pytest.approx([0.1, 0.2, 0.3])
    with pytest.raises(InputError, match="no log of its epochs"):
        prepare_extended({"empty": []})


def test_what_was_before_fine_tuning_has_no_training_loss_and_is_joined_to_nothing() -> None:
    before = {"epoch": 0, "loss": None, "dev": {"accuracy": 0.4, "ece": 0.2, "nll": 1.2}}
    after = [{"epoch": e, "loss": 1 / e, "dev": {"accuracy": 0.5, "ece": 0.1, "nll": 1.0}} for e in (1, 2)]
    table = prepare_extended({"run": [before, *after]})
    assert table["loss"].to_pylist() == [None, 1.0, 0.5]
    line, point = draw_extended(table).axes[2].lines
    assert (line.get_xdata().tolist(), point.get_xdata().tolist()) == ([1, 2], [0])
    with pytest.raises(InputError, match="was not fine-tuned"):
        prepare_extended({"run": [before]})
