"""A trained classifier ready to use: texts in, calibrated probabilities out."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import nn

from calmix.calibration import Recalibrator, SelectiveThreshold
from calmix.data import Examples
from calmix.data.origin import listed
from calmix.data.remembering import COLUMNS, role_names
from calmix.data.reusing import reused
from calmix.errors import InputError
from calmix.models.anatomy import reads_pixels
from calmix.models.averaging import LEAST
from calmix.models.beside import Beside, read_beside
from calmix.models.dropping import Dropout
from calmix.models.encoding import Packed, encode, usable_length
from calmix.models.folding import fold, folded_temperature
from calmix.models.loading import is_multiple_choice, label_names_of, load_trained
from calmix.models.pixels import Pixels, pack_images
from calmix.models.predicting import Arithmetic, predict_logits

__all__ = [
    "KIND",
    "Classifier",
    "Text",
    "checkpoint_of",
    "examples_of",
    "labels_inside",
    "load_one",
    "log_probabilities",
    "winners_of",
]

KIND = "calmix_kind"
"""Where a config keeps what the model was trained on: `text`, `pair` or `image`. Others' models do not say."""
# Data sets that are kept as a model reads them, for other models: as many as one is likely to be compared on.
_SETS = 8
_WORDS = {"text": "single texts", "pair": "pairs of texts (see --text-b)", "image": "images"}

Text = str | tuple[str, str] | tuple[str, Sequence[str]] | Path | bytes | NDArray[np.uint8]
"""What can be predicted: a text, a pair, a text with choices; an image as a path, the bytes of a file, or pixels."""


