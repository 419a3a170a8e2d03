"""Data for a trained model."""

from pathlib import Path
from typing import Any

import pytest
import tiny

from calmix.errors import InputError
from calmix.models import load, read_for


@pytest.fixture
def table(tmp_path: Path) -> str:
    (tmp_path / "other.csv").write_text("text,label\nthe cat,happy\nbread,sad\n")
    return str(tmp_path / "other.csv")


@pytest.fixture
def images(tmp_path: Path) -> str:
    return str(tiny.image_folder(tmp_path / "images", 6))


def test_labels_are_in_the_order_of_the_models(checkpoint: Any, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,label\nrain,weather\nbread,food\n")
    examples = read_for(load(checkpoint("bert")), str(tmp_path / "t.csv"))
    assert (examples.label_names, examples.labels.tolist()) == (tiny.LABELS, [2, 1])


def test_data_of_another_kind_is_refused_before_its_labels(
    checkpoint: Any, image_checkpoint: Any, table: str, images: str
) -> None:
    with pytest.raises(InputError, match=r"other\.csv: holds text data, but this model reads images"):
        read_for(load(image_checkpoint("convnet")), table)
    Path(images, "food").rename(Path(images, "bread"))
    with pytest.raises(InputError, match="images: holds image data, but this model reads plain texts or pairs"):
        read_for(load(checkpoint("bert")), images)
    with pytest.raises(InputError, match="holds text data, but this model reads texts with choices"):
        read_for(load(checkpoint("bert", choices=True)), table)


def test_data_of_its_kind_is_refused_for_what_is_wrong_with_it(checkpoint: Any, table: str, tmp_path: Path) -> None:
    model = load(checkpoint("bert"))
    with pytest.raises(InputError, match="unknown label 'happy'"):
        read_for(model, table)
    (tmp_path / "titles.csv").write_text("title,label\nrain,weather\n")
    with pytest.raises(InputError, match="no column looks like the text"):
        read_for(model, str(tmp_path / "titles.csv"))
    assert read_for(model, table, labelled=False).labels.tolist() == [-1, -1]
