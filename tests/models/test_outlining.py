"""Networks without their weights."""

from collections.abc import Callable
from pathlib import Path

import pytest
import tiny

from calmix.errors import InputError
from calmix.models import anatomy, load_for_training, outline


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_an_outline_has_the_parts_and_the_size_of_the_network(
    checkpoint: Callable[..., Path], architecture: str
) -> None:
    name = str(checkpoint(architecture))
    network, drawn = load_for_training(name, label_names=tiny.LABELS)[0], outline(name, "text")
    assert drawn is not None
    assert all(weight.is_meta for weight in drawn.parameters())
    assert len(anatomy(drawn).layers) == len(anatomy(network).layers)
    assert [tuple(w.shape) for w in drawn.parameters()] == [tuple(w.shape) for w in network.parameters()]


def test_networks_for_images_and_choices_have_one_too(checkpoint: Callable[..., Path]) -> None:
    for name in ("resnet18", "vgg16"):
        network = outline(name, "image")
        assert network is not None
        assert anatomy(network).layers
    chooser = outline(str(checkpoint("bert", choices=True)), "choices")
    assert type(chooser).__name__ == "BertForMultipleChoice"


def test_nothing_is_known_of_a_sentence_cnn_before_it_has_words() -> None:
    assert outline("sentence-cnn", "pair") is None


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("resnet18", "text", "is a network for images, and these are texts"),
        ("sentence-cnn", "image", "is a network for texts, and these are images"),
        ("sentence-cnn", "choices", "not choices data"),
        ("/nowhere/at/all", "text", "no such folder"),
    ],
)
def test_what_cannot_be_trained_on_such_data_is_refused(name: str, kind: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        outline(name, kind)


def test_a_model_without_a_head_for_the_task_or_without_a_tokenizer_is_refused(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="no image classification model for architecture 'bert'"):
        outline(str(checkpoint("bert")), "image")
    with pytest.raises(InputError, match="no multiple choice model for architecture 'llama'"):
        outline(str(checkpoint("llama")), "choices")
    for path in checkpoint("bert").iterdir():
        if not path.name.startswith(("token", "vocab", "special")):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(InputError, match="tokenizer"):
        outline(str(tmp_path), "text")
