"""A fresh sentence CNN for a training set: its words are the vocabulary, pretrained vectors their beginning."""

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn

from calmix.data import Examples
from calmix.data.vectors import read_vectors, vectors_file
from calmix.errors import InputError

__all__ = [
    "NAME",
    "fresh_sentence_cnn",
    "is_sentence_cnn",
    "sentence_cnn_identity",
    "vectors_of",
    "with_vectors",
    "word_notes",
    "word_tokenizer",
]

NAME = "sentence-cnn"
_PAD, _UNKNOWN, _SEPARATOR = "[PAD]", "[UNK]", "[SEP]"
# The commonest words; a training set with more has misspellings and names to spare.
_MOST_WORDS = 400_000
# Words as GloVe has them: "don't" is "do" and "n't", "it's" is "it" and "'s"; every other mark is its own.
_WORDS = r"\w+(?=n't)|n't|'(?:s|d|m|ll|re|ve)\b|\w+|[^\w\s]"


def is_sentence_cnn(name: str) -> bool:
    """Return whether a model's name is `sentence-cnn`, or `sentence-cnn:FILE` with a file of word vectors."""
    return name == NAME or name.startswith(f"{NAME}:")


def vectors_of(name: str) -> str | None:
    """Return the file of word vectors in a sentence CNN's name, if there is one."""
    return name.removeprefix(f"{NAME}:") if name != NAME else None


def with_vectors(name: str, vectors: str | None) -> str:
    """Return the name of a model that begins with these word vectors."""
    if vectors is None:
        return name
    if name != NAME:
        raise InputError(f"word vectors are for {NAME}, not for {name}")
    vectors_file(vectors)
    return f"{NAME}:{vectors}"


def sentence_cnn_identity(name: str) -> str:
    """Return what tells one fresh sentence CNN from another: the content of its word vectors."""
    vectors = vectors_of(name)
    if vectors is None:
        return f"{NAME}@calmix"
    file = vectors_file(vectors)
    about = file.stat()
    inside = str(Path(vectors))[len(str(file)) :]
    return f"{NAME}@{_hash(file, about.st_size, about.st_mtime_ns)}{inside}"


@lru_cache(maxsize=8)
def _hash(file: Path, _size: int, _changed: int) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]


def word_tokenizer(examples: Examples) -> Any:
    """Return a tokenizer whose vocabulary are the words of these texts, in lower case, commonest first."""
    from transformers import PreTrainedTokenizerFast

    if examples.kind not in ("text", "pair"):
        raise InputError(f"a sentence CNN reads texts or pairs of texts, not {examples.kind} data")
    core = Tokenizer(models.WordLevel(unk_token=_UNKNOWN))
    core.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    core.pre_tokenizer = pre_tokenizers.Split(Regex(_WORDS), behavior="removed", invert=True)
    special = [_PAD, _UNKNOWN, _SEPARATOR]
    trainer = trainers.WordLevelTrainer(vocab_size=_MOST_WORDS, special_tokens=special, show_progress=False)
    names = [name for name in ("text", "text_b") if name in examples.table.column_names]
    core.train_from_iterator((text for name in names for text in examples.column(name)), trainer)
    core.post_processor = processors.TemplateProcessing(
        single="$A", pair=f"$A {_SEPARATOR} $B", special_tokens=[(_SEPARATOR, special.index(_SEPARATOR))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=_PAD,
        unk_token=_UNKNOWN,
        sep_token=_SEPARATOR,
        model_input_names=["input_ids", "attention_mask"],
    )


def fresh_sentence_cnn(name: str, examples: Examples, *, label_names: tuple[str, ...]) -> tuple[nn.Module, Any]:
    """Return an untrained sentence CNN for a training set, and its tokenizer.

    What has no pretrained vector is drawn from torch's global random state: seed it first. The vectors of padding and
    of the separator, which also fills up the shorter text of a mixed pair, begin at 0.
    """
    from calmix.models.sentences import SentenceCnnConfig, SentenceCnnForSequenceClassification

    tokenizer = word_tokenizer(examples)
    words: dict[str, int] = tokenizer.get_vocab()
    shape: dict[str, Any] = {}
    file, found = vectors_of(name), {}
    if file is not None:
        found = read_vectors(file, words.keys() - {_PAD, _UNKNOWN, _SEPARATOR})
        if not found:
            raise InputError(f"{file}: has a vector for no word of the training set")
        shape = {"vector_size": len(next(iter(found.values()))), "words_with_vectors": len(found)}
    config = SentenceCnnConfig(
        vocab_size=len(tokenizer),
        **shape,
        pad_token_id=tokenizer.pad_token_id,
        id2label=dict(enumerate(label_names)),
        label2id={label: i for i, label in enumerate(label_names)},
        problem_type="single_label_classification",
    )
    model = SentenceCnnForSequenceClassification(config)
    weight = model.cnn.embeddings.weight
    with torch.no_grad():
        weight[words[_SEPARATOR]].zero_()
        for word, vector in found.items():
            weight[words[word]] = torch.from_numpy(vector)
    return model, tokenizer


def word_notes(name: str, model: nn.Module) -> list[str]:
    """Return what a user should know about the vocabulary of a fresh sentence CNN."""
    if not is_sentence_cnn(name):
        return []
    config: Any = model.config
    words = config.vocab_size - 3
    if vectors_of(name) is None:
        return [f"the {words:,} words of the training set begin with random vectors (--vectors gives them others)"]
    known = config.words_with_vectors
    return [f"{known:,} of the {words:,} words of the training set begin with a pretrained vector, others at random"]
