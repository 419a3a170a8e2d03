"""One batch on its way through: what a term of the loss may look at."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from calmix.mixing import drawing
from calmix.models import Anatomy, Edit, anatomy, head_input, pooled, rewriting, site_of_layer

__all__ = ["Signal", "Step", "fill_tokens"]

T = TypeVar("T")

Signal = Tensor | Callable[["Step"], Tensor]
"""What is known about each sample of the training set, first axis the samples; or what finds it out for a step."""


class Beside(Protocol):
    """Where work can be done beside what follows it: other streams of a captured step."""

    def forked(self, *reads: Tensor, lane: str) -> AbstractContextManager[None]:
        """Do what is inside beside what follows, on a lane; `reads` are the tensors from outside that it looks at."""

    def join(self, lane: str) -> None:
        """Wait for what was done on a lane."""


@dataclass(eq=False)
class Step:
    """A batch, the model it goes through, and where random draws come from."""

    model: nn.Module
    """The bare model: edits are made on its modules."""
    inputs: dict[str, Tensor]
    """What the model is called with; `input_ids` is [rows, width], or [rows, choices, width]; of images, it is
    `pixel_values`, [rows, channels, height, width]."""
    targets: Tensor
    """[rows, classes]: label distributions, one-hot mostly."""
    generator: torch.Generator
    wrapped: Callable[..., Any] | None = None
    """The model as it must be called when something is wrapped around it (DistributedDataParallel, say)."""
    parts: Anatomy | None = None
    rows: Tensor | None = None
    """Where each row stands in the training set."""
    class_weights: Tensor | None = None
    signals: Mapping[str, Signal] = field(default_factory=dict)
    """What is known about each sample of the training set, by name: see `signal`."""
    fill: Mapping[str, int] = field(default_factory=dict)
    """Ids of the tokens a pair may be padded with: see `fill_tokens`."""
    variant: int = 0
    """Which of the recipe's variants this step takes, drawn on the host (the layer to mix at, say)."""
    runs: int = 1
    """How many runs, with other seeds, share the step: their rows follow each other, equally many of each, and
    nobody is paired across them."""
    beside: Beside | None = None
    """Where `ahead` has its work done; None: in line."""
    _read: list[Tensor] = field(default_factory=list, init=False)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def size(self) -> int:
        """The rows of one run: the batch size, as a method means it."""
        return len(self) // self.runs

    @property
    def device(self) -> torch.device:
        """Where the batch is."""
        return self.targets.device

    @cached_property
    def anatomy(self) -> Anatomy:
        """Where the model's embeddings, layers and head are."""
        return self.parts or anatomy(self.model)

    @cached_property
    def logits(self) -> Tensor:
        """The clean forward's logits, computed when first asked for and once."""
        with head_input(self.model, self.anatomy) as self._read:
            return self.forward(self.inputs)

    @property
    def hidden(self) -> Tensor:
        """What the head read in the clean forward: [rows, features], or [rows · choices, features]."""
        assert self.logits is not None
        return pooled(self._read[0], self.inputs, self.model.config)

    @property
    def has_choices(self) -> bool:
        """Whether each row is several sequences, of which one is to be chosen."""
        return "input_ids" in self.inputs and self.inputs["input_ids"].dim() == 3

    @property
    def is_clean_known(self) -> bool:
        """Whether the clean forward has been made: its logits are then free to record."""
        return "logits" in self.__dict__

    @property
    def observed(self) -> tuple[Tensor, Tensor] | None:
        """The clean forward's logits, and where each row stands in the training set: free to record; None without."""
        return (self.logits, self.rows) if self.is_clean_known and self.rows is not None else None

    def column(self, name: str) -> Tensor:
        """Return a signal of all samples."""
        known = self.signals[name]
        assert isinstance(known, Tensor)
        return known

    def signal(self, name: str) -> Tensor:
        """Return a signal of the rows in this batch."""
        assert self.rows is not None
        known = self.signals[name]
        return known[self.rows] if isinstance(known, Tensor) else known(self)

    def ahead(self, work: Callable[[], T]) -> Callable[[], T]:
        """Return what gives the outcome of `work`, which is done beside a forward that is made before it is asked for.

        At small batches a step is as long as its chain of kernels, and whom to mix with, and how much, is often known
        before anything has been computed. `work` may draw and look at labels, rows and signals, not at a forward.
        """
        beside = self.beside
        if beside is None:
            done = work()
            return lambda: done
        with beside.forked(self.targets, *(() if self.rows is None else (self.rows,)), lane="ahead"):
            done = work()

        def joined() -> T:
            beside.join("ahead")
            return done

        return joined

    def forward(self, inputs: dict[str, Tensor], *, exchange: bool = True) -> Tensor:
        """Return the logits of these inputs, in float32.

        Without `exchange`, processes that train together do not meet in it: for a gradient that is not the loss's.
        """
        alone = not exchange and isinstance(self.wrapped, nn.parallel.DistributedDataParallel)
        output = (self.model if alone or self.wrapped is None else self.wrapped)(**inputs)
        logits: Tensor = output.logits
        return logits.float()

    def forward_edited(self, edit: Edit, *, exchange: bool = True) -> Tensor:
        """Return the logits with the input, token embeddings or pixels, replaced by `edit(input)`."""
        if "pixel_values" in self.inputs:
            pixels = edit(self.inputs["pixel_values"])
            return self.forward({**self.inputs, "pixel_values": pixels}, exchange=exchange)
        with rewriting(self.model, site_of_layer(self.anatomy, 0), edit):
            return self.forward(self.inputs, exchange=exchange)

    def beta(self, alpha: float, *, per_sample: bool = False) -> Tensor:
        """Return a mixing weight λ ~ Beta(α, α) for each row: one for the whole batch, or one each."""
        if per_sample:
            return drawing.beta(alpha, len(self), generator=self.generator, device=self.device)
        return self.betas(1, alpha)[0]

    def betas(self, count: int, alpha: float) -> Tensor:
        """Return `count` mixing weights for the whole batch, for each row of it: [count, rows]."""
        lam = drawing.beta(alpha, count * self.runs, generator=self.generator, device=self.device)
        return lam.view(count, self.runs, 1).expand(-1, -1, self.size).reshape(count, len(self))

    def permutation(self) -> Tensor:
        """Return a random permutation of the rows (of each run's among themselves)."""
        drawn = drawing.permutation(self.runs, self.size, generator=self.generator, device=self.device)
        return (drawn + self.offsets[:, None]).flatten()

    @property
    def offsets(self) -> Tensor:
        """Where the rows of each run begin."""
        return torch.arange(0, len(self), self.size, device=self.device)


def fill_tokens(tokenizer: Any) -> dict[str, int]:
    """Return the ids that the shorter text of a mixed pair can be padded with.

    A tokenizer without a separator lends its end-of-sequence token; `unused` is there if the vocabulary has
    one of the reserved names.
    """
    fill = {} if tokenizer.pad_token_id is None else {"pad": tokenizer.pad_token_id}
    separator = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    if separator is not None:
        fill["sep"] = separator
    for name in ("[unused0]", "<unused0>", "[unused1]", "madeupword0000", "<|reserved_special_token_0|>"):
        token = tokenizer.convert_tokens_to_ids(name)
        if token is not None and token != tokenizer.unk_token_id:
            fill["unused"] = token
            break
    return fill
