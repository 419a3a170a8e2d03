from math import ceil, sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calmix.dynamics import (
    cosine,
    distinct_partners,
    farthest_of_drawn,
    head_cosine,
    nearest_of_all,
    nearest_of_three_classes,
    residual,
    saliency_map,
    set_partners,
    two_class_vectors,
)

MEASURES = (residual, saliency_map)


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def logits_and_labels(seed, n, classes=3, scale=3.0):
    generator = draws(seed)
    logits = scale * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(classes, (n,), generator=generator)


def vectors_of(measure, seed, n, classes=3, scale=3.0):
    return measure(*logits_and_labels(seed, n, classes, scale))


def angles_between(queries, keys):
    """Angles by the cross product, which tells tiny ones apart."""
    q, k = queries[:, None].expand(-1, len(keys), -1), keys[None].expand(len(queries), -1, -1)
    return torch.atan2(torch.linalg.cross(q, k).norm(dim=2), (q * k).sum(2))


@given(st.integers(0, 9999), st.integers(1, 20), st.integers(1, 20), st.sampled_from(MEASURES), st.floats(0.1, 30))
@settings(max_examples=80)
def test_the_nearest_of_three_classes_is_the_nearest_of_all(seed, n, m, measure, scale):
    queries, keys = vectors_of(measure, seed, n, scale=scale), vectors_of(measure, seed + 1, m, scale=scale)
    for side in (queries, -queries):  # the nearest to the opposite is the farthest
        angles = angles_between(side, keys)
        found = angles.gather(1, nearest_of_three_classes(side, keys)[:, None])[:, 0]
        torch.testing.assert_close(found, angles.amin(1), rtol=0, atol=1e-9)


@pytest.mark.parametrize("measure", MEASURES)
def test_neighbours_are_told_apart_where_cosines_cannot(measure):
    # Three directions a hair's breadth apart: all cosines round to 1.
    logits = torch.tensor([[5.0, 1.0, 0.0], [5.0, 1.0 + 2e-9, 0.0], [5.0, 1.0 + 5e-9, 0.0]], dtype=torch.float64)
    vectors = measure(logits, torch.tensor([0, 0, 0]))
    assert cosine(vectors).amin().item() > 1 - 1e-15
    assert nearest_of_three_classes(vectors[:1], vectors[1:]).tolist() == [0]
    assert nearest_of_three_classes(vectors[2:], vectors[:2]).tolist() == [1]


@pytest.mark.parametrize("measure", MEASURES)
def test_a_label_that_no_key_has_and_keys_without_a_direction_do_no_harm(measure):
    logits, labels = logits_and_labels(0, 40)
    queries = measure(logits, labels)
    keys = measure(logits[labels == 1] + 0.1, labels[labels == 1])
    found = nearest_of_three_classes(queries, torch.cat([torch.zeros(2, 3, dtype=keys.dtype), keys])) - 2
    assert (found >= 0).all()
    angles = angles_between(queries, keys)
    torch.testing.assert_close(angles.gather(1, found[:, None])[:, 0], angles.amin(1), rtol=0, atol=1e-9)
    assert nearest_of_three_classes(queries, torch.zeros(2, 3)).tolist() == [0] * 40


def test_only_three_classes_have_this_shape():
    with pytest.raises(ValueError, match="three classes"):
        nearest_of_three_classes(vectors_of(residual, 0, 3, 4), vectors_of(residual, 1, 3, 4))


@pytest.mark.parametrize("block", [1, 60, 2**26])
@pytest.mark.parametrize("classes", [2, 4, 9])
def test_the_search_in_blocks_equals_the_whole_matrix(block, classes, monkeypatch):
    monkeypatch.setattr("calmix.dynamics.searching._BLOCK", block)
    queries, keys = vectors_of(residual, 0, 30, classes), vectors_of(residual, 1, 20, classes)
    similarity = cosine(torch.cat([queries, keys]))[:30, 30:]
    nearest = nearest_of_all((queries,), (keys,))
    torch.testing.assert_close(similarity.gather(1, nearest[:, None])[:, 0], similarity.amax(1))


def test_of_several_vectors_the_product_of_cosines_counts():
    logits, labels = logits_and_labels(0, 50, 4)
    hidden = torch.randn(50, 7, generator=draws(1), dtype=torch.float64)
    gap = residual(logits, labels)
    similarity = head_cosine(gap, hidden)[:30, 30:]
    nearest = nearest_of_all((gap[:30], hidden[:30]), (gap[30:], hidden[30:]))
    torch.testing.assert_close(similarity.gather(1, nearest[:, None])[:, 0], similarity.amax(1))
    halves = torch.arange(50) >= 30
    similar, dissimilar = set_partners((gap, hidden), halves, generator=draws(), candidates=0)
    assert (similar[:30] - 30).tolist() == nearest.tolist()
    assert (dissimilar[:30] - 30).tolist() == similarity.argmin(1).tolist()


@given(
    st.integers(0, 9999), st.integers(1, 90), st.integers(1, 20), st.integers(1, 30), st.sampled_from([1, 200, 2**26])
)
@settings(max_examples=40)
def test_the_farthest_of_those_drawn_for_a_few_is_the_farthest_of_these(seed, n, m, candidates, block):
    queries, keys = vectors_of(residual, seed, n), vectors_of(residual, seed + 1, m)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("calmix.dynamics.searching._BLOCK", block)
        found = farthest_of_drawn((queries,), (keys,), candidates, generator=draws(seed))
    few = min(8, ceil(sqrt(n)))
    drawn = torch.randint(m, (ceil(n / few), candidates), generator=draws(seed)).repeat_interleave(few, 0)[:n]
    similarity = cosine(torch.cat([queries, keys]))[:n, n:]
    expected = similarity.gather(1, drawn).amin(1)
    torch.testing.assert_close(similarity.gather(1, found[:, None])[:, 0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("measure", "three"), [(residual, True), (saliency_map, True), (saliency_map, False)])
def test_partners_over_the_set_come_from_the_other_half_and_equal_brute_force(measure, three):
    vectors = vectors_of(measure, 3, 60)
    halves = torch.tensor([0, 1, -1], dtype=torch.int8).repeat(20)
    similar, dissimilar = set_partners(vectors, halves, generator=draws(), candidates=0, three_classes=three)
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


def test_two_classes_are_searched_by_the_gradient_of_the_head():
    logits, labels = logits_and_labels(0, 40, 2)
    hidden = torch.randn(40, 7, generator=draws(1), dtype=torch.float64)
    gap, halves = residual(logits, labels), torch.arange(40) % 2
    similar, _ = set_partners(two_class_vectors(gap, hidden), halves, generator=draws())
    allowed = head_cosine(gap, hidden).masked_fill(halves[:, None] == halves, -torch.inf)
    assert similar.tolist() == allowed.argmax(1).tolist()


def test_without_the_other_half_everyone_stays_alone():
    similar, dissimilar = set_partners(vectors_of(residual, 0, 4), torch.ones(4), generator=draws())
    assert similar.tolist() == dissimilar.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("three", [True, False])
def test_the_farthest_of_all_collapse_to_a_handful_and_the_farthest_of_a_draw_do_not(measure, three):
    vectors, halves = vectors_of(measure, 5, 4000), torch.arange(4000) % 2
    _, alone = set_partners(vectors, halves, generator=draws(), candidates=0, three_classes=three)
    _, drawn = set_partners(vectors, halves, generator=draws(), three_classes=three)
    assert distinct_partners(alone) < 30
    assert distinct_partners(drawn) > 400
