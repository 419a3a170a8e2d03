"""Whether a model notices data it should not know: scores inside and outside, and how far they are apart."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calmix.calibration import familiarity, fpr95, ood_aupr, ood_auroc_interval
from calmix.data import Examples, read_examples
from calmix.data.noise import gaussian_noise, random_texts
from calmix.errors import InputError
from calmix.models import Classifier, Ensemble, Predictor

__all__ = ["BUILTIN", "SCORES", "Said", "ask", "score_table", "separation", "unfamiliar_sets", "whole_words"]

BUILTIN = ("gaussian-noise", "random-tokens")
"""Unfamiliar data that is made, not read."""

SCORES = ("max_probability", "negative_entropy", "margin", "negative_energy")

# Texts that are told apart word by word at a time.
_CHUNK = 8192


@dataclass(frozen=True, eq=False)
class Said:
    """What a model said about a data set: probabilities, and the scores that are larger for what looks familiar."""

    probs: NDArray[np.float64]
    scores: Mapping[str, NDArray[np.float64]]


def ask(model: Predictor, examples: Examples, *, progress: Callable[[int], None] | None = None) -> Said:
    """Return what a model says about examples.

    A mean of predictions has no energy, nor has what a recalibrator makes of them: only a single model's logits do.
    """
    logits = model.logits(examples, progress=progress)
    beside = model.beside
    probs = beside.probabilities(logits)
    single = isinstance(model, Classifier) and beside.recalibrator is None and beside.dropout is None
    return Said(probs, familiarity(probs, logits if single else None))


def separation(inside: Said, outside: Said) -> dict[str, Any]:
    """Return, for each score, how well it tells rows inside from rows outside: AUROC (with interval), AUPR, FPR95."""
    found: dict[str, Any] = {
        "n": len(outside.probs),
        "mean_confidence": float(outside.scores["max_probability"].mean()),
        "mean_confidence_inside": float(inside.scores["max_probability"].mean()),
    }
    for name in SCORES:
        if name not in inside.scores:
            continue
        mine, other = inside.scores[name], outside.scores[name]
        area = ood_auroc_interval(mine, other)
        found[name] = {
            "auroc": area.estimate,
            "interval": [area.low, area.high],
            "aupr_out": ood_aupr(mine, other),
            "aupr_in": ood_aupr(mine, other, positive="in"),
            "fpr95": fpr95(mine, other),
        }
    return found


def unfamiliar_sets(
    asked: Mapping[str, str | None],
    model: Predictor,
    like: Examples,
    *,
    columns: Mapping[str, Any],
    tables: Mapping[str, pa.Table] | None = None,
    seed: int = 0,
) -> dict[str, Examples]:
    """Return the data sets asked for: name → file, or one of `BUILTIN`, shaped like its file or else like `like`.

    `tables` are those of the files that were read before.
    """
    found = {}
    for name, source in asked.items():
        given = like
        if source is not None:
            given = read_examples(source, labelled=False, split="test", table=(tables or {}).get(source), **columns)
        model.check(given)
        if name in BUILTIN:
            generator = np.random.default_rng(seed)
            if name == "gaussian-noise":
                given = gaussian_noise(given, generator=generator, rows=len(like))
            else:
                given = random_token_texts(given, model, generator=generator, rows=len(like))
        found[name] = given
    return found


def random_token_texts(
    examples: Examples, model: Predictor, *, generator: np.random.Generator, rows: int | None = None
) -> Examples:
    """Return as many rows of random tokens, with as many tokens each as these examples have for the model."""
    if examples.kind == "image":
        raise InputError(f"{examples.source or 'the data'}: holds images; random tokens are for texts")
    if rows is not None and rows != len(examples):
        examples = examples.take(np.arange(rows) % len(examples))
    tokenizer = (model.members[0] if isinstance(model, Ensemble) else model).tokenizer
    lengths: dict[str, list[list[int]]] = {}
    for name in ("text", "text_b", "choices"):
        if name not in examples.table.column_names:
            continue
        cells = [cell if isinstance(cell, list) else [cell] for cell in examples.column(name)]
        counts = iter(_token_counts([text for cell in cells for text in cell], tokenizer))
        lengths[name] = [[next(counts) for _ in cell] for cell in cells]
    return random_texts(examples, whole_words(tokenizer), lengths, generator=generator)


def whole_words(tokenizer: Any) -> list[str]:
    """Return the words that are one token of a vocabulary, special tokens left out."""
    special = set(tokenizer.all_special_ids)
    ids = [i for i in sorted(tokenizer.get_vocab().values()) if i not in special]
    words = [word.strip() for word in tokenizer.batch_decode([[i] for i in ids])]
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    read = backend.encode_batch(words, add_special_tokens=False)
    # What is read back as one token that says the same: no parts of words, no [unused7].
    kept = [w for w, e in zip(words, read, strict=True) if w and len(e.ids) == 1 and e.ids[0] not in special]
    found = list(dict.fromkeys(w for w in kept if not any(c.isspace() for c in w)))
    if not found:
        raise InputError("this tokenizer has no words to draw random texts from")
    return found


def score_table(said: Iterable[tuple[str, str, Said]], inside: Mapping[str, bool]) -> pa.Table:
    """Return every score of every row of (model, data, what it said): a column for each score."""
    columns: dict[str, list[Any]] = {name: [] for name in ("model", "data", "inside")}
    scores: dict[str, list[NDArray[np.float32]]] = {name: [] for name in SCORES}
    for model, data, found in said:
        rows = len(found.probs)
        for name, value in (("model", model), ("data", data), ("inside", inside[data])):
            columns[name] += [value] * rows
        for name in SCORES:
            scores[name].append(found.scores.get(name, np.full(rows, np.nan)).astype(np.float32))
    arrays: dict[str, Any] = {name: pa.array(values) for name, values in columns.items()}
    # What a model has no value of is missing, not a number.
    arrays |= {name: pa.array(np.concatenate(values), from_pandas=True) for name, values in scores.items()}
    return pa.table(arrays)


def _token_counts(texts: list[str], tokenizer: Any) -> list[int]:
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    counts: list[int] = []
    for start in range(0, len(texts), _CHUNK):
        counts += [len(e.ids) for e in backend.encode_batch(texts[start : start + _CHUNK], add_special_tokens=False)]
    return [min(count, int(tokenizer.model_max_length)) for count in counts]
