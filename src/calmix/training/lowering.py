"""Weights kept in float32 and trained through copies in lower precision, refreshed once a step."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from calmix.kernels import capturing
from calmix.training.branching import Branch
from calmix.training.calling import Calls, keep_ones
from calmix.training.embeddings import Embeddings
from calmix.training.layers import Layers, side_by_side
from calmix.training.layout import lay_out, like
from calmix.training.using import Use

__all__ = ["Lowered"]

# All but cuDNN's, whose backward takes twice as long for texts of a few dozen tokens.
_ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class Lowered:
    """Models that are called, and differentiated, through copies of their weights; one forward serves all of them.

    Autocast casts each weight where it is used, each gradient back, and every normalisation to float32 and back:
    a third of all kernels of a small step. Here the copies are renewed once after each update, gradients are cast
    together or not at all, and what flows between the layers stays in bf16. The float32 weights are what is updated.

    Args:
        models: one, or several of one shape, whose weights are then stacked along a new first axis, their own
            parameters becoming views of that: a batch has the rows of the first, then of the second, and so on.
        dtype: of the copies.
        branch: where gradients of weights may be computed beside the backward pass.
    """

    def __init__(
        self, models: Sequence[nn.Module], *, dtype: torch.dtype = torch.bfloat16, branch: Branch | None = None
    ) -> None:
        self.models, self.branch = models, branch
        self.owners = [{n: p for n, p in model.named_parameters() if p.is_floating_point()} for model in models]
        self.weights = {name: _stacked([owned[name] for owned in self.owners]) for name in self.owners[0]}
        self.dtype = dtype
        # Batch norm uses its own weights, in float32, which its kernels take beside an input of lower precision: its
        # statistics are sums over many thousand pixels.
        own = {
            f"{path}.{name}"
            for path, module in models[0].named_modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and len(models) == 1
            for name, _ in module.named_parameters()
        }
        copied = {name: weight for name, weight in self.weights.items() if name not in own}
        device = next(iter(self.weights.values())).device
        served = Layers.serves(models[0], device, dtype)
        self.copies = lay_out(copied, dtype, together=side_by_side(models[0]) if served else ())
        for name, copy in self.copies.items():
            copy.requires_grad_(self.owners[0][name].requires_grad)
        keep_ones(device, dtype)
        self.layers = Layers(models[0], self.copies) if served else None
        begins = served and Embeddings.serves(models[0], device, dtype)
        self.embeddings = Embeddings(models[0], self.copies) if begins else None
        # Where gradients of the copies may be written as they lie, if anywhere.
        self.stretch: Tensor | None = None
        # How often each was used in this step; and whether, as far as steps were made, none was ever used twice in one.
        self.uses: Counter[int] = Counter()
        self.once: bool | None = None
        # How many gradients of each were written in this step: more than one, if a forward is differentiated again.
        self.written: Counter[int] = Counter()

    def __call__(self, **inputs: Tensor) -> Any:
        """Return what the model returns, from the copies."""
        branch = self.branch if self.once else None
        lowered = {name: value.to(self.dtype) if value.is_floating_point() else value for name, value in inputs.items()}
        mask, around = inputs.get("attention_mask"), ExitStack()
        # Another mask than one number for each token is for transformers alone to read.
        plain = mask is not None and "input_ids" in inputs and mask.shape == inputs["input_ids"].shape
        if self.layers is not None and mask is not None and plain and self.layers.fit(mask):
            flat = (mask != 0).flatten(0, -2).long()
            seeds = torch.randint(2**63 - 1, (self.layers.sites + 1,), device=flat.device)
            use = Use(len(self.models), flat, seeds, branch, self.uses, self.home)
            around.enter_context(self.layers.used(use))
            if self.embeddings is not None:
                around.enter_context(self.embeddings.used(use, self.layers.sites))
            # One of four axes is passed on as it is: nobody reads it, and none is made of it.
            lowered["attention_mask"] = flat[:, None, None]
        with around, Calls(_sequences(inputs), branch, self.uses, self.home), sdpa_kernel(_ATTENTION):
            return functional_call(self.models[0], self.copies, kwargs=lowered)

    def length_for(self, width: int) -> int | None:
        """Return the length that layers are compiled for to serve texts of a width; None if they do not."""
        return None if self.layers is None else self.layers.length_for(width)

    def home(self, copy: Tensor) -> Tensor:
        """Return where the gradient of a copy is to be written: at home, if it is the only one of a captured step.

        Nor where copies of several runs lie between others: torch would not take their gradients as they are, but make
        copies of them, without waiting for what is computed beside.
        """
        self.written[copy.data_ptr()] += 1
        first = self.written[copy.data_ptr()] == 1
        if self.stretch is None or not (first and self.once and capturing() and copy.is_contiguous()):
            return torch.empty_like(copy)
        return like(self.stretch, copy)

    @torch.no_grad()
    def agrees(self, inputs: Mapping[str, Tensor]) -> bool:
        """Return whether several models give in one forward what each gives alone, for any weights they may have.

        Not where a forward does something with its weights that `Calls` does not know of.
        """
        model, runs = self.models[0], len(self.models)
        was_training = model.training
        model.eval()
        # Fresh models differ in their heads alone; noise makes them differ everywhere.
        generator = torch.Generator(next(iter(self.weights.values())).device).manual_seed(0)
        noisy = {
            name: weight + 0.02 * torch.randn(weight.shape, generator=generator, device=weight.device)
            for name, weight in self.weights.items()
        }
        each = [{name: weight[run] for name, weight in noisy.items()} for run in range(runs)]
        alone = torch.cat([functional_call(model, own, kwargs=dict(inputs)).logits for own in each])
        tiled = {name: value.repeat(runs, *[1] * (value.dim() - 1)) for name, value in inputs.items()}
        try:
            with Calls(_sequences(tiled), None, Counter()):
                together = functional_call(model, noisy, kwargs=tiled).logits
            return together.shape == alone.shape and torch.allclose(together, alone, rtol=1e-3, atol=1e-3)
        except (RuntimeError, IndexError, ValueError, TypeError):  # a shape it did not expect
            return False
        finally:
            self.models[0].train(was_training)

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights: whenever they have changed."""
        torch._foreach_copy_(list(self.copies.values()), [self.weights[name] for name in self.copies])

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients of the copies by name, and clear them.

        Those of the weights themselves, if a term of the loss reads them (a penalty, say), are added.
        """
        given = {name: copy.grad for name, copy in self.copies.items() if copy.grad is not None}
        for name in given:
            self.copies[name].grad = None
        for name, gradient in ({} if self.layers is None else self.layers.gradients()).items():
            given[name] = given[name] + gradient if name in given else gradient
        for name, weight in self.owners[0].items() if len(self.models) == 1 else ():
            if name in self.copies and weight.grad is not None:
                given[name] = given[name] + weight.grad if name in given else weight.grad
                weight.grad = None
        # Once and for all: steps of different kinds take turns, and one is captured after any other.
        again = max(self.written.values(), default=0) > 1
        self.once = self.once is not False and not again and max(self.uses.values(), default=0) == 1
        self.uses.clear()
        self.written.clear()
        return given

    def forget(self) -> None:
        """Drop what a step that was not finished has left: gradients, and how often each copy was used."""
        for copy in self.copies.values():
            copy.grad = None
        if self.layers is not None:
            self.layers.gradients()
        self.uses.clear()
        self.written.clear()

    @torch.no_grad()
    def hand_over(self) -> None:
        """Give the weights the gradients of their copies, in float32, and clear those."""
        given = self.gradients()
        gradients = [torch.empty_like(self.weights[name]) for name in given]
        torch._foreach_copy_(gradients, list(given.values()))
        for name, gradient in zip(given, gradients, strict=True):
            each = [gradient] if len(self.models) == 1 else gradient.unbind()
            for owned, part in zip(self.owners, each, strict=True):
                owned[name].grad = part


def _sequences(inputs: Mapping[str, Tensor]) -> int:
    """Return how many sequences, or images, a batch has."""
    if "pixel_values" in inputs:
        return len(inputs["pixel_values"])
    return inputs["input_ids"].shape[:-1].numel()


def _stacked(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Return the weights side by side; with several, they become views of it."""
    if len(parameters) == 1:
        return parameters[0].detach()
    stack = torch.stack([parameter.detach() for parameter in parameters])
    for parameter, part in zip(parameters, stack.unbind(), strict=True):
        parameter.data = part
    return stack
