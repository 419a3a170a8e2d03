from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calmix.data import Examples, fold_examples, split_examples
from calmix.data.keys import folded_keys
from calmix.errors import InputError


def make(count=200, classes=2, prefix=""):
    return Examples.from_texts(
        [f"{prefix}{row}" for row in range(count)], [f"c{row % classes}" for row in range(count)]
    )


TABLES = st.lists(
    st.tuples(st.sampled_from(["a", "A ", "b", "c", "d", "e", " B", "f", "g"]), st.sampled_from("xyz")),
    min_size=3,
    max_size=40,
)


def split_or_none(examples, **options):
    try:
        return split_examples(examples, **options)
    except InputError:
        return None


@given(TABLES, st.floats(0.05, 0.6), st.integers(0, 5))
def test_a_split_is_a_partition_that_keeps_copies_together(rows, fraction, seed):
    examples = Examples.from_texts(*zip(*rows, strict=True))
    parts = split_or_none(examples, dev_fraction=fraction, seed=seed)
    if parts is None:
        return
    train, dev = parts
    assert len(train) > 0
    assert len(dev) > 0
    assert Counter(train.ids + dev.ids) == Counter(examples.ids)
    assert not set(folded_keys(train.table)) & set(folded_keys(dev.table))
    for part in parts:
        assert part.ids == [key for key in examples.ids if key in set(part.ids)]
        assert part.label_names == examples.label_names


@given(TABLES, st.randoms(), st.integers(0, 5))
def test_who_goes_where_does_not_depend_on_the_order_of_the_rows(rows, random, seed):
    def dev_texts(rows):
        parts = split_or_none(Examples.from_texts(*zip(*rows, strict=True)), dev_fraction=0.3, seed=seed)
        return parts and Counter(parts[1].column("text"))

    assert dev_texts(rows) == dev_texts(random.sample(rows, len(rows)))


@given(TABLES)
def test_a_label_with_two_texts_of_its_own_is_in_both_parts(rows):
    examples = Examples.from_texts(*zip(*rows, strict=True))
    parts = split_or_none(examples)
    labels_of = {}
    for key, label in zip(folded_keys(examples.table), examples.labels.tolist(), strict=True):
        labels_of.setdefault(key, set()).add(label)
    own = Counter(label for labels in labels_of.values() if len(labels) == 1 for label in labels)
    for label, groups in own.items():
        if groups >= 2:
            assert all(label in part.labels for part in parts)


