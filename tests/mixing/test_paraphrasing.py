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
from calmix.mixing.paraphrasing import supplied, translate_and_back, with_paraphrases


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
    both = with_paraphrases(examples, supplied(examples, "again"))
    assert both.ids == ["a", "b", "c", "a~"]
    assert both.column("text") == ["one cat", "two dogs", "three hens", "a cat"]
    assert both.labels.tolist() == [0, 1, 1, 0]
    assert both.column("note") == [1, 2, 3, 1]
    assert both.label_names == ("x", "y")
    assert both.source == "pets.csv"


def test_label_distributions_go_along(examples: Examples) -> None:
    targets = np.array([[0.8, 0.2], [0.1, 0.9], [0.0, 1.0]])
    voted = Examples(examples.table, examples.labels, examples.label_names, targets)
    both = with_paraphrases(voted, [None, "some dogs", "hens"])
    assert both.targets is not None
    assert both.targets.tolist() == [[0.8, 0.2], [0.1, 0.9], [0.0, 1.0], [0.1, 0.9], [0.0, 1.0]]


@pytest.mark.parametrize("kind", ["pair", "choices"])
def test_the_other_text_and_the_choices_stay(kind: str) -> None:
    examples = tiny.examples(3, kind=kind)
    both = with_paraphrases(examples, ["new", None, None])
    other = "text_b" if kind == "pair" else "choices"
    assert both.column("text")[3] == "new"
    assert both.column(other)[3] == examples.column(other)[0]


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
        with_paraphrases(examples, [None, None, None])


def test_an_id_that_a_paraphrase_would_get_is_refused(examples: Examples) -> None:
    ids = pa.array(["a", "a~", "c"], pa.string())
    clashing = replace(examples, table=examples.table.set_column(0, "id", ids))
    with pytest.raises(InputError, match=r"^pets.csv: the id 'a~' is that of a paraphrase; rename it$"):
        with_paraphrases(clashing, supplied(clashing, "again"))


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
