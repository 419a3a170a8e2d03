"""The model card."""

from typing import Any

from calmix.training.card import model_card

FIGURES = {"n": 10, "accuracy": 0.5, "ece": 0.123, "oe": 0.1, "nll": 0.6931, "brier": 0.5}
CONFIG: dict[str, Any] = {"model": "bert", "recipe": "input-mixup", "options": {"alpha": "0.4"}, "seed": 7, "bins": 15}
METRICS: dict[str, Any] = {
    "rows": {"train": 100, "dev": 10},
    "epochs": [{"epoch": 0}, {"epoch": 1}, {"epoch": 2}],
    "best_epoch": 2,
    "temperature": 1.2345678,
    "splits": {"dev": {"before": FIGURES, "after": FIGURES}},
    "notes": [],
}


def test_it_says_what_the_model_is_and_how_good() -> None:
    card = model_card(CONFIG, METRICS, ("yes", "no"))
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "# Text classifier trained with calmix" in card
    assert "Fine-tuned from `bert` with the recipe `input-mixup` (alpha = `0.4`), 100 training rows, seed 7" in card
    assert "A temperature of 1.235, fitted on 10 dev rows" in card
    assert "Labels: `yes`, `no`." in card
    assert "| dev | 10 | 50.00 | 12.30 | 12.30 | 10.00 | 0.6931 | 0.6931 | 0.5000 |" in card


def test_a_figure_that_is_not_there_is_a_dash() -> None:
    after = {**FIGURES, "nll": None, "ece": None}
    card = model_card(CONFIG, {**METRICS, "splits": {"dev": {"before": FIGURES, "after": after}}}, ("a", "b"))
    assert "| dev | 10 | 50.00 | – | 12.30 | 10.00 | – | 0.6931 | 0.5000 |" in card


def test_names_from_data_cannot_break_out() -> None:
    names = ("a`b\n# Heading", "<script>|")
    notes = ["train: no row left with label x | <img src=x>\n\n# Heading"]
    card = model_card(CONFIG, {**METRICS, "notes": notes}, names)
    assert "`a'b # Heading`" in card
    assert "x \\| &lt;img src=x> # Heading" in card
    assert sum(line.startswith("# ") for line in card.splitlines()) == 1


def test_a_multiple_choice_model_has_no_labels() -> None:
    card = model_card(CONFIG, METRICS, ())
    assert "# Multiple-choice model" in card
    assert "Labels:" not in card


def test_epoch_0_is_no_epoch_of_training() -> None:
    assert "best of 2 epochs: 2." in model_card(CONFIG, METRICS, ("a", "b"))
    kept = model_card(CONFIG, {**METRICS, "best_epoch": 0}, ("a", "b"))
    assert "A head fitted to `bert`" in kept
    assert "better than each of 2 epochs of fine-tuning." in kept
    alone = model_card(CONFIG, {**METRICS, "best_epoch": 0, "epochs": [{"epoch": 0}]}, ("a", "b"))
    assert "seed 7, without fine-tuning." in alone
