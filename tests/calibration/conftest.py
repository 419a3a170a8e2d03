"""What the tests of this room share: awkward probabilities, and data whose true probabilities are known."""

import numpy as np
import pytest
from hypothesis import strategies as st


@st.composite
def _awkward(draw):
    """Probabilities [n, K] and labels [n]: random, tied, one-hot, on the edges of bins, padded with zeros."""
    classes, rows = draw(st.integers(2, 12)), draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["random", "tied", "one-hot", "edge", "padded"]))
    if kind == "random":
        probs = rng.dirichlet(np.full(classes, draw(st.sampled_from([0.05, 0.5, 5.0]))), rows)
    elif kind == "tied":
        probs = rng.integers(1, 3, (rows, classes)).astype(float)
    elif kind == "one-hot":
        probs = np.eye(classes)[rng.integers(0, classes, rows)]
    elif kind == "edge":
        top = rng.integers(0, 16, rows) / 15
        probs = np.zeros((rows, classes))
        probs[:, 0], probs[:, 1] = top, 1 - top
        probs = rng.permuted(probs, axis=1)
    else:
        probs = rng.random((rows, classes)) * (np.arange(classes) < rng.integers(1, classes + 1, rows)[:, None])
    if kind in ("tied", "padded"):
        probs = probs / probs.sum(1, keepdims=True)
    return probs.astype(draw(st.sampled_from([np.float32, np.float64]))), rng.integers(0, classes, rows)


@pytest.fixture(scope="session")
def awkward():
    """A hypothesis strategy of (probs, labels)."""
    return _awkward()


@pytest.fixture(scope="session")
def draw():
    """Logits, probabilities and labels of `n` rows, the labels drawn from the probabilities."""

    def make(seed, n, classes=3, scale=2.0):
        rng = np.random.default_rng(seed)
        logits = rng.normal(size=(n, classes)) * scale
        probs = np.exp(logits)
        probs /= probs.sum(1, keepdims=True)
        labels = (rng.random(n)[:, None] > probs.cumsum(1)).sum(1).clip(0, classes - 1)
        return logits, probs, labels

    return make


@pytest.fixture(scope="session")
def sharpen():
    """`probs` to the power `by`, scaled to sum to 1: overconfident above 1, underconfident below."""

    def make(probs, by):
        powered = probs**by
        return powered / powered.sum(1, keepdims=True)

    return make
