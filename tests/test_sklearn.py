"""`TextClassifier` among scikit-learn's tools."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict

from calmix import TextClassifier
from calmix.errors import InputError

TEXTS, LABELS = tiny.texts(36)


@pytest.fixture
def estimator(checkpoint: Any) -> TextClassifier:
    return TextClassifier(model=checkpoint("bert"), epochs=2, lr=1e-2, batch_size=8, dev_fraction=0.3)


def test_parameters_are_those_of_train_with_its_defaults() -> None:
    import inspect

    from calmix.training import train

    known = inspect.signature(train).parameters
    for name, value in TextClassifier().get_params().items():
        assert known[name].default == value, name


def test_parameters_come_and_go_as_they_were_given(estimator: TextClassifier) -> None:
    twin = clone(estimator.set_params(seed=5, options={"smoothing": 0.1}))
    assert twin is not estimator
    assert twin.get_params() == estimator.get_params()
    assert is_classifier(estimator)


def test_probabilities_are_calibrated_and_in_the_order_of_the_classes(estimator: TextClassifier) -> None:
    fitted = estimator.fit(TEXTS, LABELS)
    probs = fitted.predict_proba(TEXTS)
    assert fitted.classes_.tolist() == ["animal", "food", "weather"]
    np.testing.assert_allclose(probs.sum(1), 1)
    assert fitted.predict(TEXTS).tolist() == [fitted.classes_[k] for k in probs.argmax(1)]
    assert 0 <= fitted.score(TEXTS, LABELS) <= 1
    assert fitted.metrics_["rows"]["train"] + fitted.metrics_["rows"]["dev"] == 36


@pytest.mark.parametrize("fails", ["recipe", "too few rows", "loading"])
def test_a_fit_that_fails_leaves_what_was_fitted_before(
    estimator: TextClassifier, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    fitted = estimator.set_params(epochs=1).fit(TEXTS, LABELS)
    before, figures = fitted.predict(TEXTS).tolist(), fitted.metrics_
    others = [f"other {label}" for label in LABELS]
    if fails == "recipe":
        estimator.set_params(recipe="no such recipe")
    elif fails == "loading":
        monkeypatch.setattr("calmix.models.load", lambda _: (_ for _ in ()).throw(OSError("disk gone")))
    rows = 2 if fails == "too few rows" else 36
    with pytest.raises((InputError, OSError)):
        estimator.fit(TEXTS[:rows], others[:rows])
    assert fitted.classes_.tolist() == ["animal", "food", "weather"]
    assert fitted.predict(TEXTS).tolist() == before
    assert fitted.metrics_ is figures


def test_a_fit_that_fails_the_first_time_leaves_nothing_fitted(estimator: TextClassifier) -> None:
    with pytest.raises(InputError):
        estimator.set_params(recipe="no such recipe").fit(TEXTS, LABELS)
    with pytest.raises(NotFittedError):
        estimator.predict(TEXTS)
    assert not hasattr(estimator, "classes_")


def test_fitting_twice_gives_the_same(estimator: TextClassifier) -> None:
    first = estimator.fit(TEXTS, LABELS).predict_proba(TEXTS)
    np.testing.assert_array_equal(clone(estimator).fit(TEXTS, LABELS).predict_proba(TEXTS), first)


@pytest.mark.parametrize(
    "classes",
    [
        [10, 2, 3],
        [True, False, True],
        ["b", "a", "c"],
        [1.0, 2.0, 3.0],
        [" padded", "", "nan"],
        np.array([-1, 0, 1]),
        np.array(["x", "y", "z"], dtype=object),
    ],
)
def test_classes_may_be_of_any_kind(estimator: TextClassifier, classes: Any) -> None:
    y = np.array([classes[tiny.LABELS.index(label)] for label in LABELS])
    fitted = estimator.set_params(epochs=1).fit(np.array(TEXTS), y)
    assert fitted.classes_.tolist() == sorted(set(y.tolist()))
    found = fitted.predict(TEXTS)
    assert found.dtype == fitted.classes_.dtype
    assert set(found.tolist()) <= set(y.tolist())


def test_classes_that_differ_in_case_alone_are_classes(estimator: TextClassifier) -> None:
    texts, labels = tiny.texts(30)
    spelt = [label.upper() if i % 2 else label for i, label in enumerate(labels)]
    fitted = estimator.fit(texts, spelt)
    assert fitted.classes_.tolist() == sorted(set(spelt))
    assert fitted.predict_proba(texts).shape == (30, 6)


def test_class_weights_go_by_the_classes_names(estimator: TextClassifier) -> None:
    y = [tiny.LABELS.index(label) for label in LABELS]
    estimator.set_params(class_weights={"1": 5.0}, epochs=1).fit(TEXTS, y)
    with pytest.raises(InputError, match="class weights name 'food'"):
        estimator.set_params(class_weights={"food": 5.0}).fit(TEXTS, y)


@pytest.mark.parametrize(
    ("classes", "weights"),
    [
        ([7, 8, 9], {7: 5.0, 8: 0}),
        ([7, 8, 9], {np.int64(7): 5.0, "8": 0}),
        ([7.0, 8.0, 9.0], {7: 5.0, 8.0: 0}),
        (["a", "b", "c"], {"a": 5.0, "b": 0}),
    ],
)
def test_class_weights_go_by_the_classes_themselves(
    estimator: TextClassifier, classes: list[Any], weights: dict[Any, float]
) -> None:
    y = [classes[tiny.LABELS.index(label)] for label in LABELS]
    probs = estimator.set_params(class_weights=weights, epochs=1).fit(TEXTS, y).predict_proba(TEXTS)
    named = {str(classes[0]): 5.0, str(classes[1]): 0}
    expected = clone(estimator).set_params(class_weights=named).fit(TEXTS, y).predict_proba(TEXTS)
    np.testing.assert_array_equal(probs, expected)
    assert estimator.get_params()["class_weights"] == weights


def test_a_class_weight_of_no_class_is_told_whatever_kind_it_is(estimator: TextClassifier) -> None:
    y = [tiny.LABELS.index(label) for label in LABELS]
    with pytest.raises(InputError, match=r"class weights name '9', which is not a label \(they are 0, 1, 2\)"):
        estimator.set_params(class_weights={9: 5.0, "food": 1.0}).fit(TEXTS, y)


def test_pairs_are_rows_of_two(estimator: TextClassifier) -> None:
    others = tiny.texts(36, seed=1)[0]
    pairs = list(zip(TEXTS, others, strict=True))
    fitted = estimator.fit(pairs, LABELS)
    np.testing.assert_allclose(fitted.predict_proba(np.array(pairs)), fitted.predict_proba(pairs))


def test_a_frame_of_texts_is_read_by_rows(estimator: TextClassifier) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": TEXTS, "b": TEXTS[::-1]})
    estimator.fit(frame[["a"]], LABELS)
    expected = estimator.predict_proba(TEXTS[:3])
    for same in (frame[["a"]][:3], frame["a"][:3], frame[["a"]][:3].to_numpy()):
        np.testing.assert_array_equal(estimator.predict_proba(same), expected)
    estimator.fit(frame, LABELS)
    np.testing.assert_array_equal(
        estimator.predict_proba(frame[:2]), estimator.predict_proba(list(zip(TEXTS[:2], TEXTS[:-3:-1], strict=True)))
    )


def test_cross_validation_gives_each_text_a_prediction(estimator: TextClassifier) -> None:
    probs = cross_val_predict(estimator, np.array(TEXTS), LABELS, cv=2, method="predict_proba")
    assert probs.shape == (36, 3)


def test_a_grid_search_finds_a_setting(estimator: TextClassifier) -> None:
    search = GridSearchCV(estimator, {"lr": [1e-3, 1e-2], "epochs": np.array([1])}, cv=2, error_score="raise")
    search.fit(TEXTS, LABELS)
    assert search.best_params_["lr"] in (1e-3, 1e-2)
    assert search.predict(TEXTS[:2]).shape == (2,)


def test_a_fitted_one_can_be_pickled(estimator: TextClassifier) -> None:
    fitted = estimator.fit(TEXTS, LABELS)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(TEXTS[:3]), fitted.predict_proba(TEXTS[:3]))


def test_one_that_was_not_fitted_says_so(estimator: TextClassifier) -> None:
    for method in (estimator.predict, estimator.predict_proba):
        with pytest.raises(NotFittedError):
            method(TEXTS)


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        (TEXTS, LABELS[:-1], "there are 36 texts and 35 labels"),
        ([1, 2, 3], ["a", "b", "c"], "X must hold texts, or pairs of texts"),
        ([("a", "b", "c")] * 3, ["a", "b", "c"], "X must hold texts, or pairs of texts"),
        (["a", ("b", "c")], ["a", "b"], "X must hold texts, or pairs of texts"),
        (TEXTS, ["a"] * 36, "every row has the same label"),
        ("one text", ["a"] * 8, "X must hold texts, or pairs of texts"),
        (TEXTS, np.zeros((36, 2)), "y must hold one label for each text"),
        (TEXTS, [np.nan, *LABELS[1:]], "y: no label at row 1; fill in or drop such rows"),
        (TEXTS, [*LABELS[:-1], None], "y: no label at row 36; fill in or drop such rows"),
        (TEXTS, np.array([0.0, np.nan, 1.0] * 12), r"y: no label at row 2 \(and 11 more rows\)"),
        ([*TEXTS[:2], np.nan, None, *TEXTS[4:]], LABELS, r"X: no text at row 3 \(and 1 more rows\); fill in or drop"),
        ([("a", "b"), ("a", None)] * 18, LABELS, r"X: no text at row 2 \(and 17 more rows\); fill in or drop"),
        ([(1.0, 2.0)] * 36, LABELS, "X must hold texts, or pairs of texts"),
    ],
)
def test_what_is_wrong_is_told(estimator: TextClassifier, texts: Any, labels: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        estimator.fit(texts, labels)


def test_labels_may_be_a_column(estimator: TextClassifier) -> None:
    fitted = estimator.set_params(epochs=1).fit(TEXTS, np.array(LABELS)[:, None])
    assert fitted.classes_.tolist() == ["animal", "food", "weather"]


def test_gaps_in_a_frame_are_told(estimator: TextClassifier) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": TEXTS, "b": TEXTS[::-1], "label": LABELS}, dtype="string")
    frame.loc[4, ["b", "label"]] = pandas.NA
    with pytest.raises(InputError, match="X: no text at row 5; fill in or drop"):
        estimator.fit(frame[["a", "b"]], LABELS)
    for labels in (frame["label"], frame[["label"]], frame["label"].astype("category")):
        with pytest.raises(InputError, match="y: no label at row 5; fill in or drop"):
            estimator.fit(frame["a"], labels)


def test_nothing_is_left_on_disk(estimator: TextClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    estimator.fit(TEXTS, LABELS)
    assert list(tmp_path.iterdir()) == []


def test_without_scikit_learn_the_remedy_is_named() -> None:
    code = "import sys; sys.modules['sklearn'] = None\nimport calmix\ncalmix.TextClassifier"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: TextClassifier needs scikit-learn: pip install 'calmix[sklearn]'" in done.stderr


def test_numbers_with_fractions_are_no_labels(estimator: TextClassifier) -> None:
    with pytest.raises(InputError, match="Unknown label type: continuous"):
        estimator.fit(TEXTS, np.linspace(0, 1, len(TEXTS)))
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        estimator.fit(TEXTS, [0.5, 1.5] * 18)
