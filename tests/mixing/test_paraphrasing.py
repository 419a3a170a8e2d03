"""Paraphrases beside the texts: supplied, or made by translating there and back."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tiny
import torch

from calmix.data import Examples
from calmix.errors import InputError
from calmix.mixing import choose
from calmix.mixing.paraphrasing import supplied, translate_and_back, translated, with_paraphrases

COLUMNS = {"text": "again", "text_b": "again_b", "choices": "again_choices"}


@pytest.fixture
def examples() -> Examples:
    table = pa.table(
        {
            "id": ["a", "b", "c"],
            "text": ["one cat", "two dogs", "three hens"],
            "again": ["a cat", None, "  "],
            "note": [1, 2, 3],
        }
    )
    return Examples(table, np.array([0, 1, 1]), ("x", "y"), source="pets.csv")


@pytest.fixture(scope="session")
def translator(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny translation model that speaks at random."""
    from transformers import T5Config, T5ForConditionalGeneration

    folder = tmp_path_factory.mktemp("translator")
    words = tiny.tokenizer("llama")
    config = T5Config(
        vocab_size=len(words),
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        pad_token_id=words.pad_token_id,
        eos_token_id=words.eos_token_id,
        decoder_start_token_id=words.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        T5ForConditionalGeneration(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder)


# ---- supplied


def test_supplied_paraphrases_follow_the_texts_with_their_labels_and_marked_ids(examples: Examples) -> None:
    both = with_paraphrases(examples, supplied(examples, COLUMNS))
    assert both.ids == ["a", "b", "c", "a~"]
    assert both.column("text") == ["one cat", "two dogs", "three hens", "a cat"]
    assert both.labels.tolist() == [0, 1, 1, 0]
    assert both.column("note") == [1, 2, 3, 1]
    assert both.label_names == ("x", "y")
    assert both.source == "pets.csv"


def test_label_distributions_go_along(examples: Examples) -> None:
    targets = np.array([[0.8, 0.2], [0.1, 0.9], [0.0, 1.0]])
    voted = Examples(examples.table, examples.labels, examples.label_names, targets)
    both = with_paraphrases(voted, {"text": [None, "some dogs", "hens"]})
    assert both.targets is not None
    assert both.targets.tolist() == [[0.8, 0.2], [0.1, 0.9], [0.0, 1.0], [0.1, 0.9], [0.0, 1.0]]


def pairs(**columns: Any) -> Examples:
    table = pa.table({"id": ["a", "b", "c"], "text": ["one", "two", "three"], "text_b": ["cat", "dogs", "hens"]})
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    return Examples(table, np.array([0, 1, 1]), ("x", "y"), source="pairs.csv")


def questions(again: Any, *, text: Any = (None, None)) -> Examples:
    table = pa.table(
        {
            "id": ["a", "b"],
            "text": ["who", "what"],
            "choices": [["I", "you"], ["this", "that", "it"]],
            "again": pa.array(text, pa.string()),
            "again_choices": pa.array(again),
        }
    )
    return Examples(table, np.array([1, 2]), (), source="questions.jsonl")


def test_second_texts_have_a_column_of_their_own() -> None:
    examples = pairs(again=["a one", "a two", None], again_b=["a cat", "", None])
    both = with_paraphrases(examples, supplied(examples, COLUMNS))
    assert both.ids == ["a", "b", "c", "a~", "b~"]
    assert both.column("text")[3:] == ["a one", "a two"]
    assert both.column("text_b")[3:] == ["a cat", "dogs"]  # the second has no paraphrase
    assert both.labels.tolist() == [0, 1, 1, 0, 1]


def test_choices_have_a_column_of_lists() -> None:
    examples = questions([["me", "thee"], None], text=["whoever", "whatever"])
    both = with_paraphrases(examples, supplied(examples, COLUMNS))
    assert both.column("text")[2:] == ["whoever", "whatever"]
    assert both.column("choices")[2:] == [["me", "thee"], ["this", "that", "it"]]
    assert both.labels.tolist() == [1, 2, 1, 2]
    assert both.kind == "choices"


def test_lists_may_be_written_as_json_and_single_choices_may_have_no_paraphrase() -> None:
    examples = questions(["", '["this one", "", null]'])
    both = with_paraphrases(examples, supplied(examples, COLUMNS))
    assert both.ids == ["a", "b", "b~"]
    assert both.column("choices")[2] == ["this one", "that", "it"]
    assert both.column("text")[2] == "what"


@pytest.mark.parametrize("again", [[["me"], None], ["me", ""], ["{}", ""], ['["me", "thee", "he"]', ""]])
def test_a_list_that_is_not_one_paraphrase_for_each_choice_is_refused(again: Any) -> None:
    says = (
        r"^questions.jsonl: column 'again_choices' of row 'a' must hold a list of 2 paraphrases, one for each choice$"
    )
    with pytest.raises(InputError, match=says):
        supplied(questions(again), COLUMNS)


@pytest.mark.parametrize(
    ("examples", "says"),
    [
        (
            pairs(paraphrase=["a", "b", "c"]),
            r"has no column 'paraphrase_b' with paraphrases of the second texts .*column_b=",
        ),
        (
            pairs(paraphrase_b=["a", "b", "c"]),
            r"has no column 'paraphrase' with paraphrases of the texts .*set column=",
        ),
        (tiny.examples(3, kind="choices"), "has no column 'paraphrase' with paraphrases of the texts"),
    ],
)
def test_a_missing_column_of_any_text_of_a_row_is_named(examples: Examples, says: str) -> None:
    prepare = choose("back-translation").prepare
    assert prepare is not None
    with pytest.raises(InputError, match=says):
        prepare(examples)


def test_the_recipe_takes_the_named_column(examples: Examples) -> None:
    prepare = choose("back-translation", {"column": "again"}).prepare
    assert prepare is not None
    assert prepare(examples).ids == ["a", "b", "c", "a~"]


def test_a_column_that_is_not_there_is_refused_with_those_that_are(examples: Examples) -> None:
    prepare = choose("back-translation").prepare
    assert prepare is not None
    with pytest.raises(InputError, match=r"^pets.csv: has no column 'paraphrase' .*\(columns: id, text, again, note\)"):
        prepare(examples)


def test_a_column_without_a_single_paraphrase_is_refused(examples: Examples) -> None:
    with pytest.raises(InputError, match="not one row has a paraphrase"):
        with_paraphrases(examples, {"text": [None, None, None]})


def test_an_id_that_a_paraphrase_would_get_is_refused(examples: Examples) -> None:
    ids = pa.array(["a", "a~", "c"], pa.string())
    clashing = replace(examples, table=examples.table.set_column(0, "id", ids))
    with pytest.raises(InputError, match=r"^pets.csv: the id 'a~' is that of a paraphrase; rename it$"):
        with_paraphrases(clashing, supplied(clashing, COLUMNS))


# ---- translated


def _round_trip(translator: str, **options: Any) -> list[str | None]:
    given = {"temperature": 0.9, "seed": 0, **options}
    return translate_and_back(tiny.texts(5)[0], there=translator, back=translator, **given)


def test_a_translation_is_decided_by_its_seed(translator: str) -> None:
    one, same, other = (_round_trip(translator, seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other
    assert len(one) == 5


def test_the_global_random_state_is_left_alone(translator: str) -> None:
    before = torch.random.get_rng_state()
    _round_trip(translator)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_long_texts_are_not_cut_after_twenty_tokens(translator: str) -> None:
    long = [" ".join(tiny.WORDS[:60])]
    (text,) = translate_and_back(long, there=translator, back=translator, temperature=50.0, seed=3)
    assert text is not None
    lengths = [
        len((translate_and_back(long, there=translator, back=translator, temperature=50.0, seed=s)[0] or "").split())
        for s in range(3)
    ]
    assert max(lengths) > 20


def test_the_recipe_translates_the_training_texts(translator: str) -> None:
    prepare = choose("back-translation", {"there": translator, "back": translator, "seed": "4"}).prepare
    assert prepare is not None
    examples = tiny.examples(4)
    both = prepare(examples)
    assert len(both) > 4
    assert both.ids[:4] == examples.ids
    assert prepare(examples).column("text") == both.column("text")


@pytest.mark.parametrize("kind", ["pair", "choices"])
def test_every_text_of_a_row_is_translated(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def shouted(texts: list[str], **_: Any) -> list[str | None]:
        return [text.upper() for text in texts]

    monkeypatch.setattr("calmix.mixing.paraphrasing.translate_and_back", shouted)
    prepare = choose("back-translation", {"there": "de", "back": "en"}).prepare
    assert prepare is not None
    examples = tiny.examples(4, kind=kind)
    both = prepare(examples)
    assert len(both) == 8
    other = "text_b" if kind == "pair" else "choices"
    for name in ("text", other):
        own, made = both.column(name)[:4], both.column(name)[4:]
        assert own == examples.column(name)
        assert str(made) == str(own).upper()
    assert both.labels.tolist() == [*examples.labels, *examples.labels]


def test_a_translation_that_is_empty_leaves_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calmix.mixing.paraphrasing.translate_and_back", lambda texts, **_: ["eins", None] * 3)
    examples = pairs()
    found = translated(examples, there="de", back="en", temperature=0.9, seed=0)
    both = with_paraphrases(examples, found)
    assert both.column("text")[3:] == ["eins", "two", "eins"]
    assert both.column("text_b")[3:] == ["cat", "eins", "hens"]


def test_one_model_is_not_enough(translator: str) -> None:
    with pytest.raises(InputError, match="needs both models"):
        choose("back-translation", {"there": translator})


def test_a_temperature_of_0_is_refused() -> None:
    with pytest.raises(InputError, match="temperature must be a finite number above 0"):
        choose("back-translation", {"temperature": 0})


def test_what_is_no_translation_model_is_refused_in_one_line(checkpoint: Any, tmp_path: Path) -> None:
    for name in (str(checkpoint("bert")), str(tmp_path), "nobody/nothing"):
        with pytest.raises(InputError, match="not a translation model") as caught:
            translate_and_back(["a"], there=name, back=name, temperature=0.9, seed=0)
        assert "\n" not in str(caught.value)
