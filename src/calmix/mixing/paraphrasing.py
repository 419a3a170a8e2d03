"""Paraphrases beside the texts of a training set: supplied in a column, or made by translating there and back."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from calmix.data import Examples
from calmix.errors import InputError

__all__ = ["supplied", "translate_and_back", "with_paraphrases"]


def supplied(examples: Examples, column: str) -> list[str | None]:
    """Return the paraphrases in a column of the training table; rows without one give None."""
    if column not in examples.table.column_names:
        known = ", ".join(examples.table.column_names)
        raise InputError(
            f"{examples.source}: has no column {column!r} with paraphrases (columns: {known}); "
            "name it with --set column=NAME or translate with --set there=MODEL --set back=MODEL"
        )
    return [str(text) if text is not None and str(text).strip() else None for text in examples.column(column)]


def with_paraphrases(examples: Examples, paraphrases: Sequence[str | None]) -> Examples:
    """Return the examples followed by their paraphrases, same labels, ids marked with `~`."""
    rows = [i for i, text in enumerate(paraphrases) if text is not None]
    if not rows:
        raise InputError(f"{examples.source}: not one row has a paraphrase")
    copies = examples.take(rows)
    marked = [f"{i}~" for i in copies.ids]
    if taken := set(marked) & set(examples.ids):
        raise InputError(f"{examples.source}: the id {min(taken)!r} is that of a paraphrase; rename it")
    table = copies.table
    for name, values in (
        ("text", [paraphrases[i] for i in rows]),
        ("id", marked),
    ):
        at = table.column_names.index(name)
        table = table.set_column(at, name, pa.array(values, pa.string()))
    both = pa.concat_tables([examples.table, table], promote_options="permissive")
    targets = None
    if examples.targets is not None and copies.targets is not None:
        targets = np.concatenate([examples.targets, copies.targets])
    return replace(examples, table=both, labels=np.concatenate([examples.labels, copies.labels]), targets=targets)


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
