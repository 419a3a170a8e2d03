"""What many people do today: a logistic regression on TF-IDF, or on frozen embeddings of the encoder.

Pairs are [u, v, |u − v|, u·v]; among choices a conditional logit decides, on [v, |u − v|, u·v] of each (u is the same
for all of them). C is chosen by NLL after a temperature, on the dev rows; without any, five folds of the training rows
stand in, for the temperature as well. Jobs come from `rivals.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rival_worker import Answer, Clock, Rows, processor_seconds, read_rows, serve
from scipy import sparse
from scipy.optimize import minimize
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from transformers import AutoModel, AutoTokenizer

from calmix.calibration import Temperature, nll

STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)
FOLDS = 5
ITERATIONS = 500
PLAINLY = 1.01
"""A C whose NLL is so much worse than another's ends the search: NLL has one valley."""
_BATCH = 32

Matrix = Any
"""Features of sequences [sequences, width], dense or sparse."""
Vectors = Callable[[Sequence[str]], Matrix]
Logits = NDArray[np.float64]


def features(rows: Rows, vectors: Vectors) -> Matrix:
    """Return what a linear model reads: of each text or pair, or of each choice, those of a row one after the other."""
    if rows.choices is not None:
        flat = vectors([choice for row in rows.choices for choice in row])
        return _beside(_compared(vectors(rows.text)[np.repeat(np.arange(len(rows)), rows.counts)], flat)[1:])
    first = vectors(rows.text)
    return first if rows.text_b is None else _beside(_compared(first, vectors(rows.text_b)))


def _compared(u: Matrix, v: Matrix) -> list[Matrix]:
    return [u, v, abs(u - v), u.multiply(v) if sparse.issparse(u) else u * v]


def _beside(parts: list[Matrix]) -> Matrix:
    return sparse.hstack(parts, format="csr") if sparse.issparse(parts[0]) else np.hstack(parts)


def tfidf(train: Rows) -> Vectors:
    """Return TF-IDF of words and pairs of words, weighted as the training texts say, second ones and choices too."""
    seconds = train.text_b or [choice for row in train.choices or [] for choice in row]
    vectoriser = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    return vectoriser.fit([*train.text, *seconds]).transform  # type: ignore[no-any-return]


class Embeddings:
    """Mean-pooled, normalised states of a frozen encoder, computed once for each text.

    What a text cost is kept beside it: a job that finds it here is charged as if it had computed it.
    """

    def __init__(self, model: str, max_length: int) -> None:
        self.tokenizer, self.max_length = AutoTokenizer.from_pretrained(model), max_length
        self.network = AutoModel.from_pretrained(model, dtype=torch.float32).eval()
        self.network.to("cuda" if torch.cuda.is_available() else "cpu")
        self.known: dict[str, tuple[NDArray[np.float32], float]] = {}
        self.asked: set[str] = set()
        self.saved = 0.0

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        new = set(texts) - self.asked
        self.saved += sum(self.known[text][1] for text in new if text in self.known)
        unknown = sorted((text for text in new if text not in self.known), key=lambda text: (len(text), text))
        for start in range(0, len(unknown), _BATCH):
            self._embed(unknown[start : start + _BATCH])
        self.asked |= new
        return np.stack([self.known[text][0] for text in texts])

    @torch.inference_mode()
    def _embed(self, texts: list[str]) -> None:
        began = processor_seconds()
        inputs = self.tokenizer(texts, padding=True, truncation=True, max_length=self.max_length, return_tensors="pt")
        inputs = inputs.to(self.network.device)
        states, mask = self.network(**inputs).last_hidden_state, inputs["attention_mask"][..., None]
        means = (states * mask).sum(1) / mask.sum(1)
        vectors = torch.nn.functional.normalize(means).cpu().numpy()
        cost = (processor_seconds() - began) / len(texts)
        self.known |= {text: (vector, cost) for text, vector in zip(texts, vectors, strict=True)}

    def repaid(self) -> float:
        """Return the seconds that this job has saved since it asked last."""
        saved, self.saved = self.saved, 0.0
        return saved

    def next_job(self) -> "Embeddings":
        """Forget what was asked, not what is known."""
        self.asked.clear()
        return self


@dataclass(frozen=True, eq=False)
class Fitted:
    """A linear model of classes, or one of choices: `weights` alone."""

    weights: NDArray[np.float64]
    bias: NDArray[np.float64] | None = None

    def logits(self, read: Matrix, counts: NDArray[np.int64] | None) -> Logits:
        """Return the logits [rows, classes or choices]; choices that a row does not have are −inf."""
        if self.bias is not None:
            return np.asarray(read @ self.weights.T + self.bias)
        assert counts is not None
        scores = np.full((len(counts), counts.max()), -np.inf)
        scores[np.arange(counts.max()) < counts[:, None]] = read @ self.weights
        return scores


def logistic(
    read: Matrix, labels: NDArray[np.int64], strength: float, model: LogisticRegression | None = None
) -> Fitted:
    """Return a multinomial logistic regression, `strength` being scikit-learn's C; a `model` goes on from its last."""
    model = LogisticRegression(max_iter=ITERATIONS) if model is None else model
    model.set_params(C=strength).fit(read, labels)
    weights, bias = model.coef_, model.intercept_
    if len(model.classes_) == 2:  # scikit-learn has one row for both
        weights, bias = np.vstack([np.zeros_like(weights), weights]), np.array([0.0, bias[0]])
    return Fitted(weights.copy(), bias.copy())


