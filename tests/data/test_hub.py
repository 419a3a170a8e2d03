import sys
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest

from calmix.data import read_examples
from calmix.data.hub import is_hub_name
from calmix.errors import InputError


class ClassLabel:
    def __init__(self, names):
        self.names = names


class Dataset:
    def __init__(self, table, features):
        self.table, self.features = table, features

    def with_format(self, kind):
        assert kind == "arrow"
        return self

    def __getitem__(self, rows):
        return self.table[rows]


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for the `datasets` library, and the calls that reach it."""
    module = ModuleType("datasets")
    module.ClassLabel = ClassLabel
    module.calls = []
    module.table = pa.table({"text": ["a", "b", "c"], "label": [1, 0, 1]})

    def load_dataset(*args, **kwargs):
        module.calls.append((args, kwargs))
        if kwargs["split"] == "nowhere":
            raise ValueError("Unknown split\n'nowhere'")
        label = ClassLabel(["World", "Sports"])
        return Dataset(module.table, {name: label if name == "label" else None for name in module.table.column_names})

    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return module


def test_class_labels_become_names(hub):
    examples = read_examples("ag_news")
    assert examples.label_names == ("Sports", "World")
    assert examples.labels.tolist() == [0, 1, 0]
    assert examples.source == "ag_news"


def test_name_configuration_and_split_are_passed_on_and_nothing_else(hub):
    read_examples("org/name:config", split="test")
    read_examples("org/name")
    assert hub.calls == [(("org/name", "config"), {"split": "test"}), (("org/name", None), {"split": "train"})]


def test_the_mark_for_a_missing_label_is_no_class(hub):
    hub.table = pa.table({"text": ["a", "b"], "label": [1, -1]})
    with pytest.raises(InputError, match="ag_news: no label in column 'label' at row 2"):
        read_examples("ag_news")
    assert read_examples("ag_news", labelled=None).labels.tolist() == [0, -1]


def test_a_split_without_rows_is_named(hub):
    hub.table = hub.table.slice(0, 0)
    with pytest.raises(InputError, match="there are no rows in the split 'train'"):
        read_examples("ag_news")


def test_what_the_hub_says_comes_on_one_line(hub):
    with pytest.raises(InputError) as error:
        read_examples("ag_news", split="nowhere")
    assert "Unknown split 'nowhere'" in str(error.value)
    assert "\n" not in str(error.value)


def test_without_the_library_the_user_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"ag_news: no such file; .* pip install calmix\[hub\]"):
        read_examples("ag_news")


@pytest.mark.parametrize("name", ["ag_news", "org/name", "org/name:config", "glue:sst2", "a-b.c"])
def test_hub_names(name):
    assert is_hub_name(name)


@pytest.mark.parametrize("name", ["/data/x", "./x", "../x", "~/x", "a/b/c", "C:\\data", "a b", "", "a:b:c", "s3://x/y"])
def test_paths_are_no_hub_names(name):
    assert not is_hub_name(name)


@pytest.mark.parametrize("name", ["train.csv", "data/train.jsonl.xz", "train.gz", "./train", "a/b/c"])
def test_what_looks_like_a_file_is_not_looked_for_on_the_hub(hub, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"{Path(name)}: no such file$"):
        read_examples(name)
    assert hub.calls == []


def test_a_file_that_exists_is_never_looked_for_on_the_hub(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ag_news").mkdir()
    with pytest.raises(InputError, match="this is a folder"):
        read_examples("ag_news")
    assert hub.calls == []
