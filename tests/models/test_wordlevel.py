"""A vocabulary of the training set's own words, and where their vectors begin."""

from pathlib import Path

import pytest
import tiny
import torch

from calmix.data import Examples
from calmix.errors import InputError
from calmix.models import identity, is_sentence_cnn, load_for_training, with_vectors, word_notes
from calmix.models.wordlevel import fresh_sentence_cnn, vectors_of, word_tokenizer

TEXTS = ["The cat doesn't see it's owner's cat.", "Café 12,5 € — the end"]


def test_words_are_as_glove_has_them() -> None:
    tokenizer = word_tokenizer(Examples.from_texts(TEXTS))
    assert tokenizer.tokenize("THE cat doesn't, it's") == ["the", "cat", "does", "n't", ",", "it", "'s"]
    assert tokenizer.tokenize("cafe\u0301 'quoted' dog") == ["café", "[UNK]", "[UNK]", "[UNK]", "[UNK]"]
    ids = tokenizer.get_vocab()
    assert (ids["[PAD]"], ids["[UNK]"], ids["[SEP]"]) == (0, 1, 2)
    assert {ids["the"], ids["cat"], ids["'s"]} == {3, 4, 5}  # the commonest first
    assert word_tokenizer(Examples.from_texts(TEXTS)).get_vocab() == ids


def test_pairs_are_parted_and_other_data_is_refused() -> None:
    pairs = Examples.from_texts(["the cat"], text_b=["a dog"])
    tokenizer = word_tokenizer(pairs)
    assert tokenizer.convert_ids_to_tokens(tokenizer("the cat", "a dog")["input_ids"]) == [
        "the",
        "cat",
        "[SEP]",
        "a",
        "dog",
    ]
    with pytest.raises(InputError, match="not choices data"):
        word_tokenizer(tiny.examples(3, kind="choices"))


def test_vectors_are_taken_over_and_the_rest_is_drawn_from_the_seed(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("cat 1 2 3 4\nend 5 6 7 8\nelsewhere 0 0 0 0\n")
    name = with_vectors("sentence-cnn", str(tmp_path / "v.txt"))
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found.append(fresh_sentence_cnn(name, Examples.from_texts(TEXTS), label_names=("a", "b")))
    (model, tokenizer), (same, _), (other, _) = found
    weights = [m.get_input_embeddings().weight.detach() for m in (model, same, other)]  # type: ignore[operator]
    words = tokenizer.get_vocab()
    for weight in weights:
        assert weight[words["cat"]].tolist() == [1, 2, 3, 4]
        assert not weight[[words["[PAD]"], words["[SEP]"]]].any()
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert weights[0][words["the"]].abs().max() <= 0.25
    assert model.config.id2label == {0: "a", 1: "b"}
    assert word_notes(name, model)[0].startswith(f"2 of the {len(words) - 3} words")


def test_without_vectors_they_are_as_long_as_kims() -> None:
    model, _ = load_for_training("sentence-cnn", label_names=("a", "b"), examples=Examples.from_texts(TEXTS))
    assert model.get_input_embeddings().weight.shape[1] == 300  # type: ignore[operator]
    assert "random vectors" in word_notes("sentence-cnn", model)[0]
    with pytest.raises(InputError, match="none was given"):
        load_for_training("sentence-cnn", label_names=("a", "b"))


def test_a_name_says_which_vectors_and_its_identity_what_is_in_them(tmp_path: Path) -> None:
    for name, line in (("a.txt", "cat 1\n"), ("b.txt", "cat 1\n"), ("c.txt", "cat 2\n")):
        (tmp_path / name).write_text(line)
    names = [with_vectors("sentence-cnn", str(tmp_path / n)) for n in ("a.txt", "b.txt", "c.txt")]
    assert [vectors_of(name) for name in names] == [str(tmp_path / n) for n in ("a.txt", "b.txt", "c.txt")]
    assert identity(names[0]) == identity(names[1]) != identity(names[2])
    assert identity("sentence-cnn") not in {identity(name) for name in names}
    assert is_sentence_cnn("sentence-cnn")
    assert not is_sentence_cnn("sentence-cnn-large")
    assert with_vectors("minilm", None) == "minilm"
    assert word_notes("minilm", torch.nn.Linear(1, 1)) == []
    with pytest.raises(InputError, match="are for sentence-cnn"):
        with_vectors("minilm", str(tmp_path / "a.txt"))
    with pytest.raises(InputError, match="no such file"):
        with_vectors("sentence-cnn", str(tmp_path / "d.txt"))
    (tmp_path / "d.txt").write_text("unheard 1 2\n")
    with pytest.raises(InputError, match="a vector for no word"):
        fresh_sentence_cnn(f"sentence-cnn:{tmp_path / 'd.txt'}", Examples.from_texts(TEXTS), label_names=("a", "b"))
