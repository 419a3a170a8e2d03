"""The networks for small images: as large as published, any size in, and saved and loaded like any other."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageClassification

from calmix.models import SMALL
from calmix.models.convnets import CONVNETS, ConvNetConfig, ConvNetForImageClassification, convnet

# Millions of weights, with ten classes and three channels: as in the usual implementations for CIFAR.
_MILLIONS = {"resnet18": 11.17, "resnet34": 21.28, "resnet50": 23.52, "resnext101": 42.14, "vgg16": 14.72}


def test_every_name_has_its_network() -> None:
    assert tuple(CONVNETS) == SMALL


@pytest.mark.parametrize("name", SMALL)
def test_a_network_is_as_large_as_published(name: str) -> None:
    with torch.device("meta"):
        model = convnet(name, label_names=[str(k) for k in range(10)], channels=3)
    assert sum(weight.numel() for weight in model.parameters()) / 1e6 == pytest.approx(_MILLIONS[name], abs=0.01)


@pytest.mark.parametrize("name", SMALL)
def test_stages_halve_an_image_that_the_stem_leaves_as_it_is(name: str) -> None:
    with torch.device("meta"):
        model = convnet(name, label_names=["a", "b"], channels=3).eval()
        sizes: list[int] = []
        for stage in model.body.stages:
            stage.register_forward_hook(lambda _module, _args, output: sizes.append(output.shape[-1]))
        logits = model(torch.zeros(2, 3, 32, 32)).logits
    assert sizes == ([16, 8, 4, 2, 1] if name == "vgg16" else [32, 16, 8, 4])
    assert logits.shape == (2, 2)


@pytest.mark.parametrize("block", ["basic", "bottleneck", "plain"])
@pytest.mark.parametrize("side", [1, 5, 28])
def test_images_of_any_size_come_through(block: str, side: int) -> None:
    config = ConvNetConfig(block=block, depths=[1, 1, 1], widths=[8, 8, 16], num_channels=1, num_labels=3)
    model = ConvNetForImageClassification(config).eval()
    with torch.no_grad():
        assert torch.isfinite(model(torch.randn(2, 1, side, side)).logits).all()


def test_groups_and_inner_widths_are_those_of_the_middle_convolution() -> None:
    config = ConvNetConfig(block="bottleneck", depths=[1], widths=[32], inner_widths=[16], groups=4, num_labels=2)
    middle = ConvNetForImageClassification(config).body.stages[0][0].residual[1][0]
    assert (middle.in_channels, middle.out_channels, middle.groups) == (16, 16, 4)


def test_the_same_seed_draws_the_same_weights() -> None:
    config = ConvNetConfig(depths=[1], widths=[8], num_labels=2)
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(ConvNetForImageClassification(config).body.stem[0].weight)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_transformers_loads_what_was_saved(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = ConvNetConfig(depths=[1, 1], widths=[8, 16], dropout=0.3, id2label={0: "cat", 1: "dog"})
    model = ConvNetForImageClassification(config)
    batch = torch.randn(4, 3, 8, 8)
    model(batch)  # moves the running statistics, which must be saved too
    model.eval().save_pretrained(tmp_path)
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    assert loaded.config.id2label == {0: "cat", 1: "dog"}
    assert loaded.dropout.p == 0.3
    with torch.no_grad():
        assert torch.equal(loaded(batch).logits, model(batch).logits)
