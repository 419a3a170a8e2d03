import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calmix.dynamics import (
    circle_farthest,
    circle_nearest,
    cosine,
    cosine_farthest,
    cosine_nearest,
    distinct_partners,
    residual,
    set_partners,
)


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def residuals(seed, n, classes=3):
    generator = draws(seed)
    logits = 3 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return residual(logits, torch.randint(classes, (n,), generator=generator))


def angles_between(queries, keys):
    """Angles by atan2 of cross and dot product, which tell apart what cosines cannot."""
    q, k = queries[:, None].expand(-1, len(keys), -1), keys[None].expand(len(queries), -1, -1)
    return torch.atan2(torch.linalg.cross(q, k).norm(dim=2), (q * k).sum(2))


@given(st.integers(0, 9999), st.integers(1, 20), st.integers(1, 20))
@settings(deadline=None, max_examples=60)
def test_the_nearest_on_the_circle_is_the_nearest_of_all(seed, n, m):
    queries, keys = residuals(seed, n), residuals(seed + 1, m)
    angles = angles_between(queries, keys)
    found = angles.gather(1, circle_nearest(queries, keys)[:, None])[:, 0]
    torch.testing.assert_close(found, angles.amin(1), rtol=0, atol=1e-12)


@given(st.integers(0, 9999), st.integers(1, 20), st.integers(1, 20), st.integers(1, 25))
@settings(deadline=None, max_examples=60)
def test_the_farthest_on_the_circle_is_drawn_from_the_k_farthest_of_all(seed, n, m, k):
    queries, keys = residuals(seed, n), residuals(seed + 1, m)
    angles = angles_between(queries, keys)
    found = angles.gather(1, circle_farthest(queries, keys, k=k, generator=draws(seed))[:, None])[:, 0]
    assert (found >= angles.topk(min(k, m)).values[:, -1] - 1e-12).all()


def test_each_of_the_k_farthest_is_drawn():
    keys = residuals(1, 30)
    queries = residuals(2, 1).expand(400, 3)
    for found in (
        circle_farthest(queries, keys, k=5, generator=draws()),
        cosine_farthest(queries, keys, k=5, generator=draws()),
    ):
        expected = angles_between(queries[:1], keys)[0].topk(5).indices
        assert set(found.tolist()) == set(expected.tolist())


def test_neighbours_are_told_apart_where_cosines_cannot():
    # Three directions a hair's breadth apart: all cosines round to 1.
    logits = torch.tensor([[5.0, 1.0, 0.0], [5.0, 1.0 + 2e-9, 0.0], [5.0, 1.0 + 5e-9, 0.0]], dtype=torch.float64)
    r = residual(logits, torch.tensor([0, 0, 0]))
    assert cosine(r).amin().item() > 1 - 1e-15
    assert circle_nearest(r[:1], r[1:]).tolist() == [0]
    assert circle_nearest(r[2:], r[:2]).tolist() == [1]


def at(*angles):
    """Vectors that sum to zero, in these directions of their plane."""
    turn = torch.tensor(angles, dtype=torch.float64)
    basis = torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]], dtype=torch.float64)
    basis /= basis.norm(dim=1, keepdim=True)
    return turn.sin()[:, None] * basis[0] + turn.cos()[:, None] * basis[1]


def test_the_circle_closes():
    assert circle_nearest(at(3.1), at(-3.1, 0.0)).tolist() == [0]
    assert circle_nearest(at(-3.1), at(0.0, 3.1)).tolist() == [1]


@pytest.mark.parametrize("query", [3.1, -3.1, 0.0, 0.04, -0.04])
@pytest.mark.parametrize("keys", [(-3.0, -2.9), (2.9, 3.0), (-3.0, -2.9, -2.8, -2.7)])
def test_all_keys_may_be_the_farthest_even_at_the_seam(query, keys):
    found = circle_farthest(at(query).expand(200, 3), at(*keys), k=len(keys), generator=draws())
    assert set(found.tolist()) == set(range(len(keys)))


def test_only_three_classes_lie_on_a_circle():
    with pytest.raises(ValueError, match="three classes"):
        circle_nearest(residuals(0, 3, classes=4), residuals(1, 3, classes=4))


@pytest.mark.parametrize("chunk", [1, 7, 4096])
@pytest.mark.parametrize("classes", [2, 4, 9])
def test_the_search_in_chunks_equals_the_whole_matrix(chunk, classes):
    queries, keys = residuals(0, 30, classes), residuals(1, 20, classes)
    similarity = cosine(torch.cat([queries, keys]))[:30, 30:]
    nearest = cosine_nearest(queries, keys, chunk=chunk)
    farthest = cosine_farthest(queries, keys, k=3, generator=draws(), chunk=chunk)
    torch.testing.assert_close(similarity.gather(1, nearest[:, None])[:, 0], similarity.amax(1))
    third = similarity.topk(3, largest=False).values[:, -1]
    assert (similarity.gather(1, farthest[:, None])[:, 0] <= third + 1e-12).all()


@pytest.mark.parametrize("on_circle", [True, False])
def test_partners_over_the_set_come_from_the_other_half_and_equal_brute_force(on_circle):
    vectors = residuals(3, 60)
    halves = torch.tensor([0, 1, -1], dtype=torch.int8).repeat(20)
    similar, dissimilar = set_partners(vectors, halves, generator=draws(), k=1, on_circle=on_circle)
    similarity = cosine(vectors)
    for i in range(60):
        others = [j for j in range(60) if halves[i] + halves[j] == 1]
        if not others:
            assert similar[i] == dissimilar[i] == i
            continue
        assert similar[i].item() in others
        assert dissimilar[i].item() in others
        assert similarity[i, similar[i]].item() == pytest.approx(similarity[i, others].max().item(), abs=1e-12)
        assert similarity[i, dissimilar[i]].item() == pytest.approx(similarity[i, others].min().item(), abs=1e-12)


def test_without_the_other_half_everyone_stays_alone():
    similar, dissimilar = set_partners(residuals(0, 4), torch.ones(4), generator=draws())
    assert similar.tolist() == dissimilar.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("on_circle", [True, False])
def test_the_farthest_alone_collapse_to_a_handful_and_a_draw_does_not(on_circle):
    vectors, halves = residuals(5, 2000), torch.arange(2000) % 2
    _, alone = set_partners(vectors, halves, generator=draws(), k=1, on_circle=on_circle)
    _, drawn = set_partners(vectors, halves, generator=draws(), k=50, on_circle=on_circle)
    assert distinct_partners(alone) < 30
    assert distinct_partners(drawn) > 10 * distinct_partners(alone)
