"""Whether a model notices data it should not know."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from calmix.calibration import Temperature, ood_auroc
from calmix.errors import InputError
from calmix.models import Beside, load, write_beside
from calmix.training.unfamiliar import SCORES, Said, ask, score_table, separation, unfamiliar_sets, whole_words

NONE: dict[str, str | None] = {"text": None, "text_b": None, "choices": None}


def test_words_are_whole_and_none_is_special() -> None:
    words = whole_words(tiny.tokenizer("roberta"))
    assert set(words) == set(tiny.WORDS)


@pytest.mark.parametrize("kind", ["text", "pair", "choices"])
def test_random_tokens_are_as_many_as_in_the_data(checkpoint: Any, kind: str) -> None:
    model = load(checkpoint("bert", choices=kind == "choices"))
    like = tiny.examples(20, kind=kind)
    found = unfamiliar_sets({"random-tokens": None}, model, like, columns=NONE)["random-tokens"]
    assert found.kind == kind
    mine, theirs = model.encode(found), model.encode(like)  # type: ignore[union-attr]
    np.testing.assert_array_equal(mine.host_lengths, theirs.host_lengths)
    assert found.column("text") != like.column("text")
    again = unfamiliar_sets({"random-tokens": None}, model, like, columns=NONE)["random-tokens"]
    assert again.digest() == found.digest()
    other = unfamiliar_sets({"random-tokens": None}, model, like, columns=NONE, seed=1)["random-tokens"]
    assert other.digest() != found.digest()


def test_a_file_may_say_whose_lengths_are_meant(checkpoint: Any, tmp_path: Path) -> None:
    model, like = load(checkpoint("bert")), tiny.examples(5)
    (tmp_path / "long.csv").write_text("text\nthe cat saw the old dog and the horse by the cow\na b c\n")
    asked = {"random-tokens": str(tmp_path / "long.csv"), "own": str(tmp_path / "long.csv")}
    found = unfamiliar_sets(asked, model, like, columns=NONE)
    assert [len(text.split()) for text in found["random-tokens"].column("text")] == [12, 3, 12, 3, 12]
    assert len(found["own"]) == 2
    with pytest.raises(InputError, match="for images"):
        unfamiliar_sets({"gaussian-noise": None}, model, like, columns=NONE)
    with pytest.raises(InputError, match="texts with choices"):
        unfamiliar_sets({"random-tokens": None}, load(checkpoint("bert", choices=True)), like, columns=NONE)


def test_energy_is_of_a_single_models_logits_alone(checkpoint: Any, tmp_path: Path) -> None:
    examples = tiny.examples(10)
    single = ask(load(checkpoint("bert")), examples)
    assert set(single.scores) == set(SCORES)
    assert "negative_energy" not in ask(load([checkpoint("bert"), checkpoint("electra")]), examples).scores
    assert "negative_energy" not in ask(load(checkpoint("bert"), mc_dropout=2), examples).scores
    tiny.build("bert", tmp_path)
    write_beside(tmp_path, Beside(Temperature(2.0)))
    softened = ask(load(tmp_path), examples)
    assert "negative_energy" not in softened.scores
    assert softened.scores["max_probability"].mean() < single.scores["max_probability"].mean()


def test_separation_is_that_of_each_score(checkpoint: Any) -> None:
    model = load(checkpoint("bert"))
    inside, outside = (ask(model, tiny.examples(30, seed=seed)) for seed in (0, 1))
    found = separation(inside, outside)
    assert found["n"] == 30
    for name in SCORES:
        assert found[name]["auroc"] == ood_auroc(inside.scores[name], outside.scores[name])
        assert found[name]["interval"][0] <= found[name]["auroc"] <= found[name]["interval"][1]
    same = separation(inside, inside)
    assert same["margin"]["auroc"] == pytest.approx(0.5)


def test_the_table_has_every_row_and_leaves_out_what_is_not_there() -> None:
    probs = np.array([[0.5, 0.5], [0.9, 0.1]])
    whole = Said(probs, {name: np.array([1.0, 2.0]) for name in SCORES})
    part = Said(probs[:1], {"max_probability": np.array([0.5])})
    table = score_table(
        [("a", "test", whole), ("a", "test", whole), ("b", "noise", part)], {"test": True, "noise": False}
    )
    assert table["inside"].to_pylist() == [True] * 4 + [False]
    assert table["model"].to_pylist() == ["a"] * 4 + ["b"]
    assert table["negative_energy"].to_pylist() == [1, 2, 1, 2, None]
