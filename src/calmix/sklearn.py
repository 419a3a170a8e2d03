"""A classifier with scikit-learn's manners: `fit`, `predict`, `predict_proba`, `get_params`."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from calmix.data import Examples
from calmix.errors import InputError

if TYPE_CHECKING:
    from calmix.mixing import Recipe
    from calmix.models import HeadStart, Pooling
    from calmix.training.selecting import Selection

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted
except ImportError:
    raise ImportError("TextClassifier needs scikit-learn: pip install 'calmix[sklearn]'") from None

__all__ = ["TextClassifier"]


class TextClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A calibrated text classifier for scikit-learn's tools, `cross_val_predict` and `GridSearchCV` among them.

    The arguments are some of those of `calmix.train`, with its defaults; `class_weights` goes by the classes as they
    are in `y`. The epoch and the temperature are chosen by a part of the data given to `fit`, `dev_fraction` of it, or,
    where that is little, by `folds`. A fitted one has `classes_`, the `calmix.Classifier` (`classifier_`) and the run's
    figures (`metrics_`).
    """

    def __init__(
        self,
        *,
        model: str = "minilm",
        recipe: "str | Recipe" = "erm",
        options: Mapping[str, Any] | None = None,
        head: "HeadStart | None" = None,
        pooling: "Pooling | None" = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        weight_decay: float | None = None,
        warmup: float | None = None,
        max_length: int = 256,
        select: "Selection" = "nll-ts",
        patience: int = 0,
        dev_fraction: float | None = None,
        folds: int | None = None,
        class_weights: str | Mapping[Any, float] | None = None,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.recipe = recipe
        self.options = options
        self.head = head
        self.pooling = pooling
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.warmup = warmup
        self.max_length = max_length
        self.select = select
        self.patience = patience
        self.dev_fraction = dev_fraction
        self.folds = folds
        self.class_weights = class_weights
        self.seed = seed

    def fit(self, X: Sequence[Any] | NDArray[Any], y: Sequence[Any] | NDArray[Any]) -> Self:
        """Train on texts, or pairs of texts, and their labels. If that fails, what was fitted before stays."""
        from calmix.models import load
        from calmix.training import train

        first, second = _columns(X)
        labels = _labels(y)
        if len(first) != len(labels):
            raise InputError(f"there are {len(first)} texts and {len(labels)} labels")
        classes, positions = np.unique(labels, return_inverse=True)
        names = tuple(str(name) for name in classes)
        # Set, not read: a class called "" or "nan" is a class here, no gap in a table.
        examples = replace(
            Examples.from_texts(first, text_b=second), labels=positions.astype(np.int64), label_names=names
        )
        settings = {**self.get_params(deep=False), "class_weights": _by_name(self.class_weights, classes)}
        with tempfile.TemporaryDirectory(prefix="calmix-") as folder:
            run = train(examples, out=Path(folder) / "run", merge_labels=False, **settings)
            classifier = load(run.model)
        self.classes_, self.classifier_, self.metrics_ = classes, classifier, run.metrics
        return self

    def predict_proba(self, X: Sequence[Any] | NDArray[Any]) -> NDArray[np.float64]:
        """Return calibrated probabilities, one column per class of `classes_`."""
        check_is_fitted(self, "classifier_")
        first, second = _columns(X)
        return self.classifier_.predict_proba(first if second is None else list(zip(first, second, strict=True)))

    def predict(self, X: Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
        """Return the most probable class of each text."""
        winners = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[winners])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags


def _by_name(weights: Any, classes: NDArray[Any]) -> Any:
    """Return class weights by the names that training knows classes by; what is no mapping as it is."""
    if not isinstance(weights, Mapping):
        return weights
    names = {value: str(name) for value, name in zip(classes.tolist(), classes, strict=True)}
    return {names.get(value, str(value)): weight for value, weight in weights.items()}


def _labels(y: Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
    rows = y.to_numpy() if hasattr(y, "to_numpy") else y
    labels = np.asarray(rows)
    if labels.ndim == 2 and labels.shape[1] == 1:
        rows = labels = labels[:, 0]
    if labels.ndim != 1:
        raise InputError(f"y must hold one label for each text, not be of shape {labels.shape}")
    # Looked for in what was given: numpy makes the text "nan" of a gap among texts, and a class of one among numbers.
    _check_complete("y", "label", [_is_missing(label) for label in rows])
    if labels.dtype.kind == "f":  # of others, scikit-learn takes numbers in a column of objects for no labels
        try:
            check_classification_targets(labels)
        except ValueError as error:
            raise InputError(str(error)) from None
    return labels


def _columns(X: Sequence[Any] | NDArray[Any]) -> tuple[list[str], list[str] | None]:
    # A data frame iterates over the names of its columns; of one column, its rows are texts.
    if hasattr(X, "to_numpy"):
        X = X.to_numpy()
    if isinstance(X, np.ndarray) and X.ndim == 2 and X.shape[1] == 1:
        X = X[:, 0]
    rows = [] if isinstance(X, str) else list(X)
    if rows and all(isinstance(row, str) for row in rows):
        return rows, None
    cells = [tuple(row) if isinstance(row, Sequence | np.ndarray) and not isinstance(row, str) else row for row in rows]
    _check_complete("X", "text", [any(map(_is_missing, c)) if isinstance(c, tuple) else _is_missing(c) for c in cells])
    if rows and all(isinstance(c, tuple) and len(c) == 2 and all(isinstance(t, str) for t in c) for c in cells):
        return [cell[0] for cell in cells], [cell[1] for cell in cells]
    raise InputError("X must hold texts, or pairs of texts")


def _check_complete(name: str, what: str, missing: Sequence[bool]) -> None:
    if any(missing):
        more = f" (and {sum(missing) - 1} more rows)" if sum(missing) > 1 else ""
        raise InputError(f"{name}: no {what} at row {missing.index(True) + 1}{more}; fill in or drop such rows")


def _is_missing(value: Any) -> bool:
    """Return whether a value stands for none: `None`, NaN, pandas' `NaT` and `NA`."""
    # Only gaps differ from themselves, and pandas' NA does not even say whether it does.
    differs = value != value  # noqa: PLR0124
    return value is None or not isinstance(differs, bool | np.bool_) or bool(differs)