def test_the_seed_decides():
    first, again, other = (split_examples(make(), seed=seed)[1].ids for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_labels_keep_their_shares():
    train, dev = split_examples(make(400, classes=4), dev_fraction=0.2)
    assert np.bincount(dev.labels).tolist() == [20] * 4
    assert np.bincount(train.labels).tolist() == [80] * 4


def test_the_share_asked_for_is_met_when_classes_do_not_divide():
    assert len(split_examples(make(101, classes=7), dev_fraction=0.25)[1]) == 25


def test_most_rows_stay_where_they_were_when_rows_are_added():
    before = set(split_examples(make(400))[1].ids)
    after = set(split_examples(make(404))[1].ids)
    assert len(before - after) <= 4


def test_a_large_group_of_copies_does_not_swell_dev():
    texts = ["copy"] * 100 + [f"{row}" for row in range(100)]
    for seed in range(10):
        _, dev = split_examples(Examples.from_texts(texts, ["x"] * 200), dev_fraction=0.1, seed=seed)
        assert len(dev) == 20


def test_pairs_and_choices_are_the_same_when_all_their_texts_are():
    pair = Examples.from_texts(["a"] * 20, [0, 1] * 10, text_b=[f"{row // 2}" for row in range(20)])
    train, dev = split_examples(pair)
    assert not set(train.column("text_b")) & set(dev.column("text_b"))
    table = pa.table(
        {
            "id": [str(row) for row in range(20)],
            "text": ["q"] * 20,
            "choices": [["a", str(row // 2)] for row in range(20)],
        }
    )
    train, dev = split_examples(Examples(table, np.arange(20) % 2, ()))
    assert len(dev) == 2
    assert not {cells[1] for cells in train.column("choices")} & {cells[1] for cells in dev.column("choices")}


def test_targets_are_split_with_their_rows():
    examples = make()
    targets = np.stack([1 - examples.labels, examples.labels], axis=1).astype(float)
    for part in split_examples(Examples(examples.table, examples.labels, examples.label_names, targets)):
        assert part.targets.argmax(axis=1).tolist() == part.labels.tolist()


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        (["a", "b"], [0, 1], "2 rows with 2 different texts are too few to set some aside; give a dev file"),
        (["a", "A", "a "], [0, 1, 0], "3 rows with 1 different texts are too few"),
        (["a", "b", "c"], [0, 1, 2], "no label has two different texts"),
    ],
)
def test_too_little_to_split_is_an_error_with_a_remedy(texts, labels, message):
    with pytest.raises(InputError, match=message):
        split_examples(Examples.from_texts(texts, labels))


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(fraction):
    with pytest.raises(InputError, match="between 0 and 1"):
        split_examples(make(), dev_fraction=fraction)


# ---- folds


def folds_or_none(examples, folds, **options):
    try:
        return fold_examples(examples, folds, **options)
    except InputError:
        return None


@given(TABLES, st.integers(2, 4), st.integers(0, 5))
def test_each_row_is_in_one_fold_and_copies_are_in_the_same(rows, folds, seed):
    examples = Examples.from_texts(*zip(*rows, strict=True))
    found = folds_or_none(examples, folds, seed=seed)
    if found is None:
        return
    assert found.shape == (len(examples),)
    assert set(found) - {-1} == set(range(folds))
    of_text = {}
    for key, fold in zip(folded_keys(examples.table), found.tolist(), strict=True):
        assert of_text.setdefault(key, fold) == fold


@given(TABLES, st.integers(2, 4), st.randoms(), st.integers(0, 5))
def test_who_is_in_which_fold_does_not_depend_on_the_order_of_the_rows(rows, folds, random, seed):
    def of_rows(rows):
        examples = Examples.from_texts(*zip(*rows, strict=True))
        found = folds_or_none(examples, folds, seed=seed)
        return None if found is None else dict(zip(folded_keys(examples.table), found.tolist(), strict=True))

    assert of_rows(rows) == of_rows(random.sample(rows, len(rows)))


@given(TABLES, st.integers(2, 4))
def test_the_texts_of_a_label_are_spread_evenly_and_an_only_one_is_in_no_fold(rows, folds):
    examples = Examples.from_texts(*zip(*rows, strict=True))
    found = folds_or_none(examples, folds)
    if found is None:
        return
    labels_of, fold_of = {}, {}
    for key, label, fold in zip(folded_keys(examples.table), examples.labels.tolist(), found.tolist(), strict=True):
        labels_of.setdefault(key, []).append(label)
        fold_of[key] = fold
    # The label of a text is the one it has most often, of several the first.
    major = {key: max(sorted(set(labels)), key=labels.count) for key, labels in labels_of.items()}
    for label in set(major.values()):
        texts = [key for key in major if major[key] == label]
        sizes = Counter(fold_of[key] for key in texts)
        if len(texts) == 1:
            assert list(sizes) == [-1]
        else:
            assert -1 not in sizes
            assert max(sizes.values()) - min(sizes.get(fold, 0) for fold in range(folds)) <= 1
    together = Counter(fold for fold in fold_of.values() if fold >= 0)
    assert max(together.values()) - min(together.values()) <= 1


def test_folds_have_the_same_shares_of_labels():
    found = fold_examples(make(60, classes=4), 3)
    labels = make(60, classes=4).labels
    for fold in range(3):
        assert np.bincount(labels[found == fold]).tolist() == [5] * 4


def test_the_seed_decides_who_is_in_which_fold():
    first, again, other = (fold_examples(make(60), 3, seed=seed).tolist() for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_of_choices_the_place_of_the_right_one_is_not_balanced_but_rows_are():
    table = pa.table(
        {"id": [str(i) for i in range(9)], "text": [f"q{i}" for i in range(9)], "choices": [["a", "b", "c"]] * 9}
    )
    found = fold_examples(Examples(table, np.array([0, 1, 2, 2, 2, 2, 2, 2, 2]), ()), 3)
    assert np.bincount(found).tolist() == [3, 3, 3]  # no label whose only row is in none


@pytest.mark.parametrize(
    ("texts", "labels", "folds", "message"),
    [
        (["a", "b", "c", "d"], [0, 0, 1, 1], 1, "--folds must be 2 or more, not 1"),
        (["a", "A ", "b"], [0, 0, 0], 3, "3 rows with 2 different texts are too few for 3 folds; give a dev file"),
        (["a", "b", "c"], [0, 1, 2], 2, "too few for 2 folds"),
    ],
)
def test_too_few_texts_for_so_many_folds_is_an_error_with_a_remedy(texts, labels, folds, message):
    with pytest.raises(InputError, match=message):
        fold_examples(Examples.from_texts(texts, labels), folds)
