"""Several classifiers as one: the mean of their probabilities (Lakshminarayanan et al. 2017)."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from calmix.data import Examples, write_json
from calmix.data.reusing import reusing
from calmix.errors import InputError
from calmix.models.anatomy import reads_pixels
from calmix.models.averaging import columns_for, mean_logits
from calmix.models.beside import Beside, read_beside, write_beside
from calmix.models.classifier import (
    Classifier,
    Text,
    checkpoint_of,
    examples_of,
    labels_inside,
    load_one,
    log_probabilities,
    winners_of,
)
from calmix.models.dropping import Dropout
from calmix.models.loading import save
from calmix.models.predicting import Arithmetic

__all__ = ["Ensemble", "Predictor", "load", "save_ensemble"]

_NAME = "ensemble.json"


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Classifiers whose probabilities are averaged, and what is kept beside them, such as a temperature of the mean."""

    members: tuple[Classifier, ...]
    beside: Beside = field(default_factory=Beside)

    def __post_init__(self) -> None:
        first = self.members[0]
        for place, member in enumerate(self.members, start=1):
            if member.multiple_choice != first.multiple_choice:
                raise InputError("some members choose among choices, others among classes: they cannot vote together")
            if columns_for(first.label_names, member.label_names) is None:
                raise InputError(
                    f"labels differ: {', '.join(first.label_names)} in the ensemble's first member, "
                    f"{', '.join(member.label_names)} in number {place}"
                )

    @property
    def label_names(self) -> tuple[str, ...]:
        """The classes, in the order of the first member's logits; none for multiple choice."""
        return self.members[0].label_names

    @property
    def columns(self) -> dict[str, str]:
        """The columns that were named in the first member's training, by what they hold."""
        return self.members[0].columns

    @property
    def multiple_choice(self) -> bool:
        """Whether it scores the choices of each row instead of a fixed set of classes."""
        return self.members[0].multiple_choice

    def check(self, examples: Examples) -> None:
        """Refuse examples of a kind that a member does not read."""
        for member in self.members:
            member.check(examples)

    def to(self, device: torch.device | str) -> "Ensemble":
        """Return itself, with its models on a device."""
        for member in self.members:
            member.to(device)
        return self

    def unscaled(self) -> "Ensemble":
        """Return the mean of the members as they came out of training."""
        return Ensemble(tuple(member.unscaled() for member in self.members))

    def logits(self, examples: Examples, *, progress: Callable[[int], None] | None = None) -> NDArray[np.float32]:
        """Return the logarithm of the members' mean probabilities, each as it was calibrated."""
        found = []
        with reusing():
            for member in self.members:
                # Rows are told as done when the last member has seen them.
                last = progress if member is self.members[-1] else None
                scores = log_probabilities(member.logits(examples, progress=last), member.beside.recalibrator)
                if self.label_names:
                    scores = scores[:, columns_for(self.label_names, member.label_names)]
                found.append(torch.from_numpy(np.ascontiguousarray(scores)))
        return np.asarray(mean_logits(found).numpy())

    def probabilities(
        self, examples: Examples, *, progress: Callable[[int], None] | None = None
    ) -> NDArray[np.float64]:
        """Return calibrated probabilities of examples [n, K]."""
        return self.beside.probabilities(self.logits(examples, progress=progress))

    def predict_proba(self, texts: Sequence[Text]) -> NDArray[np.float64]:
        """Return a probability per class for each text, pair (a, b), or (text, choices)."""
        return self.probabilities(examples_of(texts, images=reads_pixels(self.members[0].model)))

    def predict(self, texts: Sequence[Text], *, abstain: bool = False) -> list[Any]:
        """Return the most probable label of each text; the index of the choice for multiple choice.

        With `abstain`, which a model needs a guarantee for (`calmix.train(…, guarantee=0.95)`), None stands for what
        is not `accepted`: see `Classifier.predict`. An ensemble has one once it was calibrated with one as a whole.
        """
        rule = self.beside.rule() if abstain else None
        return winners_of(self.predict_proba(texts), self.label_names, rule)

    def accepted(self, probs: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which predictions of these probabilities to accept: the accuracy among them is the promised one."""
        return np.asarray(self.beside.rule()(probs))

    def possible(self, probs: NDArray[np.float64]) -> list[list[Any]]:
        """Return the labels that are possible in each row: the true one is among them as often as was promised."""
        return labels_inside(self.beside.inside(probs), self.label_names)


Predictor = Classifier | Ensemble
"""Whatever predicts."""


def load(
    folder: str | Path | Sequence[str | Path],
    *,
    precision: Arithmetic = "fp32",
    mc_dropout: int | Dropout | None = None,
) -> Predictor:
    """Return the classifier in a checkpoint or run folder (or by hub name), on the GPU if there is one.

    Several are an ensemble, and so is the folder that `calmix calibrate` made of several. With `precision="bf16"` it
    predicts faster where the hardware has that arithmetic, and its probabilities differ in the third
    digit. `mc_dropout` predicts so many times with dropout on and takes the mean (or `Dropout(passes, rate)`).
    """
    if precision not in get_args(Arithmetic):
        raise InputError(f"precision must be one of {', '.join(get_args(Arithmetic))}, not {precision!r}")
    dropout = Dropout(mc_dropout) if isinstance(mc_dropout, int) else mc_dropout
    folders = [folder] if isinstance(folder, str | Path) else list(folder)
    if not folders:
        raise InputError("an ensemble needs at least one member")
    found = [_load(each, precision, dropout) for each in folders]
    if len(found) == 1:
        return found[0]
    members: list[Classifier] = []
    for name, each in zip(folders, found, strict=True):
        if isinstance(each, Ensemble):
            raise InputError(f"{name}: is an ensemble itself: name its members, {name}/member-1 and so on")
        members.append(each)
    return Ensemble(tuple(members))


def save_ensemble(ensemble: Ensemble, beside: Beside, folder: Path) -> None:
    """Write an ensemble with all its members: `load` reads it as any model."""
    names = [f"member-{place}" for place in range(1, len(ensemble.members) + 1)]
    for name, member in zip(names, ensemble.members, strict=True):
        save(member.model, member.tokenizer, folder / name)
        write_beside(folder / name, member.beside)
    write_beside(folder, beside)
    write_json(folder / _NAME, {"members": names})


def _load(folder: str | Path, precision: Arithmetic, dropout: Dropout | None) -> Predictor:
    name = checkpoint_of(folder)
    file = Path(name) / _NAME
    if not file.is_file():
        return load_one(name, precision=precision, dropout=dropout)
    beside = read_beside(Path(name))
    if dropout is not None:
        if beside.recalibrator is not None:
            raise InputError(f"{name}: was calibrated as it stands: calibrate its members with --mc-dropout instead")
        beside = replace(beside, threshold=None, sets=None)
    try:
        members = json.loads(file.read_text(encoding="utf-8"))["members"]
        if not members or not all(isinstance(m, str) and Path(m).name == m for m in members):
            raise ValueError("its members are folders inside it")
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{file}: is damaged ({error}); calibrate the ensemble again") from None
    loaded = [load_one(Path(name) / member, precision=precision, dropout=dropout) for member in members]
    return Ensemble(tuple(loaded), beside)