@dataclass(frozen=True, eq=False)
class Classifier:
    """A model, its tokenizer (for images, their `Preparation`), its labels, and what is kept beside it."""

    model: nn.Module
    tokenizer: Any
    label_names: tuple[str, ...]
    beside: Beside = field(default_factory=Beside)
    precision: Arithmetic = "fp32"

    def __repr__(self) -> str:
        names = f", labels {', '.join(self.label_names)}" if self.label_names else ""
        return f"Classifier({type(self.model).__name__}{names})"

    @property
    def columns(self) -> dict[str, str]:
        """The columns that were named in training, by what they hold: other tables are likely to have them, too."""
        return role_names(getattr(self.model.config, COLUMNS, None))

    @property
    def multiple_choice(self) -> bool:
        """Whether it scores the choices of each row instead of a fixed set of classes."""
        return is_multiple_choice(self.model)

    def check(self, examples: Examples) -> None:
        """Refuse examples of a kind that this model does not read."""
        images = reads_pixels(self.model)
        if (examples.kind == "image") != images or (examples.kind == "choices") != self.multiple_choice:
            wants = "images" if images else "texts with choices" if self.multiple_choice else "plain texts or pairs"
            raise InputError(
                f"{examples.source or 'the data'}: holds {examples.kind} data, but this model reads {wants}"
            )
        trained_on = getattr(self.model.config, KIND, examples.kind)
        if trained_on != examples.kind:
            raise InputError(
                f"{examples.source or 'the data'}: holds {_WORDS[examples.kind]}, but this model was trained on "
                f"{_WORDS[trained_on]}"
            )

    def to(self, device: torch.device | str) -> "Classifier":
        """Return itself, with its model on a device."""
        self.model.to(device)
        return self

    def unscaled(self) -> "Classifier":
        """Return a copy as it came out of training: no temperature in its weights, no recalibrator beside them."""
        model = copy.deepcopy(self.model)
        fold(model, 1 / folded_temperature(model))
        return replace(self, model=model, beside=Beside(dropout=self.beside.dropout))

    def encode(self, examples: Examples) -> Packed | Pixels:
        """Return examples as this model reads them."""
        self.check(examples)
        if examples.kind == "image":
            # Networks of one kind prepare images alike: many of them can share what was decoded.
            make = partial(pack_images, examples, self.tokenizer)
            return reused("pixels read", (examples, self.tokenizer), make, most=_SETS)
        most = usable_length(self.tokenizer, self.model.config, None)
        read = partial(encode, examples, self.tokenizer, max_length=most)
        return reused("tokens read", (examples, self.tokenizer, most), read, most=_SETS)

    def logits(self, examples: Examples, *, progress: Callable[[int], None] | None = None) -> NDArray[np.float32]:
        """Return the logits of examples; choices a row does not have are −inf.

        With MC-dropout they are the logarithm of the mean probabilities of its passes.
        """
        packed = self.encode(examples)
        return predict_logits(
            self.model,
            packed,
            precision=self.precision,
            dropout=self.beside.dropout,
            progress=progress,
        )

    def probabilities(
        self, examples: Examples, *, progress: Callable[[int], None] | None = None
    ) -> NDArray[np.float64]:
        """Return calibrated probabilities of examples [n, K]."""
        return self.beside.probabilities(self.logits(examples, progress=progress))

    def predict_proba(self, texts: Sequence[Text]) -> NDArray[np.float64]:
        """Return a probability per class for each text, pair (a, b), or (text, choices); for each image, if it reads
        images: a path, the bytes of a file, or uint8 pixels."""
        return self.probabilities(examples_of(texts, images=reads_pixels(self.model)))

    def predict(self, texts: Sequence[Text], *, abstain: bool = False) -> list[Any]:
        """Return the most probable label of each text; the index of the choice for multiple choice.

        With `abstain`, which a model needs a guarantee for (`calmix.train(…, guarantee=0.95)`), None stands for what
        is not `accepted`:

            classifier = calmix.load("run")
            answers = classifier.predict(texts, abstain=True)
            for_a_human = [text for text, answer in zip(texts, answers) if answer is None]
        """
        rule = self.beside.rule() if abstain else None
        return winners_of(self.predict_proba(texts), self.label_names, rule)

    def accepted(self, probs: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which predictions of these probabilities to accept: the accuracy among them is the promised one."""
        return np.asarray(self.beside.rule()(probs))

    def possible(self, probs: NDArray[np.float64]) -> list[list[Any]]:
        """Return the labels that are possible in each row: the true one is among them as often as was promised."""
        return labels_inside(self.beside.inside(probs), self.label_names)


def load_one(folder: str | Path, *, precision: Arithmetic = "fp32", dropout: Dropout | None = None) -> Classifier:
    """Return the one classifier in a checkpoint or run folder: see `load`, which reads ensembles too."""
    name = checkpoint_of(folder)
    if (Path(name) / "ensemble.json").is_file():
        raise InputError(f"{name}: is an ensemble; name one of its members, {name}/member-1 and so on")
    model, tokenizer = load_trained(name)
    beside = read_beside(Path(name))
    if dropout is not None and dropout != beside.dropout:
        if beside.recalibrator is not None:
            raise InputError(
                f"{name}: has a recalibrator beside its weights that was fitted to other predictions: "
                "calibrate the model again with --mc-dropout"
            )
        # What was promised of other predictions is not promised of these.
        beside = Beside(dropout=dropout)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    return Classifier(model, tokenizer, label_names_of(model), beside, precision)


def checkpoint_of(folder: str | Path) -> str:
    """Return the checkpoint that a run folder holds; any other folder, or hub name, as it is."""
    path = Path(folder)
    if not (path / "run.toml").is_file():
        return str(folder)
    if not (path / "model").is_dir() and (path / "metrics.json").is_file():
        raise InputError(
            f"{folder}: holds no model (it is a data map, or a run of a study that kept its figures alone): "
            "give a run of `calmix train`"
        )
    if not (path / "model").is_dir():
        raise InputError(f"{folder}: the run in it is not finished: repeat its command to go on")
    return str(path / "model")


def winners_of(
    probs: NDArray[np.float64], label_names: tuple[str, ...], rule: SelectiveThreshold | None = None
) -> list[Any]:
    """Return the most probable label of each row, or its index, where classes have no names; None if a rule refuses."""
    winners = probs.argmax(axis=1)
    found = [label_names[k] for k in winners] if label_names else winners.tolist()
    if rule is None:
        return found
    return [winner if taken else None for winner, taken in zip(found, np.asarray(rule(probs)), strict=True)]


def labels_inside(inside: NDArray[np.bool_], label_names: tuple[str, ...]) -> list[list[Any]]:
    """Return the labels of each row's set; their indices, where classes have no names."""
    return [[label_names[k] if label_names else int(k) for k in np.flatnonzero(row)] for row in inside]


def log_probabilities(logits: NDArray[np.float32], recalibrator: Recalibrator | None) -> NDArray[np.float32]:
    """Return logits as they are, or the logarithm of what a recalibrator makes of them."""
    if recalibrator is None:
        return logits
    probs = np.maximum(np.asarray(recalibrator(logits)), LEAST)
    return np.where(np.isneginf(logits), -np.inf, np.log(probs)).astype(np.float32)


def examples_of(
    texts: Sequence[Text], *, images: bool = False, caller: str = "predict", purpose: str = "predict"
) -> Examples:
    """Return texts, pairs, or texts with choices, as unlabelled examples; `images`: or images.

    Messages say who asks for them, and what they are there to do.
    """
    rows = _rows(texts, images=images, caller=caller)
    if not rows:
        raise InputError(f"there are no {'images' if images else 'texts'} to {purpose}")
    if images:
        return Examples.from_images(rows)
    kinds = [_kind(row) for row in rows]
    if None in kinds or len(set(kinds)) > 1:
        odd = next(i for i, kind in enumerate(kinds) if kind is None or kind != kinds[0])
        shown = repr(rows[odd])
        raise InputError(
            "texts must be all strings, all pairs (text, text), or all (text, [choices]); "
            f"number {odd + 1} is {shown if len(shown) <= 60 else shown[:57] + '...'}"
        )
    columns: dict[str, pa.Array] = {"id": pa.array([str(i) for i in range(len(rows))])}
    if kinds[0] == "text":
        columns["text"] = pa.array([str(row) for row in rows], pa.string())
    else:
        columns["text"] = pa.array([row[0] for row in rows], pa.string())
        if kinds[0] == "text_b":
            columns["text_b"] = pa.array([row[1] for row in rows], pa.string())
        else:
            columns["choices"] = pa.array([list(row[1]) for row in rows], pa.list_(pa.string()))
    return Examples(pa.table(columns), np.full(len(rows), -1), ())


def _rows(texts: Any, *, images: bool, caller: str) -> list[Any]:
    """Return what there is to predict; of a table with one column, its cells. What is no list is refused."""
    wants = f"{caller} takes a list of {'images' if images else 'texts'}"
    if isinstance(texts, str | bytes | Path):
        one = "one image" if isinstance(texts, bytes) else "the name of one"
        raise InputError(f"{wants}, not {one if images else 'one text'}: put it in brackets")
    if isinstance(texts, Mapping):
        keys = listed([str(key) for key in texts]) or "none"
        raise InputError(f"{wants}, not a mapping (its keys: {keys}), whose keys it would take for them: give a list")
    names = getattr(texts, "column_names", getattr(texts, "columns", None))  # Arrow's tables and data sets, or frames
    if names is not None:
        if len(names) != 1:
            pairs = "" if images else ", or a list of pairs"
            raise InputError(
                f"{wants}, not a table of {len(names)} columns ({listed([str(name) for name in names])}): "
                f"give one of them{pairs}"
            )
        texts = texts[names[0]]
    elif isinstance(texts, np.ndarray) and texts.dtype.kind in "OUT" and texts.ndim == 2 and texts.shape[1] == 1:
        texts = texts[:, 0]
    if not isinstance(texts, Iterable):
        raise InputError(f"{wants}, not {type(texts).__name__}")
    return texts.to_pylist() if isinstance(texts, pa.ChunkedArray) else list(texts)


def _kind(row: Any) -> str | None:
    """Return what a row holds beside its text; None for what cannot be read."""
    if isinstance(row, str):
        return "text"
    if not (isinstance(row, tuple | list) and len(row) == 2 and isinstance(row[0], str)):
        return None
    if isinstance(row[1], str):
        return "text_b"
    choices = row[1]
    readable = isinstance(choices, tuple | list) and choices and all(isinstance(choice, str) for choice in choices)
    return "choices" if readable else None
