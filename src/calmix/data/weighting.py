"""How much each class counts."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from calmix.data.examples import Examples
from calmix.errors import InputError

__all__ = ["ClassWeights", "class_weights_of"]

ClassWeights = str | Mapping[str, float]
"""`balanced`, or weights by label name."""


def class_weights_of(examples: Examples, weights: ClassWeights | None) -> NDArray[np.float64] | None:
    """Return a weight for each class with mean 1 over the training rows, so that the learning rate keeps its meaning.

    `balanced` gives each class the same total; a mapping gives weights by name, 1 for the others.
    """
    if weights is None:
        return None
    if examples.kind == "choices":
        raise InputError("class weights are for classes: multiple-choice data has none")
    names = examples.label_names
    found = examples.labels[examples.labels >= 0]
    share = np.bincount(found, minlength=len(names)) / max(1, len(found))
    if examples.targets is not None:
        share = examples.targets.mean(axis=0)
    if weights == "balanced":
        given = np.where(share > 0, 1 / np.where(share > 0, share, 1), 0.0)
    elif not isinstance(weights, Mapping) or not all(isinstance(w, int | float) for w in weights.values()):
        raise InputError(f"class weights are 'balanced' or one number per label, not {weights!r}")
    else:
        unknown = set(weights) - set(names)
        if unknown:
            raise InputError(f"class weights name {min(unknown)!r}, which is not a label (they are {', '.join(names)})")
        if any(not 0 <= w < float("inf") for w in weights.values()):
            raise InputError("class weights must be numbers, 0 or above")
        given = np.array([float(weights.get(name, 1.0)) for name in names])
    mean = float((given * share).sum())
    if mean == 0:
        raise InputError("class weights are 0 for every label that occurs")
    return np.asarray(given / mean)
