"""Calibrating a model that is there: folded, or kept beside it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from calmix.calibration import Temperature
from calmix.data import Examples
from calmix.errors import InputError
from calmix.models import Classifier, folded_temperature, load
from calmix.training import calibrate, measure

OTHER = ["vector", "isotonic", "histogram"]


@pytest.fixture
def classifier(checkpoint: Any) -> Classifier:
    return load(checkpoint("bert"))


def labelled(classifier: Classifier, rows: int, *, seed: int) -> Examples:
    """Return sentences with labels as the classifier would have them at temperature 0.3: it is too modest."""
    examples, rng = tiny.examples(rows, seed=seed), np.random.default_rng(seed)
    probs = np.asarray(Temperature(0.3)(classifier.logits(examples)))
    return replace(examples, labels=np.array([rng.choice(3, p=p) for p in probs]))


@pytest.fixture
def new(classifier: Classifier) -> Examples:
    return labelled(classifier, 150, seed=7)


def test_a_temperature_goes_into_the_weights(classifier: Classifier, tmp_path: Path, new: Examples) -> None:
    from transformers import AutoModelForSequenceClassification

    out = tmp_path / "out"
    figures = calibrate(classifier, new, out=out)
    model = AutoModelForSequenceClassification.from_pretrained(out).eval()
    inputs = classifier.tokenizer(new.column("text"), padding=True, return_tensors="pt")
    with torch.no_grad():
        probs = torch.softmax(model(**inputs).logits.double(), -1).numpy()
    expected = torch.softmax(torch.from_numpy(classifier.logits(new)).double() / figures["temperature"], -1)
    np.testing.assert_allclose(probs, expected, atol=1e-5)
    fit = figures["splits"]["fit"]
    assert fit["after"]["accuracy"] == fit["before"]["accuracy"]
    assert fit["after"]["nll"] < fit["before"]["nll"]
    assert fit["after"]["nll"] == pytest.approx(measure(probs, new.labels)["nll"], abs=1e-5)
    assert not (out / "calmix.json").exists()


def test_the_classifier_that_was_given_stays_as_it_was(classifier: Classifier, tmp_path: Path, new: Examples) -> None:
    before = classifier.logits(new)
    calibrate(classifier, new, out=tmp_path / "out")
    np.testing.assert_array_equal(classifier.logits(new), before)
    assert folded_temperature(classifier.model) == 1.0


def test_temperatures_compose(classifier: Classifier, tmp_path: Path, new: Examples) -> None:
    first = calibrate(classifier, new, out=tmp_path / "a")["temperature"]
    other = labelled(classifier, 60, seed=8)
    second = calibrate(load(tmp_path / "a"), other, out=tmp_path / "b")["temperature"]
    assert folded_temperature(load(tmp_path / "b").model) == pytest.approx(first * second)
    again = calibrate(load(tmp_path / "b"), other, out=tmp_path / "c")["temperature"]
    assert again == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("method", OTHER)
def test_other_methods_are_kept_beside_the_weights_and_applied_by_load(
    classifier: Classifier, tmp_path: Path, method: Any, new: Examples
) -> None:
    out = tmp_path / "out"
    figures = calibrate(classifier, new, out=out, method=method)
    loaded = load(out)
    np.testing.assert_array_equal(loaded.logits(new), classifier.logits(new))
    after = measure(loaded.probabilities(new), new.labels)
    assert figures["splits"]["fit"]["after"]["accuracy"] == after["accuracy"]
    assert figures["splits"]["fit"]["after"]["ece"] == pytest.approx(after["ece"])
    assert not np.allclose(loaded.probabilities(new), classifier.probabilities(new))
    assert json.loads((out / "calmix.json").read_text())["recalibrator"]["kind"] in (method, "vector")


def test_a_new_recalibrator_takes_the_place_of_the_old(classifier: Classifier, tmp_path: Path, new: Examples) -> None:
    calibrate(classifier, new, out=tmp_path / "a", method="isotonic")
    figures = calibrate(load(tmp_path / "a"), new, out=tmp_path / "b", method="temperature")
    assert load(tmp_path / "b").beside.recalibrator is None
    isotonic = load(tmp_path / "a").probabilities(new)
    assert figures["splits"]["fit"]["before"]["accuracy"] == measure(isotonic, new.labels)["accuracy"]


@pytest.mark.parametrize("method", ["temperature", *OTHER])
def test_figures_are_strict_json(classifier: Classifier, tmp_path: Path, method: Any, new: Examples) -> None:
    figures = calibrate(classifier, new, out=tmp_path / "out", method=method, guarantee=0.5)
    json.dumps(figures, allow_nan=False)


def test_a_guarantee_is_made_on_the_other_half(classifier: Classifier, tmp_path: Path, new: Examples) -> None:
    figures = calibrate(classifier, new, out=tmp_path / "out", method="vector", guarantee=0.4)
    assert {name: f["before"]["n"] for name, f in figures["splits"].items()} == {"fit": 75, "guard": 75}
    beside = load(tmp_path / "out").beside
    assert beside.threshold is not None
    assert beside.sets is not None
    assert beside.recalibrator is not None
    assert figures["guarantee"]["threshold"]["accuracy"] == 0.4
    assert figures["promises"]["rows"] == 75
    assert [one["label"] for one in figures["splits"]["fit"]["after"]["rare"]] == ["food"]  # 8 of 75


def test_a_guarantee_that_these_rows_can_never_give_is_said_before_anything_is_predicted(
    classifier: Classifier, tmp_path: Path, new: Examples
) -> None:
    heard: list[Any] = []
    calibrate(
        classifier, new, out=tmp_path / "out", guarantee=0.95, progress=lambda _: heard.append(1), on_note=heard.append
    )
    assert "95% can never be promised from 75 held-out rows: it takes at least 104" in heard[0]
    assert set(heard[1:]) == {1}


def test_a_guarantee_is_void_once_the_model_is_calibrated_anew(
    classifier: Classifier, tmp_path: Path, new: Examples
) -> None:
    calibrate(classifier, new, out=tmp_path / "a", guarantee=0.4)
    calibrate(load(tmp_path / "a"), new, out=tmp_path / "b")
    assert load(tmp_path / "b").beside.threshold is None


def test_choices_are_calibrated_by_temperature_alone(checkpoint: Any, tmp_path: Path) -> None:
    model, data = load(checkpoint("bert", choices=True)), tiny.examples(40, kind="choices")
    figures = calibrate(model, data, out=tmp_path / "out", guarantee=0.3)
    assert figures["temperature"] > 0
    with pytest.raises(InputError, match="corrects classes, and choices are none: use a temperature"):
        calibrate(model, data, out=tmp_path / "other", method="isotonic")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"guarantee": 1.5}, "--guarantee must lie between 0 and 1"),
        ({"bins": 0}, "--bins must be at least 1"),
        ({"examples": tiny.examples(9, kind="choices")}, "this model reads plain texts or pairs"),
        ({"examples": tiny.examples(2), "guarantee": 0.9}, "too few to set some aside"),
    ],
)
def test_what_cannot_be_done_leaves_nothing(
    classifier: Classifier, tmp_path: Path, changes: dict[str, Any], message: str, new: Examples
) -> None:
    examples = changes.pop("examples", new)
    with pytest.raises(InputError, match=message):
        calibrate(classifier, examples, out=tmp_path / "deep" / "out", **changes)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_while_writing_leaves_nothing(
    classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new: Examples
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("calmix.training.correcting.write_beside", full)
    with pytest.raises(OSError, match="No space"):
        calibrate(classifier, new, out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_folder_may_be_where_we_stand(
    classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new: Examples
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    calibrate(classifier, new, out=Path())
    assert load(tmp_path / "here").label_names == tiny.LABELS


def test_a_folder_in_use_is_refused(classifier: Classifier, tmp_path: Path, checkpoint: Any, new: Examples) -> None:
    shutil.copytree(checkpoint("bert"), tmp_path / "out")
    with pytest.raises(InputError, match="holds a model already"):
        calibrate(classifier, new, out=tmp_path / "out")
