"""From a task to its data sets."""

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calmix.data import Examples
from calmix.data.decoding import grey_file
from calmix.data.gathering import find_inside, gather, sampled
from calmix.data.tasks import builtin_tasks, parse_task
from calmix.errors import CalmixWarning, InputError


def _write(path: Path, rows: Iterable[tuple[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder: two classes, and another domain that calls them otherwise."""
    folder = tmp_path / "data"
    _write(folder / "a/train.jsonl", ((f"text {i}", "yes" if i % 2 else "no") for i in range(60)))
    _write(folder / "a/test.jsonl", ((f"test {i}", "yes" if i % 2 else "no") for i in range(40)))
    _write(folder / "b/test.jsonl", ((f"other {i}", "positive" if i % 4 else "negative") for i in range(20)))
    _write(folder / "c/train.jsonl", ((f"many {i}", "joy+anger" if i % 2 else "calm") for i in range(400)))
    return folder


def _task(**changes: Any) -> Any:
    far = {"file": "b/test", "labels": {"yes": ["positive"], "no": ["negative"]}}
    return parse_task("t", {"train": "a/train", "test": "a/test", "ood": {"b": far}, **changes}, "t")


def test_labels_of_another_domain_get_the_training_sets_names_and_indices(folder: Path) -> None:
    sets = gather(_task(), folder)
    assert sets.train.label_names == sets.ood["b"].label_names == ("no", "yes")
    assert np.bincount(sets.ood["b"].labels).tolist() == [5, 15]


def test_labels_that_differ_in_case_alone_are_merged_or_kept_as_the_task_says(folder: Path) -> None:
    labels = ["No", *["no"] * 30, *["yes"] * 29]
    _write(folder / "a/train.jsonl", ((f"text {i}", label) for i, label in enumerate(labels)))
    with pytest.raises(InputError, match=r"'No' \(1 row\) and 'no' \(30 rows\); merge_labels = true among its keys"):
        gather(_task(), folder)
    assert gather(_task(merge_labels=False), folder).test.label_names == ("No", "no", "yes")
    _write(folder / "a/test.jsonl", [("a", "YES"), ("b", "no")])
    with pytest.warns(CalmixWarning, match="merged labels of 1 row") as told:
        sets = gather(_task(merge_labels=True), folder)
    assert len(told) == 2
    assert sets.train.label_names == sets.test.label_names == ("no", "yes")
    assert sets.test.labels.tolist() == [1, 0]
    with pytest.raises(InputError, match=r"t.merge_labels: must be true or false"):
        _task(merge_labels="yes")


def test_without_a_dev_set_a_tenth_of_the_training_set_becomes_it(folder: Path) -> None:
    sets = gather(_task(), folder)
    assert (len(sets.train), len(sets.dev), len(sets.test)) == (54, 6, 40)
    assert np.bincount(sets.dev.labels).tolist() == [3, 3]
    assert not set(sets.train.ids) & set(sets.dev.ids)


def test_a_dev_set_can_be_cut_from_the_test_set(folder: Path) -> None:
    sets = gather(_task(dev_from_test=10), folder)
    assert (len(sets.train), len(sets.dev), len(sets.test)) == (60, 10, 30)
    with pytest.raises(InputError, match="dev_from_test is 40, the test set has 40 rows"):
        gather(_task(dev_from_test=40), folder)


def test_rows_are_drawn_once_and_the_same_each_time(folder: Path) -> None:
    first, again = gather(_task(rows=20, test_rows=7), folder), gather(_task(rows=20, test_rows=7), folder)
    assert first.train.ids == again.train.ids
    assert (len(first.train), len(first.test), len(first.ood["b"])) == (20, 7, 7)


def test_a_sample_keeps_the_order_and_differs_with_the_seed(folder: Path) -> None:
    train = gather(_task(), folder).train
    one, other = sampled(train, 10, 0), sampled(train, 10, 1)
    assert one.ids == [i for i in train.ids if i in set(one.ids)]
    assert one.ids != other.ids
    assert sampled(train, 1000, 0) is train


def test_of_several_labels_one_is_drawn_and_renamed(folder: Path) -> None:
    values = {"train": "c/train", "test": "c/train", "several": "+", "labels": {"happy": ["joy"]}}
    sets = gather(parse_task("t", values, "t"), folder)
    assert sets.test.label_names == ("anger", "calm", "happy")
    counts = np.bincount(sets.test.labels)
    assert counts[1] == 200
    assert 70 < counts[0] < 130
    again = gather(parse_task("t", values, "t"), folder)
    assert np.array_equal(sets.test.labels, again.test.labels)


def test_a_label_that_training_does_not_know_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="label 'negative' is not among the training set's"):
        gather(_task(ood={"b": "b/test"}), folder)


# The columns of the hub's data sets as they are there, and the names of their classes where labels are numbers.
HUB: dict[str, tuple[dict[str, list[Any]], list[str]]] = {
    "stanfordnlp/snli": ({"premise": ["p"], "hypothesis": ["h"], "label": []}, ["entailment", "neutral", "contra"]),
    "nyu-mll/glue:mnli": (
        {"premise": ["p"], "hypothesis": ["h"], "label": [], "idx": []},
        ["entailment", "neutral", "contra"],
    ),
    "nyu-mll/glue:qqp": (
        {"question1": ["p"], "question2": ["h"], "label": [], "idx": []},
        ["not_duplicate", "duplicate"],
    ),
    "nyu-mll/glue:sst2": ({"sentence": ["p"], "label": [], "idx": []}, ["negative", "positive"]),
    "nyu-mll/glue:cola": ({"sentence": ["p"], "label": [], "idx": []}, ["unacceptable", "acceptable"]),
    "nyu-mll/glue:rte": (
        {"sentence1": ["p"], "sentence2": ["h"], "label": [], "idx": []},
        ["entailment", "not_entailment"],
    ),
    "google/boolq": ({"question": ["q"], "answer": [True, False], "passage": ["p"]}, []),
    "allenai/swag:regular": (
        {"video-id": ["v"], "fold-ind": ["f"], "startphrase": ["s"], "sent1": ["a"], "sent2": ["b"]}
        | {"gold-source": ["g"], "ending0": ["w"], "ending1": ["x"], "ending2": ["y"], "ending3": ["z"], "label": []},
        ["0", "1", "2", "3"],
    ),
    "Rowan/hellaswag": (
        {"ind": [7], "activity_label": ["a"], "ctx_a": ["a"], "ctx_b": ["b"], "ctx": ["c"]}
        | {"endings": [["w", "x", "y", "z"]], "source_id": ["s"], "split": ["val"], "label": ["0", "3"]},
        [],
    ),
    "fancyzhx/yelp_polarity": ({"text": ["t"], "label": []}, ["1", "2"]),
    "stanfordnlp/imdb": ({"text": ["t"], "label": []}, ["neg", "pos"]),
    "fancyzhx/ag_news": ({"text": ["t"], "label": []}, ["World", "Sports", "Business", "Sci/Tech"]),
    "cornell-movie-review-data/rotten_tomatoes": ({"text": ["t"], "label": []}, ["neg", "pos"]),
    "google-research-datasets/go_emotions:simplified": (
        {"text": ["t"], "labels": [[0], [1, 2], [3], []], "id": []},
        ["annoyance", "joy", "love", "neutral"],
    ),
    "SetFit/TREC-QC": (
        {"text": ["t"], "label": [4, 7], "label_text": ["x"], "label_original": ["DESC:def", "HUM:ind"]}
        | {"label_coarse": [0, 3], "label_coarse_text": ["d", "h"], "label_coarse_original": []},
        [],
    ),
    "zalando-datasets/fashion_mnist": ({"image": [], "label": []}, ["Bag", "Coat", "Shirt"]),
    "uoft-cs/cifar10": ({"img": [], "label": []}, ["bird", "cat", "deer"]),
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the `datasets` library with sixty rows of each of `HUB`."""

    class ClassLabel:
        def __init__(self, names: list[str]) -> None:
            self.names = names

    class List:
        def __init__(self, feature: ClassLabel) -> None:
            self.feature = feature

    class Dataset:
        def __init__(self, table: pa.Table, features: dict[str, Any]) -> None:
            self.table, self.features = table, features

        def with_format(self, _kind: str) -> "Dataset":
            return self

        def __getitem__(self, rows: slice) -> pa.Table:
            return self.table[rows]

    def column(name: str, values: list[Any], names: list[str]) -> list[Any]:
        if name in ("idx", "id"):
            return list(range(60))
        if name == "label_coarse_original":
            return ["DESC" if k % 2 else "HUM" for k in range(60)]
        if name in ("image", "img"):
            return [{"bytes": grey_file(np.full((4, 4), k, np.uint8)), "path": None} for k in range(60)]
        if names and name == "label":
            return [k % len(names) for k in range(59)] + [-1]  # one without a label
        return [f"{v} {k}" if isinstance(v, str) and name != "label" else v
                for k in range(60) for v in [values[k % len(values)]]]  # fmt: skip

    def load_dataset(path: str, config: str | None, split: str) -> Dataset:
        columns, names = HUB[f"{path}:{config}" if config else path]
        table = pa.table({name: column(name, values, names) for name, values in columns.items()})
        features = {"label": ClassLabel(names), "labels": List(ClassLabel(names))} if names else {}
        return Dataset(table, {name: features.get(name) for name in columns})

    library = ModuleType("datasets")
    library.ClassLabel, library.load_dataset = ClassLabel, load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", library)


@pytest.mark.usefixtures("hub")
@pytest.mark.filterwarnings("ignore::calmix.errors.CalmixWarning")
@pytest.mark.parametrize("name", [name for name, values in builtin_tasks().items() if "hub" in values["train"]])
def test_what_the_hub_has_of_the_tasks_is_read_with_the_columns_it_has_there(name: str) -> None:
    values = builtin_tasks()[name]
    task = parse_task(name, values | ({"dev_from_test": 9} if "dev_from_test" in values else {}), name)
    sets = gather(task, None)
    kinds = {"snli": "pair", "qqp": "pair", "rte": "pair", "boolq": "pair", "swag": "choices"}
    kinds |= dict.fromkeys(("fashion-mnist", "cifar10"), "image")
    assert {each.kind for each in (sets.train, sets.dev, sets.test, *sets.ood.values())} == {kinds.get(name, "text")}
    if name == "boolq":
        assert sets.train.label_names == ("false", "true")
        assert {text[0] for text in sets.train.column("text")} == {"p"}
    if name in ("imdb", "mr", "yelp"):
        assert sets.train.label_names == ("negative", "positive")
    if name == "swag":
        assert {text[0] for text in sets.train.column("text")} == {"s"}
    if name == "goemotions":
        assert sets.train.label_names == ("anger", "joy", "neutral")  # annoyance is anger, love is joy
        assert len(sets.train) == 45  # a quarter has none
    if name == "trec":
        assert sets.train.label_names == ("DESC", "HUM")


@pytest.mark.usefixtures("hub")
def test_what_the_hub_has_no_label_for_or_has_not_at_all_is_left_out_and_said() -> None:
    with pytest.warns(CalmixWarning) as said:
        sets = gather(parse_task("qqp", builtin_tasks()["qqp"], "qqp"), None)
    lines = [str(each.message) for each in said]
    assert "nyu-mll/glue:qqp: 1 of 60 rows have no label and are left out" in lines
    assert "qqp: 'twitterppdb' is not on the hub and left out; --data says where files are" in lines
    assert sets.ood == {}
    assert len(sets.test) == 59


def test_what_is_neither_here_nor_on_the_hub_is_said() -> None:
    with pytest.raises(InputError, match=r"a/train is not on the hub; give the folder"):
        gather(_task(), None)


def test_the_shipped_corpus_needs_no_folder() -> None:
    from calmix.data.tasks import builtin_tasks

    sets = gather(parse_task("desk", builtin_tasks()["desk"], "desk"), None)
    assert len(sets.train) == 1200
    assert list(sets.ood) == ["ood"]


@pytest.mark.parametrize("name", ["../data/a/train", "a/../a/train", "/etc/passwd"])
def test_a_file_outside_the_folder_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(InputError, match="stay inside it"):
        find_inside(folder, name)


def test_a_link_out_of_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.jsonl").write_text('{"text": "x", "label": "y"}\n')
    (folder / "a/link.jsonl").symlink_to(tmp_path / "secret.jsonl")
    with pytest.raises(InputError, match="leads out of the data folder"):
        find_inside(folder, "a/link")


def test_a_name_is_found_with_any_ending(folder: Path) -> None:
    assert find_inside(folder, "a/train") == find_inside(folder, "a/train.jsonl")
    with pytest.raises(InputError, match="no such file"):
        find_inside(folder, "a/dev")


@given(st.integers(1, 40), st.integers(1, 60), st.integers(0, 5))
def test_a_sample_has_so_many_rows_in_the_order_they_had_and_is_the_same_twice(
    rows: int, wanted: int, seed: int
) -> None:
    whole = Examples.from_texts([f"text {i}" for i in range(rows)], ["x"] * rows)
    drawn = sampled(whole, wanted, seed)
    places = [whole.ids.index(id_) for id_ in drawn.ids]
    assert len(places) == min(rows, wanted)
    assert places == sorted(set(places))
    assert sampled(whole, wanted, seed).ids == drawn.ids


@given(st.text(min_size=1, max_size=20))
def test_no_name_leads_out_of_the_folder(name: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "data"
        folder.mkdir()
        (Path(place) / "secret.csv").write_text("text,label\na,b\n")
        with contextlib.suppress(InputError, ValueError, OSError):
            assert find_inside(folder, f"../{name}").resolve().is_relative_to(folder.resolve())


def test_a_folder_of_images_is_read_by_its_splits(tmp_path: Path) -> None:
    import tiny

    for split, count in (("train", 60), ("test", 9)):
        tiny.image_folder(tmp_path / "pictures" / split, count, seed=count)
    task = parse_task("t", {"train": "pictures", "test": {"file": "pictures", "split": "test"}}, "t")
    sets = gather(task, tmp_path)
    assert (sets.train.kind, sets.test.label_names) == ("image", sets.train.label_names)
    assert [len(each) for each in (sets.train, sets.dev, sets.test)] == [54, 6, 9]
