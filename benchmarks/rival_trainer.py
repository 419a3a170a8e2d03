"""The Hugging Face Trainer with its defaults: 3 epochs, batch 8, learning rate 5e-5 falling linearly, a random head.

Jobs come from `rivals.py`.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rival_worker import Answer, Clock, Rows, read_rows, serve
from transformers import (
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorForMultipleChoice,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)


def encoded(rows: Rows, tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
    """Return rows as the Trainer reads them."""
    cut = {"truncation": True, "max_length": max_length}
    if rows.choices is not None:
        read = [tokenizer([text] * len(row), row, **cut) for text, row in zip(rows.text, rows.choices, strict=True)]
        return [{**cells, "label": int(label)} for cells, label in zip(read, rows.label, strict=True)]
    cells = tokenizer(rows.text, rows.text_b, **cut)
    return [
        {**{name: column[i] for name, column in cells.items()}, "label": int(label)}
        for i, label in enumerate(rows.label)
    ]


def predicted(trainer: Trainer, rows: Rows, tokenizer: Any, max_length: int) -> NDArray[np.float32]:
    """Return the logits of rows; what choices a row does not have are −inf."""
    counts = rows.counts
    if counts is None:
        return np.asarray(trainer.predict(encoded(rows, tokenizer, max_length)).predictions)  # type: ignore[arg-type]
    logits = np.full((len(rows), counts.max()), -np.inf, dtype=np.float32)
    for count in np.unique(counts):  # a batch holds rows with equally many choices
        where = np.flatnonzero(counts == count)
        asked: Any = encoded(rows.take(where), tokenizer, max_length)
        logits[where, :count] = trainer.predict(asked).predictions
    return logits


def answer(job: dict[str, Any]) -> Answer:
    """Return what a network says that the Trainer has trained on the rows of a job."""
    folder, names, clock, length = Path(job["folder"]), job["names"], Clock(), job["max_length"]
    sets = {name: read_rows(folder / f"{name}.jsonl", names) for name in job["sets"]}
    train, dev = sets.pop("train"), sets.pop("dev", None)
    with clock.of("fit"), tempfile.TemporaryDirectory() as out:
        set_seed(job["seed"])
        tokenizer = AutoTokenizer.from_pretrained(job["model"])
        # A head of another size is drawn anew.
        loading: dict[str, Any] = {"dtype": torch.float32, "ignore_mismatched_sizes": True}
        if train.choices is not None:
            network = AutoModelForMultipleChoice.from_pretrained(job["model"], **loading)
            collator: Any = DataCollatorForMultipleChoice(tokenizer)
        else:
            network = AutoModelForSequenceClassification.from_pretrained(job["model"], num_labels=len(names), **loading)
            collator = DataCollatorWithPadding(tokenizer)
        quiet: dict[str, Any] = {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
        trainer = Trainer(
            network,
            TrainingArguments(out, seed=job["seed"], **quiet),
            train_dataset=encoded(train, tokenizer, length),  # type: ignore[arg-type]
            data_collator=collator,
        )
        trainer.train()
        held_out = None if dev is None else (predicted(trainer, dev, tokenizer, length), dev.label)
    with clock.of("predict"):
        said = {name: predicted(trainer, rows, tokenizer, length) for name, rows in sets.items()}
    return Answer(said, clock, held_out=held_out)


if __name__ == "__main__":
    serve(answer)
