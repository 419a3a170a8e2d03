from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calmix.data import Examples, split_examples
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
