"""Models side by side on unfamiliar data."""

from typing import Any

import numpy as np
import pytest
import tiny

from calmix.calibration import ood_auroc
from calmix.models import Dropout, classifier, load
from calmix.training.comparing import compare_unfamiliar, comparison_table
from calmix.training.unfamiliar import ask


def test_each_run_is_asked_as_trained_calibrated_and_with_dropout(quick: Any) -> None:
    run, inside, outside = quick(), tiny.examples(12, seed=3), {"other": tiny.examples(9, seed=4)}
    told: list[int] = []
    model = load(run.folder)
    found = compare_unfamiliar([("a", "x", model)], inside, outside, passes=3, rate=0.4, progress=told.append)
    assert list(found.figures) == ["a", "a +TS", "a +dropout"]
    assert sum(told) == 3 * 21
    raw = model.unscaled()
    expected = [ask(raw, each).scores["max_probability"] for each in (inside, outside["other"])]
    assert found.figures["a"]["data"]["other"]["max_probability"]["auroc"] == ood_auroc(*expected)
    sure = ask(load(run.folder, mc_dropout=Dropout(3, 0.4)), inside).scores["max_probability"]
    dropped = next(s for m, d, s in found.said if (m, d) == ("a +dropout", "test"))
    assert not np.allclose(dropped.scores["max_probability"], expected[0])
    assert not np.allclose(dropped.scores["max_probability"], sure)  # its temperature is taken out


def test_runs_of_one_name_are_seeds_of_one_method(checkpoint: Any) -> None:
    inside, outside = tiny.examples(12), {"other": tiny.examples(9, seed=4)}
    models = [("a", name, load(checkpoint(name))) for name in ("bert", "electra")]
    both = compare_unfamiliar(models, inside, outside)
    each = [compare_unfamiliar([model], inside, outside) for model in models]
    assert list(both.figures) == ["a"]  # neither has a temperature
    areas = [one.figures["a"]["data"]["other"]["margin"]["auroc"] for one in each]
    found = both.figures["a"]["data"]["other"]["margin"]
    assert found["auroc"] == pytest.approx(np.mean(areas))
    assert found["spread"] == pytest.approx(np.std(areas, ddof=1))
    assert len(both.said) == 4
    table = comparison_table(both.figures)
    assert table["score"].to_pylist() == ["max_probability", "negative_entropy", "margin", "negative_energy"]
    assert table["auroc"].to_pylist()[2] == found["auroc"]


def test_ensembles_are_compared_too(checkpoint: Any) -> None:
    both = load([checkpoint("bert"), checkpoint("electra")])
    found = compare_unfamiliar([("e", "x", both)], tiny.examples(6), {"o": tiny.examples(6, seed=1)}, passes=2)
    assert list(found.figures) == ["e", "e +dropout"]
    assert "negative_energy" not in found.figures["e"]["data"]["o"]


def test_what_models_read_alike_is_made_ready_once(
    quick: Any, image_checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def counted(kind: str) -> Any:
        make = getattr(classifier, kind)
        return lambda *given, **options: made.append(kind) or make(*given, **options)

    for kind in ("encode", "pack_images"):
        monkeypatch.setattr(classifier, kind, counted(kind))
    compare_unfamiliar(
        [("a", "x", load(quick().folder))], tiny.examples(6), {"o": tiny.examples(6)}, passes=2, rate=0.4
    )
    assert made == ["encode"] * 2  # as trained, calibrated and with dropout
    made.clear()
    folder = image_checkpoint("resnet")
    models = [("a", "x", load(folder)), ("b", "y", load([folder, folder]))]
    compare_unfamiliar(models, tiny.images(6), {"o": tiny.images(6, seed=1)})
    assert made == ["pack_images"] * 2  # all of them, and an ensemble's members
