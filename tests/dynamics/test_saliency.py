import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calmix.dynamics import batch_partners, cosine, head_cosine, residual, saliency_map, two_class_vectors


def batch(seed=0, n=12, classes=3, width=5):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, classes, generator=generator)
    labels = torch.randint(classes, (n,), generator=generator)
    return logits, labels, torch.randn(n, width, generator=generator), torch.rand(n, generator=generator) < 0.5


def test_saliency_is_the_gradient_of_the_loss_by_the_logits():
    logits, labels, _, _ = batch()
    wide = logits.double().requires_grad_()
    torch.nn.functional.cross_entropy(wide, labels, reduction="sum").backward()
    torch.testing.assert_close(residual(logits, labels), wide.grad)
    torch.testing.assert_close(saliency_map(logits, labels), wide.grad.abs())


def test_soft_targets_are_targets_too():
    logits, labels, _, _ = batch()
    hard = torch.nn.functional.one_hot(labels, 3)
    torch.testing.assert_close(residual(logits, hard), residual(logits, labels))
    soft = 0.9 * hard + 0.1 / 3
    torch.testing.assert_close(residual(logits, soft), logits.double().softmax(1) - soft.double())


def test_the_direction_survives_a_probability_that_rounds_to_one():
    r = residual(torch.tensor([[90.0, 1.0, 0.0]]), torch.tensor([0]))[0]
    assert (r[0] / (r[1] + r[2])).item() == pytest.approx(-1)
    assert (r[1] / r[2]).item() == pytest.approx(np.e)


def test_cosines_equal_the_definition_and_survive_tiny_and_zero_rows():
    vectors = torch.tensor([[1.0, 2.0], [1e-200, 0.0], [0.0, 0.0], [-2.0, -4.0]], dtype=torch.float64)
    found = cosine(vectors)
    assert found[0, 1].item() == pytest.approx(1 / 5**0.5)
    assert found[0, 3].item() == pytest.approx(-1)
    assert found[2].tolist() == [0, 0, 0, 0]


def test_for_two_classes_every_saliency_is_parallel():
    logits, labels, _, _ = batch(classes=2)
    torch.testing.assert_close(cosine(saliency_map(logits, labels)), torch.ones(12, 12, dtype=torch.float64))


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_the_head_cosine_is_that_of_the_gradients_by_the_heads_weights(classes):
    _, labels, hidden, _ = batch(classes=classes)
    head = torch.nn.Linear(5, classes, bias=False).double()
    gradients = []
    for h, y in zip(hidden.double(), labels, strict=True):
        head.zero_grad()
        torch.nn.functional.cross_entropy(head(h)[None], y[None]).backward()
        gradients.append(head.weight.grad.flatten().clone())
    with torch.no_grad():
        found = head_cosine(residual(head(hidden.double()), labels), hidden)
    expected = torch.nn.functional.cosine_similarity(torch.stack(gradients)[:, None], torch.stack(gradients), dim=2)
    torch.testing.assert_close(found, expected)


def test_two_class_vectors_have_the_cosine_of_the_head_gradients():
    logits, labels, hidden, _ = batch(classes=2)
    r = residual(logits, labels)
    torch.testing.assert_close(cosine(two_class_vectors(r, hidden.double())), head_cosine(r, hidden))
    with pytest.raises(ValueError, match="two classes"):
        two_class_vectors(residual(*batch(classes=3)[:2]), hidden)


@given(st.integers(0, 9999), st.integers(1, 9))
@settings(max_examples=50)
def test_batch_partners_equal_the_search_by_hand(seed, n):
    logits, labels, _, high = batch(seed, n)
    similarity = cosine(saliency_map(logits, labels))
    nearest, farthest = batch_partners(similarity, high)
    for i in range(n):
        others = [j for j in range(n) if high[j] != high[i]] or [i]
        assert nearest[i].item() == max(others, key=lambda j: similarity[i, j].item())
        assert farthest[i].item() == min(others, key=lambda j: similarity[i, j].item())


def test_a_row_of_neither_half_or_without_the_other_half_is_its_own_partner():
    similarity = cosine(torch.randn(4, 3))
    nearest, farthest = batch_partners(similarity, torch.tensor([1, -1, 1, -1], dtype=torch.int8))
    assert nearest.tolist() == farthest.tolist() == [0, 1, 2, 3]
    nearest, _ = batch_partners(similarity, torch.tensor([1, -1, 0, -1], dtype=torch.int8))
    assert nearest.tolist() == [2, 1, 0, 3]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batch_partners_can_be_captured():
    logits, labels, hidden, high = (part.cuda() for part in batch())
    search = lambda: batch_partners(head_cosine(residual(logits, labels), hidden), high)  # noqa: E731
    expected = search()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = search()
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
