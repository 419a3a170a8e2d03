"""SetFit, in an environment of its own: pairs of the training texts move the encoder, a logistic regression follows.

Its settings are its own, with 20 pairs of a class and 20 across classes for each row (`num_iterations=20`, as in its
paper), up to a limit. Single texts only. Jobs come from `rivals.py`.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray
from rival_worker import Answer, Clock, Rows, read_rows, serve
from sentence_transformers import SentenceTransformer
from setfit import SetFitModel, Trainer, TrainingArguments
from sklearn.linear_model import LogisticRegression

ITERATIONS = 20
BATCH = 16


def predicted(model: SetFitModel, rows: Rows) -> NDArray[np.float64]:
    """Return log-probabilities, which are logits as well."""
    probs = np.asarray(model.predict_proba(rows.text, as_numpy=True))
    return np.log(np.maximum(probs, 1e-300))


def answer(job: dict[str, Any]) -> Answer:
    """Return what SetFit says about the rows of a job."""
    folder, names, clock = Path(job["folder"]), job["names"], Clock()
    sets = {name: read_rows(folder / f"{name}.jsonl", names) for name in job["sets"]}
    train, dev = sets.pop("train"), sets.pop("dev", None)
    pairs = 2 * ITERATIONS * len(train)
    capped = pairs > job["pairs"]
    with clock.of("fit"), tempfile.TemporaryDirectory() as out:
        body = SentenceTransformer(job["model"])
        body.max_seq_length = min(job["max_length"], body.max_seq_length or job["max_length"])
        model = SetFitModel(model_body=body, model_head=LogisticRegression())
        arguments = TrainingArguments(
            out,
            num_iterations=ITERATIONS,
            max_steps=job["pairs"] // BATCH if capped else -1,
            seed=job["seed"],
            report_to="none",
            save_strategy="no",
            show_progress_bar=False,
        )
        data = Dataset.from_dict({"text": train.text, "label": train.label.tolist()})
        Trainer(model, arguments, train_dataset=data).train()
        held_out = None if dev is None else (predicted(model, dev), dev.label)
    with clock.of("predict"):
        said = {name: predicted(model, rows) for name, rows in sets.items()}
    return Answer(said, clock, {"pairs": min(pairs, job["pairs"]), "capped": capped}, held_out)


if __name__ == "__main__":
    serve(answer)