def conditional_logit(
    read: Matrix,
    counts: NDArray[np.int64],
    right: NDArray[np.int64],
    strength: float,
    start: NDArray[np.float64] | None = None,
) -> Fitted:
    """Return weights w that make softmax(x·w) over a row's choices likely, with penalty |w|²/2C (McFadden 1974)."""
    starts = np.cumsum(counts) - counts
    row, chosen = np.repeat(np.arange(len(counts)), counts), starts + right

    def loss(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        scores = read @ weights
        scores -= np.maximum.reduceat(scores, starts)[row]
        total = np.add.reduceat(np.exp(scores), starts)
        error = np.exp(scores) / total[row]
        error[chosen] -= 1
        value = np.log(total).sum() - scores[chosen].sum() + weights @ weights / (2 * strength)
        return float(value), read.T @ error + weights / strength

    start = np.zeros(read.shape[1]) if start is None else start
    return Fitted(minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS}).x)


class Learner:
    """Linear models of one training set, each begun where the one before ended."""

    def __init__(self, read: Matrix, rows: Rows) -> None:
        self.read, self.rows = read, rows
        self.model = LogisticRegression(max_iter=ITERATIONS, warm_start=True)
        self.weights: NDArray[np.float64] | None = None

    def at(self, strength: float) -> Fitted:
        """Return the model with this C."""
        if self.rows.counts is None:
            return logistic(self.read, self.rows.label, strength, self.model)
        found = conditional_logit(self.read, self.rows.counts, self.rows.label, strength, self.weights)
        self.weights = found.weights
        return found


def folds_of(labels: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Return the fold of each row: rows of a class are spread over all of them, and folds are equally large."""
    order = np.lexsort((np.random.default_rng([seed, 31]).random(len(labels)), labels))
    folds = np.empty(len(labels), dtype=np.int64)
    folds[order] = np.arange(len(labels)) % FOLDS
    return folds


def after_temperature(logits: Logits, labels: NDArray[np.int64]) -> float:
    """Return the NLL with the best temperature."""
    return float(nll(np.asarray(Temperature.fit(logits, labels)(logits)), labels))


def chosen(logits_at: Callable[[float], Logits], labels: NDArray[np.int64]) -> tuple[float, Logits]:
    """Return the C whose NLL is best after a temperature, and its logits; none is tried once one is plainly worse."""
    found: dict[float, tuple[float, Logits]] = {}
    for strength in STRENGTHS:
        logits = logits_at(strength)
        found[strength] = after_temperature(logits, labels), logits
        if found[strength][0] > PLAINLY * min(value for value, _ in found.values()):
            break
    best = min(found, key=lambda strength: found[strength][0])
    return best, found[best][1]


def chosen_by_dev(read: Matrix, train: Rows, dev_read: Matrix, dev: Rows) -> tuple[float, Fitted, Logits]:
    """Return the best C by the dev rows, the model with it, and its logits of them."""
    learner, models = Learner(read, train), {}

    def logits_at(strength: float) -> Logits:
        models[strength] = learner.at(strength)
        return models[strength].logits(dev_read, dev.counts)

    best, logits = chosen(logits_at, dev.label)
    return best, models[best], logits


def chosen_by_folds(train: Rows, ways: Callable[[Rows], Vectors], seed: int) -> tuple[float, Logits]:
    """Return the best C by cross-validation, and the logits of each row by a model that has not seen it."""
    folds, parts = folds_of(train.label, seed), []
    for fold in range(FOLDS):
        learn, rest = (train.take(np.flatnonzero(where)) for where in (folds != fold, folds == fold))
        vectors = ways(learn)
        parts.append((Learner(features(learn, vectors), learn), features(rest, vectors), rest.counts))
    back = np.argsort(np.argsort(folds, kind="stable"))

    def logits_at(strength: float) -> Logits:
        return np.concatenate([learner.at(strength).logits(asked, counts) for learner, asked, counts in parts])[back]

    return chosen(logits_at, train.label)


@lru_cache(maxsize=1)
def _embeddings(model: str, max_length: int) -> Embeddings:
    """Return the encoder and the texts that it remembers: 0.5 GB for all tasks and three seeds."""
    return Embeddings(model, max_length)


def answer(job: dict[str, Any]) -> Answer:
    """Return what a linear model says about the rows of a job."""
    folder, names, clock = Path(job["folder"]), job["names"], Clock()
    sets = {name: read_rows(folder / f"{name}.jsonl", names) for name in job["sets"]}
    train, dev = sets.pop("train"), sets.pop("dev", None)
    embeddings = None
    if job["rival"] == "frozen":
        embeddings = _embeddings(job["model"], job["max_length"]).next_job()
    ways: Callable[[Rows], Vectors] = tfidf if embeddings is None else lambda _: embeddings
    with clock.of("fit"):
        vectors = ways(train)
        read = features(train, vectors)
        if dev is not None:
            strength, model, logits = chosen_by_dev(read, train, features(dev, vectors), dev)
            held_out = (logits, dev.label)
        else:
            strength, logits = chosen_by_folds(train, ways, job["seed"])
            model, held_out = Learner(read, train).at(strength), (logits, train.label)
    if embeddings is not None:
        clock.add("fit", embeddings.repaid())
    with clock.of("predict"):
        said = {name: model.logits(features(rows, vectors), rows.counts) for name, rows in sets.items()}
    if embeddings is not None:
        clock.add("predict", embeddings.repaid())
    return Answer(said, clock, {"C": strength}, held_out)


if __name__ == "__main__":
    serve(answer)
