"""Distributions of scores, familiar and not."""

import numpy as np
import pyarrow as pa
import pytest

from calmix.calibration import ood_auroc
from calmix.errors import InputError
from calmix.report import draw_unfamiliar, prepare_unfamiliar


@pytest.fixture
def table() -> pa.Table:
    rng = np.random.default_rng(0)
    rows = 200
    model = np.repeat(["plain", "mix$ed"], 2 * rows)
    data = np.tile(np.repeat(["noise", "test"], rows), 2)
    return pa.table(
        {
            "model": model,
            "data": data,
            "inside": data == "test",
            "max_probability": rng.uniform(0.4, 1, 4 * rows),
            "negative_entropy": rng.normal(size=4 * rows),
            "margin": rng.uniform(size=4 * rows),
            "negative_energy": pa.array([None if m == "plain" else 1.0 for m in model], pa.float64()),
        }
    )


def test_each_model_has_a_density_on_each_data_set_familiar_first(table: pa.Table) -> None:
    found = prepare_unfamiliar(table, bins=10)
    assert list(found) == ["test", "noise"]
    assert list(found["noise"]) == ["plain", "mix$ed"]
    scores = np.asarray(table["max_probability"])
    noise = found["noise"]["plain"]
    assert noise.auroc == ood_auroc(scores[200:400], scores[:200])
    assert found["test"]["plain"].auroc is None
    assert (noise.density * np.diff(noise.edges)).sum() == pytest.approx(1)
    assert noise.mean == pytest.approx(scores[:200].mean())


def test_a_score_that_some_models_lack_is_drawn_for_the_others(table: pa.Table) -> None:
    found = prepare_unfamiliar(table, score="negative_energy")
    assert list(found["noise"]) == ["mix$ed"]
    with pytest.raises(InputError, match="no model there has"):
        prepare_unfamiliar(table.slice(0, 400), score="negative_energy")
    with pytest.raises(InputError, match="a score is one of"):
        prepare_unfamiliar(table, score="luck")


def test_the_figure_has_a_panel_for_each_data_set_and_says_the_area(table: pa.Table) -> None:
    panels = prepare_unfamiliar(table)
    figure = draw_unfamiliar(panels)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["test, familiar", "noise"]
    labels = [text.get_text() for text in figure.axes[1].get_legend().get_texts()]
    assert labels[0] == f"plain (AUROC {panels['noise']['plain'].auroc:.1%})"
    assert labels[1].startswith(r"mix\$ed")
