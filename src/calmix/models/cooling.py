"""A temperature for each input, by its distance from the training data: far from it, confidence falls."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from calmix.data.files import atomic_path
from calmix.errors import InputError
from calmix.models.anatomy import anatomy
from calmix.models.locks import exclusive
from calmix.models.sites import head_input, pooled

__all__ = ["NEAREST_AND_FARTHEST", "Cooling", "cooled", "read_cooling", "rewriting_logits", "write_tensors"]

_NAME = "calmix.safetensors"

NEAREST_AND_FARTHEST = (-3.0, 4.0)
"""Deviations beyond which nearer is not surer, and farther not less sure: what is that far cannot be told apart."""

Edit = Callable[[Tensor, Tensor], Tensor]
"""Logits [rows, classes] and what the head read [rows, choices, features] → other logits."""


@dataclass(frozen=True, eq=False)
class Cooling:
    """Logits divided by exp(slope · d), d the deviations by which an input is farther from the training data than most.

    The distance is Mahalanobis's, of what the head reads, from the nearest class of the training data. A row of
    choices is as far as they are on average. Classes keep their order, so accuracy does not change.
    """

    slope: float
    centres: Tensor
    """[classes, features]: where the training data of each class lie, whitened."""
    whiten: Tensor
    """[features, features]: what makes their spread the same in every direction."""
    usual: tuple[float, float]
    """Mean and standard deviation of the distances of data held out from training."""

    def __post_init__(self) -> None:
        if not 0 <= self.slope < float("inf"):
            raise InputError(f"confidence must not rise with the distance from the data: slope is {self.slope}")

    def to(self, device: torch.device) -> "Cooling":
        """Return the same correction with its tensors on `device`."""
        return replace(self, centres=self.centres.to(device), whiten=self.whiten.to(device))

    def distances(self, features: Tensor) -> Tensor:
        """Return how far each row of features [rows, choices, features] is, in deviations from what is usual."""
        whiten, centres = (tensor.to(features.device) for tensor in (self.whiten, self.centres))
        # Not `torch.cdist`, for which ONNX has no name. From the middle of the centres, little is lost to rounding.
        middle = centres.mean(0)
        x, centres = features.float().flatten(0, 1) @ whiten - middle, centres - middle
        squares = x.square().sum(1, keepdim=True) + centres.square().sum(1) - 2 * x @ centres.T
        far = squares.amin(1).clamp_min(0).sqrt()
        return (far.view(features.shape[:2]).mean(1) - self.usual[0]) / self.usual[1]

    def __call__(self, logits: Tensor, features: Tensor) -> Tensor:
        """Return logits, each row divided by what its distance asks for."""
        factors = torch.exp(self.slope * self.distances(features).clamp(*NEAREST_AND_FARTHEST))
        return logits / factors[:, None].to(logits.dtype)

    def to_json(self) -> dict[str, Any]:
        """A dict that `json.dump` can write; the tensors are in a file beside it."""
        return {"slope": self.slope, "usual": list(self.usual)}


def write_tensors(folder: Path, cooling: Cooling | None) -> None:
    """Write the tensors of a correction beside a checkpoint, or take away what is there."""
    if cooling is None:
        (folder / _NAME).unlink(missing_ok=True)
    else:
        tensors = {"centres": cooling.centres, "whiten": cooling.whiten}
        # Not `save_file`, whose files nobody but their owner may read.
        content = save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()})
        with atomic_path(folder / _NAME) as temporary:
            temporary.write_bytes(content)


def read_cooling(folder: Path, state: dict[str, Any]) -> Cooling:
    """Return the correction that `to_json` and `write_tensors` wrote down."""
    try:
        tensors = load_file(folder / _NAME)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{_NAME}: {error}") from None
    mean, deviation = map(float, state["usual"])
    return Cooling(float(state["slope"]), tensors["centres"], tensors["whiten"], (mean, deviation))


@contextmanager
def cooled(model: nn.Module, cooling: Cooling | None) -> Iterator[None]:
    """Correct the logits of every forward inside the block."""
    if cooling is None:
        yield
    else:
        with rewriting_logits(model, cooling):
            yield


@contextmanager
def rewriting_logits(model: nn.Module, edit: Edit) -> Iterator[None]:
    """Replace the logits of every forward inside the block by what `edit` makes of them and of what the head read.

    Other threads cannot predict with the model meanwhile: their logits would be replaced, too.
    """
    with exclusive(model), head_input(model, anatomy(model)) as seen:

        def after(_module: nn.Module, _args: Any, inputs: dict[str, Any], output: Any) -> Any:
            read = pooled(seen.pop(), inputs, model.config)
            with torch.autocast(read.device.type, enabled=False):
                # Not `len`, which writes the number of rows into an exported graph.
                output.logits = edit(output.logits, read.view(output.logits.shape[0], -1, read.shape[-1]))
            return output

        handle = model.register_forward_hook(after, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()
