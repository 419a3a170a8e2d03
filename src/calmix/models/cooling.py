"""Confidence that falls with the distance from the training data: a temperature for each input."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from calmix.errors import InputError
from calmix.models.anatomy import anatomy
from calmix.models.sites import pooled

__all__ = ["Cooling", "cooled", "read_cooling", "watched", "write_tensors"]

_NAME = "calmix.safetensors"

# Beyond so many deviations nothing is colder: what is that far cannot be told from what is farther.
_FARTHEST = 16.0


@dataclass(frozen=True, eq=False)
class Cooling:
    """Logits divided by exp(slope · d), d the deviations by which an input is farther from the training data than most.

    The distance is Mahalanobis's, from the nearest of some centres, of what the network holds of a text after a layer
    (its mean over tokens), or of what the head reads. Inputs as near as the data it was levelled on stay as they are,
    and classes keep their order, so accuracy does not change.
    """

    slope: float
    layer: int
    """After which layer texts are compared; 0: what the head reads."""
    centres: Tensor
    """[centres, features], whitened."""
    whiten: Tensor
    """[features, features]: what makes the training data's spread the same in every direction."""
    usual: tuple[float, float]
    """Mean and standard deviation of the distances of data held out from training."""

    def __post_init__(self) -> None:
        if self.slope < 0:
            raise InputError(f"confidence must not rise with the distance from the data: slope is {self.slope}")

    def distances(self, features: Tensor) -> Tensor:
        """Return how far each row of features [rows, features] is, in deviations from what is usual."""
        whiten, centres = (t.to(features.device) for t in (self.whiten, self.centres))
        far = torch.cdist(features.float() @ whiten, centres).amin(1)
        return (far - self.usual[0]) / self.usual[1]

    def factors(self, features: Tensor) -> Tensor:
        """Return what the logits of each row are divided by."""
        return torch.exp(self.slope * self.distances(features).clamp(0, _FARTHEST))

    def to_json(self) -> dict[str, Any]:
        """A dict that `json.dump` can write; the tensors are in a file beside it."""
        return {"slope": self.slope, "layer": self.layer, "usual": list(self.usual)}


def write_tensors(folder: Path, cooling: Cooling | None) -> None:
    """Write the tensors of a correction beside a checkpoint, or take away what is there."""
    if cooling is None:
        (folder / _NAME).unlink(missing_ok=True)
    else:
        tensors = {"centres": cooling.centres, "whiten": cooling.whiten}
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, folder / _NAME)


def read_cooling(folder: Path, state: dict[str, Any]) -> Cooling:
    """Return the correction that `to_json` and `write_tensors` wrote down."""
    try:
        tensors = load_file(folder / _NAME)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{_NAME}: {error}") from None
    mean, deviation = map(float, state["usual"])
    return Cooling(float(state["slope"]), int(state["layer"]), tensors["centres"], tensors["whiten"], (mean, deviation))


@contextmanager
def watched(model: nn.Module, layer: int) -> Iterator[list[Tensor]]:
    """Yield a list that receives, for each forward inside the block, one vector per text [rows · choices, features]."""
    parts = anatomy(model)
    held: list[Tensor] = []
    kept: list[Tensor] = []
    site = parts.layers[layer - 1] if layer else parts.head

    def on_layer(_module: nn.Module, _args: Any, output: Any) -> None:
        held.append(output[0] if isinstance(output, tuple) else output)

    def on_head(_module: nn.Module, args: tuple[Any, ...]) -> None:
        held.append(args[0])

    def after(_module: nn.Module, _args: Any, inputs: dict[str, Any], _output: Any) -> None:
        kept.append(_of_texts(held.pop(), inputs, layer, getattr(model.config, "pad_token_id", None)))

    place = model.get_submodule(site)
    handles = [place.register_forward_hook(on_layer) if layer else place.register_forward_pre_hook(on_head)]
    handles.append(model.register_forward_hook(after, with_kwargs=True))
    try:
        yield kept
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def cooled(model: nn.Module, cooling: Cooling | None) -> Iterator[None]:
    """Divide the logits of every forward inside the block by what the distances of its inputs ask for."""
    if cooling is None:
        yield
        return
    with watched(model, cooling.layer) as seen:

        def after(_module: nn.Module, _args: Any, output: Any) -> Any:
            with torch.autocast(output.logits.device.type, enabled=False):
                factors = cooling.factors(seen.pop())
            # A row of choices is as far as they are on average.
            rows = factors.view(len(output.logits), -1).log().mean(1).exp()
            output.logits = output.logits / rows[:, None].to(output.logits.dtype)
            return output

        handle = model.register_forward_hook(after)
        try:
            yield
        finally:
            handle.remove()


def _of_texts(held: Tensor, inputs: dict[str, Any], layer: int, pad: int | None) -> Tensor:
    if layer == 0:
        return pooled(held, inputs, pad).flatten(0, -2).float()
    mask: Tensor = inputs["attention_mask"].flatten(0, -2)[..., None].float()
    return (held.float() * mask).sum(1) / mask.sum(1).clamp_min(1)
