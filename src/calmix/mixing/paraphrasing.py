"""Paraphrases beside the texts of a training set: supplied in a column, or made by translating there and back."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from calmix.data import Examples
from calmix.errors import InputError

__all__ = ["Paraphrases", "supplied", "translate_and_back", "translated", "with_paraphrases"]

_CALLED = {"text": "texts", "text_b": "second texts", "choices": "choices"}
# The options of the recipe that name their paraphrases' columns.
_OPTIONS = {"text": "column", "text_b": "column_b", "choices": "column_choices"}


Paraphrases = Mapping[str, Sequence[Any]]
"""For each column of texts of a training set, the paraphrase of each row's text (of choices: of each); None: none."""


def supplied(examples: Examples, columns: Mapping[str, str]) -> Paraphrases:
    """Return the paraphrases in the training table; `columns` names, for each column of texts, that of its paraphrases.

    An empty cell stands for no paraphrase. Those of choices are lists.
    """
    found: dict[str, Sequence[Any]] = {}
    for name in _texts_of(examples):
        column, option = columns[name], _OPTIONS[name]
        if column not in examples.table.column_names:
            known = ", ".join(examples.table.column_names)
            raise InputError(
                f"{examples.source}: has no column {column!r} with paraphrases of the {_CALLED[name]} (columns: "
                f"{known}); name it with --set {option}=NAME or translate with --set there=MODEL --set back=MODEL"
            )
        cells = examples.column(column)
        found[name] = _lists(examples, column, cells) if name == "choices" else list(map(_text, cells))
    return found


def translated(examples: Examples, *, there: str, back: str, temperature: float, seed: int) -> Paraphrases:
    """Return each text of each row after two sampled translations."""
    own = {name: examples.column(name) for name in _texts_of(examples)}
    flat = [text for cells in own.values() for cell in cells for text in (cell if isinstance(cell, list) else [cell])]
    made = iter(translate_and_back(flat, there=there, back=back, temperature=temperature, seed=seed))
    return {
        name: [[next(made) for _ in cell] if isinstance(cell, list) else next(made) for cell in cells]
        for name, cells in own.items()
    }


def with_paraphrases(examples: Examples, paraphrases: Paraphrases) -> Examples:
    """Return the examples followed by their paraphrases, same labels, ids marked with `~`.

    A row without any paraphrase is not repeated; of others, a text that has none stays as it is.
    """
    own = {name: examples.column(name) for name in paraphrases}
    new = {
        name: [_merged(cell, other) for cell, other in zip(own[name], others, strict=True)]
        for name, others in paraphrases.items()
    }
    rows = [i for i in range(len(examples)) if any(_is_there(others[i]) for others in paraphrases.values())]
    if not rows:
        raise InputError(f"{examples.source}: not one row has a paraphrase")
    copies = examples.take(rows)
    marked = [f"{i}~" for i in copies.ids]
    if taken := set(marked) & set(examples.ids):
        raise InputError(f"{examples.source}: the id {min(taken)!r} is that of a paraphrase; rename it")
    table = copies.table
    for name, values in (("id", marked), *((name, [cells[i] for i in rows]) for name, cells in new.items())):
        at = table.column_names.index(name)
        table = table.set_column(at, name, pa.array(values, table.schema.field(name).type))
    both = pa.concat_tables([examples.table, table], promote_options="permissive")
    targets = None
    if examples.targets is not None and copies.targets is not None:
        targets = np.concatenate([examples.targets, copies.targets])
    return replace(examples, table=both, labels=np.concatenate([examples.labels, copies.labels]), targets=targets)


def _texts_of(examples: Examples) -> list[str]:
    return [name for name in _CALLED if name in examples.table.column_names]


def _text(cell: Any) -> str | None:
    return str(cell) if cell is not None and str(cell).strip() else None


def _lists(examples: Examples, column: str, cells: Sequence[Any]) -> list[list[str | None] | None]:
    """Return lists of paraphrases, as lists or as JSON, each as long as the row has choices."""
    counts = examples.choice_counts
    assert counts is not None
    found: list[list[str | None] | None] = []
    for id_, cell, count in zip(examples.ids, cells, counts, strict=True):
        if cell is None or (isinstance(cell, str) and not cell.strip()):
            found.append(None)
            continue
        each = cell
        with suppress(ValueError, RecursionError):
            each = json.loads(cell) if isinstance(cell, str) else cell
        if not isinstance(each, list) or len(each) != count:
            raise InputError(
                f"{examples.source}: column {column!r} of row {id_!r} must hold a list of {count} paraphrases, one for "
                "each choice"
            )
        found.append(list(map(_text, each)))
    return found


def _merged(own: Any, other: Any) -> Any:
    """Return a paraphrase, or the text itself where there is none; choice by choice."""
    if isinstance(own, list) and other is not None:
        return [_merged(each, new) for each, new in zip(own, other, strict=True)]
    return own if other is None else other


def _is_there(paraphrase: Any) -> bool:
    return any(map(_is_there, paraphrase)) if isinstance(paraphrase, list) else paraphrase is not None


def translate_and_back(
    texts: Sequence[str], *, there: str, back: str, temperature: float, seed: int, batch_size: int = 32
) -> list[str | None]:
    """Return each text after two sampled translations, by sequence-to-sequence models from folders or the hub."""
    # Generation takes no generator: the global state is borrowed and given back.
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        once = _translate(list(texts), there, temperature=temperature, batch_size=batch_size)
        twice = _translate(once, back, temperature=temperature, batch_size=batch_size)
    return [text or None for text in twice]


def _translate(texts: list[str], name: str, *, temperature: float, batch_size: int) -> list[str]:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        model: Any = AutoModelForSeq2SeqLM.from_pretrained(name, use_safetensors=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{name}: is not a translation model that can be loaded ({reason})") from None
    model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    longest = min(tokenizer.model_max_length, _positions(model))
    done: list[str] = []
    with torch.inference_mode():
        for start in range(0, len(texts), batch_size):
            part = texts[start : start + batch_size]
            batch = tokenizer(part, return_tensors="pt", padding=True, truncation=True, max_length=longest)
            batch = batch.to(model.device)
            # Without a limit of its own, transformers stops after 20 tokens.
            most = min(2 * batch["input_ids"].shape[1] + 16, _positions(model) - 1)
            tokens = model.generate(
                **batch, do_sample=True, temperature=temperature, num_beams=1, max_new_tokens=most, max_length=None
            )
            done += tokenizer.batch_decode(tokens, skip_special_tokens=True)
    return [text.strip() for text in done]


def _positions(model: Any) -> int:
    """Return how many tokens a model can read or write; 512 where its config does not say."""
    return int(getattr(model.config, "max_position_embeddings", None) or 512)
