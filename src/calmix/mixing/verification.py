"""Whether a network can be mixed where a recipe mixes it: tried on two rows before anything is trained."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calmix.errors import InputError
from calmix.mixing.levels import Level, mixed_logits
from calmix.mixing.recipe import Recipe
from calmix.mixing.step import Step
from calmix.models import Packed, Pixels, head_of
from calmix.models.loading import line_of

__all__ = ["verify_mixing"]

# How long a text need be to show what there is to see, in tokens.
_LENGTH = 6

# A mix of one row alone may differ from it by so much of what the two rows differ by, and of the largest logit.
_OF_DIFFERENCE, _OF_LOGITS = 0.02, 1e-4


def verify_mixing(model: nn.Module, packed: Packed | Pixels, recipe: Recipe, reader: Any) -> list[str]:
    """Return what should be known of mixing this network; refuse a level of the recipe at which it is no mixing.

    At λ = 1 a mix has a row's own logits and at λ = 0 its partner's; at the head, what it reads gives the logits. A
    level is tried by one forward of short texts without gradients. Where a recipe does not say at which levels it
    mixes, all are tried and none is refused. Neither the weights nor any random state change.
    """
    kind = type(model).__name__
    with _undisturbed(model):
        step = _two_rows(model, packed, reader)
        parts, levels = step.anatomy, recipe.levels
        asked = levels(parts) if callable(levels) else levels
        known: list[Level] = [*range(len(parts.layers) + 1), "inner", "head"]
        if parts.inner is None:
            known.remove("inner")
        try:
            clean = step.logits
            if "input_ids" in step.inputs:  # of images, batch norm would learn from it
                model.train()
                step.forward(step.inputs)
                model.eval()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever transformers has to say to such texts
            raise InputError(f"{kind} cannot be trained on these texts ({line_of(error)})") from None
        failed = {level: why for level in (known if asked is None else asked) if (why := _fault(step, level, clean))}
        if not failed:
            found_none = recipe.variants(model) > 1 and not parts.layers
            return [f"{kind}: no hidden layers are found in it: only the input and the head are mixed"] * found_none
        works = [level for level in known if level not in failed and not _fault(step, level, clean)]
    can = f"it can at {_named(works)}" if works else "train it without mixing, with recipe erm"
    line = f"{kind} cannot be mixed at {_named(list(failed))} ({next(iter(failed.values()))}): {can}"
    if asked is None:
        return [line]
    raise InputError(line)


def _fault(step: Step, level: Level, clean: Tensor) -> str | None:
    """Return why a network cannot be mixed at a level; None if it can."""
    try:
        if level == "head":
            logits = head_of(step.model)(step.hidden).view_as(clean)
        else:
            # λ is 1 for the first row and 0 for the second: the first one alone is in both mixes.
            rows = torch.arange(2, device=step.device)
            logits = mixed_logits(step, 1 - rows, 1.0 - rows, level=level, padding="none")
    except torch.OutOfMemoryError:
        raise
    except InputError as error:
        return str(error)
    except Exception as error:  # an edit that its network cannot go on with
        return line_of(error)
    expected = clean if level == "head" else clean[:1]
    allowed = _OF_DIFFERENCE * (clean[0] - clean[1]).abs().max() + _OF_LOGITS * clean.abs().max()
    if (logits - expected).abs().max() <= allowed:
        return None
    return (
        "what its head reads is not what its logits are made of"
        if level == "head"
        else "with λ = 1 or 0 a mix is not one of the two"
    )


def _two_rows(model: nn.Module, packed: Packed | Pixels, reader: Any) -> Step:
    """Return a step of a short sample and of one as long that has other words, or of an image and its negative."""
    row = int(np.abs(packed.host_lengths - _LENGTH).argmin())
    choices = None if packed.counts is None else int(packed.counts[row])
    rows, width = torch.full((2,), row), packed.width(np.array([row]))
    device = next(model.parameters()).device
    inputs = packed.batch(rows, width=width, choices=choices)
    inputs = {name: values.to(device) for name, values in inputs.items()}
    if "pixel_values" in inputs:
        inputs["pixel_values"][1] *= -1
    else:
        inputs["input_ids"][1] = _other_words(inputs["input_ids"][1], reader)
    targets = torch.zeros(2, choices or int(model.config.num_labels), device=device)  # type: ignore[union-attr, arg-type]
    return Step(model, inputs, targets, torch.Generator(device))


def _other_words(ids: Tensor, tokenizer: Any) -> Tensor:
    """Return token ids with other ones in the places of words: marks and padding stay."""
    marks: Collection[int] = set(tokenizer.all_special_ids)
    words: Sequence[int] = [word for word in range(len(tokenizer)) if word not in marks]
    drawn = torch.tensor(words, device=ids.device)[(7 * ids + 1) % len(words)]
    return torch.where(torch.isin(ids, torch.tensor(list(marks), device=ids.device)), ids, drawn)


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Inside the block, have the model in evaluation mode and make no graphs; leave no trace in what is random."""
    training = {module: module.training for module in model.modules()}
    devices = {p.device for p in model.parameters() if p.is_cuda}
    with torch.random.fork_rng(devices), torch.no_grad():
        model.eval()
        try:
            yield
        finally:
            for module, was in training.items():
                module.training = was


def _named(levels: list[Level]) -> str:
    """Return levels as people say them."""
    layers = [str(level) for level in levels if isinstance(level, int) and level > 0]
    names = ["the input"] if 0 in levels else []
    if layers:
        names.append(f"layer{'s' * (len(layers) > 1)} {', '.join(layers)}")
    return ", ".join([*names, *(level for level in ("inner", "head") if level in levels)])
