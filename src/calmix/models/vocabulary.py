"""How well a tokenizer's vocabulary knows some texts: which words are unknown to it, or spelt letter by letter."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calmix.data import Examples
from calmix.models.encoding import Packed

__all__ = ["Spelling", "spelling_notes", "spelling_of"]

# Texts that are looked at, tokens of each, and words below which nothing is said.
_TEXTS, _TOKENS, _ENOUGH = 2000, 256, 50
# A vocabulary hardly knows a language if it spells so large a share of the words. Measured: of 17 sets of English
# texts, uncased BERT spells 0.4 to 7 % and GPT-2 0.2 to 2 %; of the same user interface in 36 other languages at least
# 18 and 15 %, in other scripts 43 to 96 %; vocabularies made of a language spell 4 to 11 % of it. Unigram ones split
# words otherwise: 3 to 20 % of what they were made of, and at least 41 % of other languages.
_MUCH, _MUCH_OF_UNIGRAM = 1 / 8, 0.3

# Han, kana and whole syllables of Hangul: each is as good as a word. And scripts that put no blanks between words.
_SYLLABLE = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff]")
_UNSPACED = re.compile("[\u0e00-\u109f\u1780-\u17ff]")
# Pictures and signs, of which vocabularies lack most, whatever the language.
_SIGNS = re.compile("[\u2190-\u2bff\ufe00-\ufe0f\U0001f000-\U0001faff]+")
_BYTE = re.compile("<0x([0-9A-F]{2})>")

Piece = bytes | None
"""What a token stands for; None where it is unknown."""
Reading = Callable[[str], tuple[bool, Piece]]
"""Token → whether a word begins with it, and its piece."""


@dataclass(frozen=True)
class Spelling:
    """Of how many words in some texts a vocabulary knows nothing, or spells a part letter by letter."""

    words: int
    spelt: int
    much: float
    """The share from which on it hardly knows the language."""

    @property
    def share(self) -> float:
        """The share of the words that are unknown or spelt."""
        return self.spelt / max(1, self.words)

    @property
    def is_poor(self) -> bool:
        """Whether the vocabulary hardly knows these texts' language, as far as so many words can tell."""
        return self.words >= _ENOUGH and self.share >= self.much


def spelling_notes(examples: Examples, packed: Packed, tokenizer: Any) -> list[str]:
    """Return what a user should know about texts whose language the vocabulary hardly knows; nothing where it does."""
    found = spelling_of(examples, packed, tokenizer)
    if found is None or not found.is_poor:
        return []
    return [
        f"train: {found.share:.0%} of the words are unknown to the model's vocabulary, or spelt letter by letter: it "
        "hardly knows their language or script; a multilingual encoder should do better (--model "
        "intfloat/multilingual-e5-small, for one)"
    ]


def spelling_of(examples: Examples, packed: Packed, tokenizer: Any) -> Spelling | None:
    """Return how a vocabulary spells some of these texts, by their ids; None of one that is not made of pieces."""
    read = _reading_of(tokenizer)
    if read is None or not len(packed):
        return None
    rows = np.unique(np.linspace(0, len(packed) - 1, _TEXTS).astype(np.int64))
    sequences = list(_sequences(packed, rows))
    known = np.unique(np.concatenate(sequences)).tolist()
    tokens = dict(zip(known, tokenizer.convert_ids_to_tokens(known), strict=True))
    unknown, special = tokenizer.unk_token_id, {*tokenizer.all_special_ids}
    pieces: dict[int, tuple[bool, Piece]] = {
        id_: (read(token)[0], None) if id_ == unknown else read(token)
        for id_, token in tokens.items()
        if id_ == unknown or id_ not in special
    }
    counted = Counter(word for ids in sequences for word in _grouped(ids.tolist(), pieces))
    words = spelt = lost = 0
    for word, times in counted.items():
        inside = [pieces[id_][1] for id_ in word]
        lost += times * (None in inside)
        found = (1, 1) if None in inside else _judged([piece for piece in inside if piece])
        words, spelt = words + times * found[0], spelt + times * found[1]
    if lost:  # whatever the language, vocabularies lack most signs: no words
        lost = min(lost, _signs(examples, rows))
    much = _MUCH_OF_UNIGRAM if _kind(tokenizer) == "Unigram" else _MUCH
    return Spelling(words - lost, spelt - lost, much)


