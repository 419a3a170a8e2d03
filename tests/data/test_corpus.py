"""The shipped corpus keeps the promises of docs/corpus.md."""

import csv
import importlib.util
import json
import re
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest

from calmix.data.corpus import INTENTS, SPLITS, corpus_path, load_truth, truth
from calmix.errors import InputError

SIZES = {"train": 1200, "dev": 400, "test": 1000, "ood": 1000}


def rows(split: str) -> list[dict[str, str]]:
    with corpus_path(split).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def table(split: str) -> pa.Table:
    return pa.Table.from_pylist(rows(split))


def bare(text: str) -> str:
    return " ".join(re.sub(r"[\W\d_]+", " ", text.casefold()).split())


def situations(split: str) -> set[str]:
    return {row["_situation"] for row in rows(split)}


def situated(split: str) -> list[tuple[str, str]]:
    return [(row["_situation"], row["text"]) for row in rows(split)]


def pattern(phrasing: str) -> re.Pattern[str]:
    """What a phrasing looks like in `bare` text, whatever fills its slots and choices."""
    pieces = re.split(r"\{\w+\}|\[[^]]*\]", phrasing)
    return re.compile(".*".join(re.escape(bare(piece)) for piece in pieces))


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "make_corpus.py"
    spec = importlib.util.spec_from_file_location("make_corpus", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_corpus"] = module
    spec.loader.exec_module(module)
    return module


def test_the_generator_reproduces_the_shipped_files_byte_for_byte(generator: ModuleType) -> None:
    assert generator.make_corpus() == {f"desk-{split}.csv": corpus_path(split).read_bytes() for split in SPLITS}


def test_the_generator_and_the_package_agree_on_the_intents(generator: ModuleType) -> None:
    assert generator.INTENTS == INTENTS == tuple(sorted(INTENTS))


@pytest.mark.parametrize("split", SPLITS)
def test_a_split_has_its_size_and_unique_ids(split: str) -> None:
    ids = [row["id"] for row in rows(split)]
    assert len(ids) == len(set(ids)) == SIZES[split]


@pytest.mark.parametrize("split", SPLITS)
def test_messages_are_short_and_on_one_line(split: str) -> None:
    for row in rows(split):
        assert 5 <= len(row["text"].split()) <= 45
        assert row["text"].isprintable() or "\u200d" in row["text"] or "\ufe0f" in row["text"]
        assert not re.search(r"[{}\[\]|]", row["text"])


def test_no_message_occurs_twice_whatever_its_case_punctuation_and_numbers() -> None:
    texts = Counter(bare(row["text"]) for split in SPLITS for row in rows(split))
    assert [text for text, count in texts.items() if count > 1] == []


def test_train_shares_only_known_situations_with_dev_and_test() -> None:
    new_in_dev, new_in_test = situations("dev") - situations("train"), situations("test") - situations("train")
    assert len(new_in_dev) == 20
    assert len(new_in_test) == 35
    assert not new_in_dev & new_in_test
    for split, new in (("dev", new_in_dev), ("test", new_in_test), ("ood", new_in_test)):
        share = np.mean([row["_situation"] in new for row in rows(split)])
        assert share == pytest.approx(0.25, abs=0.005)


def test_one_phrasing_of_every_known_situation_is_kept_from_train(generator: ModuleType) -> None:
    plan = generator.make_plan(generator.read_situations())
    held_out = {name: pattern(phrasing) for name, phrasing in plan.held_out.items()}

    def share(split: str) -> float:
        hits = [s in held_out and bool(held_out[s].search(bare(t))) for s, t in situated(split)]
        return float(np.mean(hits))

    assert set(held_out) == situations("train")
    assert share("train") == 0
    assert share("dev") == pytest.approx(0.35, abs=0.005)
    assert share("test") == pytest.approx(0.35, abs=0.005)


def test_ood_has_the_situations_of_test_in_other_words() -> None:
    assert situations("ood") == situations("test")

    def runs(split: str) -> set[tuple[str, ...]]:
        words = [bare(row["text"]).split() for row in rows(split)]
        return {tuple(text[i : i + 6]) for text in words for i in range(len(text) - 5)}

    formal = runs("train") | runs("dev") | runs("test")
    assert len(runs("ood") & formal) <= 0.01 * len(runs("ood"))


@pytest.mark.parametrize("split", SPLITS)
def test_truth_is_a_distribution_and_one_per_situation(split: str) -> None:
    values = load_truth(table(split), INTENTS)
    assert values.shape == (SIZES[split], 7)
    assert (values >= 0).all()
    np.testing.assert_allclose(values.sum(axis=1), 1, atol=1e-12)
    assert len({(row["_situation"], row["_truth"]) for row in rows(split)}) == len(situations(split))


def test_a_situation_has_the_same_truth_in_every_split() -> None:
    pairs = {(row["_situation"], row["_truth"]) for split in SPLITS for row in rows(split)}
    assert len(pairs) == len({situation for situation, _ in pairs})


@pytest.mark.parametrize("split", SPLITS)
def test_clear_leaning_and_ambiguous_messages_have_their_shares(split: str) -> None:
    top = load_truth(table(split), INTENTS).max(axis=1)
    assert np.mean(top >= 0.9) == pytest.approx(0.55)
    assert np.mean((top > 0.6) & (top < 0.9)) == pytest.approx(0.25)
    assert np.mean(top <= 0.6) == pytest.approx(0.20)


@pytest.mark.parametrize("split", ["dev", "test", "ood"])
def test_labels_are_draws_from_the_truth(split: str) -> None:
    values = load_truth(table(split), INTENTS)
    labels = np.array([INTENTS.index(row["label"]) for row in rows(split)])
    drawn = np.eye(7)[labels]
    assert (values[np.arange(len(labels)), labels] > 0).all()
    # Each intent's count, and the number of labels that are the likeliest intent, within 3.5 standard deviations.
    deviation = np.sqrt((values * (1 - values)).sum(axis=0))
    assert (np.abs(drawn.sum(axis=0) - values.sum(axis=0)) < 3.5 * deviation).all()
    top = values.max(axis=1)
    hits = (values[np.arange(len(labels)), labels] == top).sum()
    ties = (values == top[:, None]).sum(axis=1)
    chance = np.minimum(top * ties, 1)
    assert abs(hits - chance.sum()) < 3.5 * np.sqrt((chance * (1 - chance)).sum())


def test_six_per_cent_of_train_is_mislabelled_implausibly_and_marked() -> None:
    marked = [row["_mislabelled"] == "true" for row in rows("train")]
    assert np.mean(marked) == pytest.approx(0.06)
    for row, wrong in zip(rows("train"), marked, strict=True):
        plausibility = json.loads(row["_truth"])[INTENTS.index(row["label"])]
        assert plausibility < 0.02 if wrong else plausibility > 0


@pytest.mark.parametrize("split", ["dev", "test", "ood"])
def test_only_train_is_mislabelled(split: str) -> None:
    assert {row["_mislabelled"] for row in rows(split)} == {"false"}


def test_every_region_has_situations_of_each_kind(generator: ModuleType) -> None:
    found = generator.read_situations()
    assert Counter(s.region for s in found) == dict.fromkeys(INTENTS, 26)
    assert {(s.region, s.kind) for s in found} == {(r, k) for r in INTENTS for k in generator.KINDS}
    for one, other in combinations(found, 2):
        assert not set(one.formal + one.casual) & set(other.formal + other.casual)


def test_truth_columns_follow_the_label_names() -> None:
    @dataclass(frozen=True)
    class Read:
        table: pa.Table
        label_names: tuple[str, ...]

    backwards = truth(Read(table("dev"), INTENTS[::-1]))
    np.testing.assert_array_equal(backwards[:, ::-1], load_truth(table("dev"), INTENTS))
    assert backwards.dtype == np.float64


def test_truth_of_no_rows_is_empty() -> None:
    assert load_truth(table("dev").slice(0, 0), INTENTS).shape == (0, 7)


def test_truth_needs_the_column_and_the_labels_of_the_corpus() -> None:
    with pytest.raises(InputError, match="_truth"):
        load_truth(table("dev").drop_columns(["_truth"]), INTENTS)
    with pytest.raises(InputError, match="labels"):
        load_truth(table("dev"), ["billing", "refund"])


def test_an_unknown_split_is_named() -> None:
    with pytest.raises(InputError, match="no split 'valid'"):
        corpus_path("valid")


def test_the_shipped_files_stay_small() -> None:
    assert sum(corpus_path(split).stat().st_size for split in SPLITS) < 1_200_000
