"""Convolutional networks for small images, trained from random weights: ResNet, ResNeXt and VGG."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForImageClassification, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ImageClassifierOutputWithNoAttention

__all__ = ["CONVNETS", "ConvNetConfig", "ConvNetForImageClassification", "convnet"]

CONVNETS: dict[str, dict[str, Any]] = {
    "resnet18": {"block": "basic", "depths": [2, 2, 2, 2], "widths": [64, 128, 256, 512]},
    "resnet34": {"block": "basic", "depths": [3, 4, 6, 3], "widths": [64, 128, 256, 512]},
    "resnet50": {"block": "bottleneck", "depths": [3, 4, 6, 3], "widths": [256, 512, 1024, 2048]},
    "resnext101": {
        "block": "bottleneck",
        "depths": [3, 4, 23, 3],
        "widths": [256, 512, 1024, 2048],
        "inner_widths": [128, 256, 512, 1024],
        "groups": 32,
    },
    "vgg16": {"block": "plain", "depths": [2, 2, 3, 3, 3], "widths": [64, 128, 256, 512, 512]},
}
"""The networks by name: He et al. 2016, Xie et al. 2017 (32x4d), Simonyan & Zisserman 2015 with batch norm."""


class ConvNetConfig(PreTrainedConfig):  # type: ignore[misc]
    """What a network is: the blocks of its stages, how many in each, and how wide they are.

    The stem is that of small images, a 3×3 convolution of stride 1 without pooling: transformers' own ResNet has
    one that shrinks an image fourfold before the first block, and neither groups nor plain blocks.

    Args:
        block: `basic` (two 3×3 convolutions), `bottleneck` (1×1, 3×3, 1×1), or `plain` (VGG: convolutions, then
            pooling).
        depths: blocks of each stage.
        widths: channels after each stage.
        inner_widths: of the 3×3 convolutions in bottlenecks; a quarter of the widths if not given.
        groups: of the same convolutions.
        num_channels: of the images.
        dropout: before the head.
        others: what every configuration of transformers has.
    """

    model_type = "calmix-convnet"

    def __init__(
        self,
        block: str = "basic",
        depths: Sequence[int] = (2, 2, 2, 2),
        widths: Sequence[int] = (64, 128, 256, 512),
        inner_widths: Sequence[int] | None = None,
        groups: int = 1,
        num_channels: int = 3,
        dropout: float = 0.0,
        **others: Any,
    ) -> None:
        self.block, self.depths, self.widths = block, list(depths), list(widths)
        self.inner_widths = None if inner_widths is None else list(inner_widths)
        self.groups, self.num_channels, self.dropout = groups, num_channels, dropout
        super().__init__(**others)


class _Unit(nn.Sequential):
    """A convolution and its batch norm, with an activation unless it ends a residual."""

    def __init__(
        self, inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1, groups: int = 1, active: bool = True
    ) -> None:
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(outputs), *([nn.ReLU(inplace=True)] if active else []))


class _Block(nn.Module):
    """A residual block: basic, or a bottleneck where it has an inner width."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, inner: int | None, groups: int) -> None:
        super().__init__()
        if inner is None:
            parts = [_Unit(inputs, outputs, stride=stride), _Unit(outputs, outputs, active=False)]
        else:
            parts = [
                _Unit(inputs, inner, kernel=1),
                _Unit(inner, inner, stride=stride, groups=groups),
                _Unit(inner, outputs, kernel=1, active=False),
            ]
        self.residual = nn.Sequential(*parts)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else _Unit(inputs, outputs, kernel=1, stride=stride, active=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.residual(x) + self.shortcut(x))


class _Body(nn.Module):
    """The stem and the stages."""

    def __init__(self, config: ConvNetConfig) -> None:
        super().__init__()
        plain = config.block == "plain"
        self.stem = nn.Identity() if plain else _Unit(config.num_channels, 64)
        width = config.num_channels if plain else 64
        stages = []
        for place, (depth, outputs) in enumerate(zip(config.depths, config.widths, strict=True)):
            blocks: list[nn.Module] = []
            for turn in range(depth):
                stride = 2 if turn == 0 and place > 0 else 1
                blocks.append(_Unit(width, outputs) if plain else _block(config, place, width, outputs, stride))
                width = outputs
            if plain:
                # Rounded up, so that images of any size come through all five.
                blocks.append(nn.MaxPool2d(2, ceil_mode=True))
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.ModuleList(stages)

    def forward(self, pixels: Tensor) -> Tensor:
        x: Tensor = self.stem(pixels)
        for stage in self.stages:
            x = stage(x)
        return x.mean((2, 3))


def _block(config: ConvNetConfig, place: int, inputs: int, outputs: int, stride: int) -> _Block:
    inner = None
    if config.block == "bottleneck":
        inner = outputs // 4 if config.inner_widths is None else config.inner_widths[place]
    return _Block(inputs, outputs, stride=stride, inner=inner, groups=config.groups)


class ConvNetForImageClassification(PreTrainedModel):  # type: ignore[misc]
    """Pixels [rows, channels, height, width] in, logits out. `calmix.load` reads its checkpoints.

    With calmix imported, transformers' `AutoModelForImageClassification` reads them too.
    """

    config_class = ConvNetConfig
    base_model_prefix = "body"
    main_input_name = "pixel_values"

    def __init__(self, config: ConvNetConfig) -> None:
        super().__init__(config)
        self.body = _Body(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.widths[-1], config.num_labels)
        self.post_init()

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> ImageClassifierOutputWithNoAttention:
        """Return the logits, and the mean cross-entropy to labels, if there are any."""
        logits = self.classifier(self.dropout(self.body(pixel_values)))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return ImageClassifierOutputWithNoAttention(loss=loss, logits=logits)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d | nn.Linear):
            module.reset_parameters()


def convnet(name: str, *, label_names: Sequence[str], channels: int) -> ConvNetForImageClassification:
    """Return one of the networks by name, its weights drawn from torch's global random state: seed it first."""
    config = ConvNetConfig(
        **CONVNETS[name],
        num_channels=channels,
        id2label=dict(enumerate(label_names)),
        label2id={label: i for i, label in enumerate(label_names)},
        problem_type="single_label_classification",
    )
    return ConvNetForImageClassification(config)


AutoConfig.register(ConvNetConfig.model_type, ConvNetConfig)
AutoModelForImageClassification.register(ConvNetConfig, ConvNetForImageClassification)
