import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calmix.calibration.confidence import confidences
from calmix.errors import InputError


@given(st.data())
def test_the_first_of_several_largest_classes_wins(awkward, data):
    probs, labels = data.draw(awkward)
    confidence, hit = confidences(probs, labels)
    assert np.array_equal(confidence.numpy(), probs.max(1).astype(np.float64))
    assert np.array_equal(hit.numpy(), probs.argmax(1) == labels)


@pytest.mark.parametrize("classes", [8, 9, 40])
def test_ties_are_decided_alike_for_few_and_many_classes(classes):
    probs = np.full((classes, classes), 1 / classes)
    _, hit = confidences(probs, np.arange(classes))
    assert hit.tolist() == [True] + [False] * (classes - 1)


def test_a_positive_class_is_looked_at_alone():
    probs, labels = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3]]), np.array([2, 2])
    confidence, hit = confidences(probs, labels, 2)
    assert confidence.tolist() == [0.1, 0.3]
    assert hit.tolist() == [True, True]
    with pytest.raises(InputError, match="positive_class is 3"):
        confidences(probs, labels, 3)


def test_a_tensor_stays_on_its_device():
    confidence, hit = confidences(torch.tensor([[0.7, 0.3]]), torch.tensor([0]))
    assert confidence.dtype == torch.float64
    assert bool(hit[0])