def _sequences(packed: Packed, rows: NDArray[np.int64]) -> Iterator[NDArray[np.int32]]:
    """Yield the first ids of each sequence of some samples."""
    ids, starts, lengths = (each.cpu().numpy() for each in (packed.ids, packed.starts, packed.lengths))
    first = packed.first.cpu().numpy()
    for row in rows:
        for place in range(first[row], first[row] + (1 if packed.counts is None else packed.counts[row])):
            yield ids[starts[place] : starts[place] + min(lengths[place], _TOKENS)]


def _grouped(ids: list[int], pieces: dict[int, tuple[bool, Piece]]) -> Iterator[tuple[int, ...]]:
    """Yield the ids of each word; marks that belong to no text end one."""
    word: list[int] = []
    for id_ in ids:
        begins = id_ not in pieces or pieces[id_][0]
        if begins and word:
            yield tuple(word)
            word = []
        if id_ in pieces:
            word.append(id_)
    if word:
        yield tuple(word)


def _judged(pieces: list[bytes]) -> tuple[int, int]:
    """Return how many words these pieces are, in a row without blanks, and how many of those are partly spelt.

    Spelt is a letter that is a piece by itself, unless it begins the word, or one that is cut into bytes. A text in a
    script without blanks has as many words as pieces that begin with a letter; all of one letter are spelt.
    """
    ends = {0, *accumulate(map(len, pieces))}
    words = spelt = place = 0
    inside = poor = False
    for letter in b"".join(pieces).decode("utf-8", "replace"):
        begin, place = place, place + len(letter.encode())
        alone, cut = {begin, place} <= ends, any(byte in ends for byte in range(begin + 1, place))
        kind = unicodedata.category(letter)[0]
        if kind == "M":  # accents and vowel signs belong to the letter before
            poor = poor or (inside and cut)
            continue
        syllable, unspaced = (kind == "L" and bool(script.match(letter)) for script in (_SYLLABLE, _UNSPACED))
        if kind == "L" and not (syllable or unspaced):
            words += not inside
            poor, inside = poor or cut or (inside and alone), True
            continue
        spelt += poor
        inside = poor = False
        if syllable or (unspaced and (cut or begin in ends)):
            words, spelt = words + 1, spelt + (cut or (unspaced and alone))
    return words, spelt + poor


def _signs(examples: Examples, rows: NDArray[np.int64]) -> int:
    """Return how many runs of pictures and signs are in the texts of some samples."""
    some = examples.take(rows)
    columns = [some.column(name) for name in ("text", "text_b", "choices") if name in some.table.column_names]
    texts = (text for column in columns for cell in column for text in ([cell] if isinstance(cell, str) else cell))
    return sum(len(_SIGNS.findall(text)) for text in texts)


def _kind(tokenizer: Any) -> str:
    """Return what a tokenizer's model is called; nothing where it has none of its own."""
    return type(tokenizer.backend_tokenizer.model).__name__ if tokenizer.is_fast else ""


def _reading_of(tokenizer: Any) -> Reading | None:
    """Return how tokens are read; None of tokenizers whose tokens are no pieces of words: characters, bytes."""
    kind = _kind(tokenizer)
    if kind == "WordLevel":
        return lambda token: (True, token.encode())
    if kind == "WordPiece":
        prefix = tokenizer.backend_tokenizer.model.continuing_subword_prefix
        return lambda token: (not token.startswith(prefix), token.removeprefix(prefix).encode())
    if kind == "Unigram" or (kind == "BPE" and tokenizer.backend_tokenizer.token_to_id("▁") is not None):
        return _of_sentencepiece
    letters = _byte_letters()
    if kind == "BPE" and all(tokenizer.backend_tokenizer.token_to_id(letter) is not None for letter in letters):
        return _of_bytes
    return None


def _of_sentencepiece(token: str) -> tuple[bool, Piece]:
    byte = _BYTE.fullmatch(token)
    return token.startswith("▁"), bytes.fromhex(byte[1]) if byte else token.replace("▁", " ").strip().encode()


def _of_bytes(token: str) -> tuple[bool, Piece]:
    letters = _byte_letters()
    piece = bytes(letters[letter] for letter in token if letter in letters)
    return piece[:1].isspace(), piece.strip()


@cache
def _byte_letters() -> dict[str, int]:
    """Return the byte that each letter of a byte-level vocabulary stands for (Radford et al. 2019)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + place): byte for place, byte in enumerate(others)}
