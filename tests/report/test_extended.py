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
