"""What the epochs of a run say about its learning."""

from typing import Any

import pytest

from calmix.training.learning_notes import dev_loss_fell, training_notes


def epochs(*losses: float | None, first: int = 1) -> list[dict[str, Any]]:
    """A history with these dev losses after temperature."""
    return [
        {"epoch": epoch, "step": 10 * epoch, "loss": None if epoch == 0 else 1.0, "dev": {"nll-ts": loss}}
        for epoch, loss in enumerate(losses, start=first)
    ]


def test_a_training_that_came_to_its_end_has_no_note() -> None:
    assert training_notes(epochs(0.9, 0.5, 0.495), 1.1, best_epoch=3) == []


def test_a_dev_loss_that_fell_in_the_last_epoch_is_said_with_what_to_try() -> None:
    (note,) = training_notes(epochs(2.0, 1.0, 0.9), 1.0, best_epoch=3)
    assert "still learning" in note
    assert "by 10% in the last of 3 epochs" in note
    assert "--epochs" in note
    assert "--lr" in note


@pytest.mark.parametrize(("last", "fell"), [(0.99, None), (0.97, 0.03)])
def test_two_percent_are_within_chance(last: float, fell: float | None) -> None:
    assert dev_loss_fell(epochs(1.2, 1.0, last), 3) == (None if fell is None else pytest.approx(fell))


def test_of_a_loss_that_is_tiny_already_nothing_is_left_to_gain() -> None:
    assert dev_loss_fell(epochs(0.02, 0.010, 0.006), 3) is None


def test_the_fall_is_from_the_lowest_loss_before() -> None:
    # It went up, and came back: nothing was learnt.
    assert dev_loss_fell(epochs(0.50, 0.70, 0.495), 3) is None


def test_where_an_earlier_epoch_was_kept_it_had_stopped_learning() -> None:
    assert training_notes(epochs(0.9, 0.5, 0.6), 1.0, best_epoch=2) == []
    # Kept by its accuracy, say, though the loss fell on.
    assert training_notes(epochs(0.9, 0.6, 0.5), 1.0, best_epoch=2) == []


def test_a_low_temperature_says_too_little_training() -> None:
    (note,) = training_notes(epochs(0.9, 0.5, 0.5), 0.31, best_epoch=2)
    assert "trained too little" in note
    assert "temperature of 0.31" in note
    assert training_notes(epochs(0.9, 0.5, 0.5), 0.7, best_epoch=2) == []


def test_the_signs_together_are_one_note() -> None:
    (note,) = training_notes(epochs(2.75, 1.81, 1.69), 0.05, best_epoch=3)
    assert "by 7% in" in note
    assert "temperature of 0.05" in note


def test_a_recipe_that_softens_its_labels_has_a_low_temperature_for_that() -> None:
    assert training_notes(epochs(0.9, 0.5, 0.5), 0.4, best_epoch=2, softened=True) == []
    (note,) = training_notes(epochs(0.9, 0.5, 0.4), 0.4, best_epoch=3, softened=True)
    assert "temperature" not in note


def test_the_only_epoch_is_compared_with_what_was_before_it() -> None:
    (note,) = training_notes(epochs(0.9, 0.5, first=0), 1.0, best_epoch=1)
    assert "in its only epoch" in note
    assert training_notes(epochs(0.5), 1.0, best_epoch=1) == []


def test_a_head_that_fine_tuning_never_beat_is_said_to_be_the_model() -> None:
    (note,) = training_notes(epochs(0.50, 0.62, 0.55, first=0), 0.4, best_epoch=0)
    assert "no epoch of fine-tuning was better" in note
    assert "0.550 at best, 0.500 before" in note


def test_without_fine_tuning_there_is_nothing_to_say_about_it() -> None:
    assert training_notes(epochs(0.5, first=0), 0.4, best_epoch=0) == []


def test_epochs_without_dev_figures_say_nothing() -> None:
    assert training_notes([{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.4}], 1.0, best_epoch=2) == []
    assert training_notes(epochs(0.9, None, 0.5), 1.0, best_epoch=3)
    assert training_notes(epochs(0.9, 0.5, None), 1.0, best_epoch=3) == []
