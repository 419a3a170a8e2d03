"""Methods of a study side by side."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calmix.report.figures import save_figure
from calmix.report.methods import draw_methods, prepare_methods


def _row(method: str, seed: int, ece: float, **changes: Any) -> dict[str, Any]:
    row = {"task": "t", "model": "m", "setting": "", "method": method, "seed": seed, "data": "test", "scaled": False}
    return {**row, "accuracy": 0.8, "ece": ece, **changes}


def test_a_point_is_the_mean_over_seeds() -> None:
    rows = [_row("a", 0, 0.1), _row("a", 1, 0.3), _row("a", 0, 0.05, scaled=True), _row("b", 0, 0.2, data="ood-far")]
    first, scaled, far = prepare_methods(rows)
    assert (first.place, first.method, first.scaled) == ("t", "a", False)
    assert (first.ece, first.spread) == (pytest.approx(0.2), pytest.approx(np.std([0.1, 0.3], ddof=1)))
    assert (scaled.scaled, np.isnan(scaled.spread)) == (True, True)
    assert far.place == "t → far"


def test_models_are_told_apart_where_there_are_several() -> None:
    rows = [_row("a", 0, 0.1), _row("a", 0, 0.2, model="x/other", setting="long")]
    assert [point.place for point in prepare_methods(rows)] == ["t · m", "t · other · long"]


def test_there_is_a_panel_for_each_data_set_and_a_name_for_each_method(tmp_path: Path) -> None:
    rows = [_row(method, 0, 0.1, data=data) for data in ("test", "ood-far") for method in ("a", "b")]
    figure = draw_methods(prepare_methods(rows), title="both")
    assert [axes.get_title("left") for axes in figure.axes] == ["t", "t → far"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]
    save_figure(figure, tmp_path / "study.svg")
    assert (tmp_path / "study.svg").stat().st_size > 1000
