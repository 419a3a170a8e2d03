"""What the page of a map says first."""

import numpy as np

from calmix.dynamics import Dynamics, label_issues
from calmix.report.suspects import prepare_suspects


def mapped(rows: int, *, wrong: int = 0, sharpness: float = 3.0) -> Dynamics:
    """Three classes that are learnt well, but for the first few rows, whose label is another."""
    labels = np.arange(rows) % 3
    said = np.where(np.arange(rows) < wrong, (labels + 1) % 3, labels)
    return Dynamics.from_logits(np.stack([sharpness * np.eye(3)[said]] * 2), labels)


def test_how_many_labels_look_wrong_is_the_headline() -> None:
    dynamics = mapped(1510, wrong=107)
    found = prepare_suspects(dynamics)
    assert found is not None
    assert found.headline == "107 of 1,510 labels look wrong"
    assert found.number == label_issues(dynamics).flagged.sum()
    assert "right on 93 % of the training labels; the commonest label alone makes 33 %" in found.sentence


def test_one_and_none_are_words() -> None:
    one, none = prepare_suspects(mapped(60, wrong=1)), prepare_suspects(mapped(60))
    assert one is not None
    assert none is not None
    assert one.headline == "1 of 60 labels looks wrong"
    assert none.headline == "None of 60 labels looks wrong"
    assert "suspects" not in none.sentence


def test_where_it_cannot_be_told_the_headline_says_so_and_why() -> None:
    found = prepare_suspects(mapped(60, wrong=50))
    assert found is not None
    assert found.withheld
    assert found.headline == "Whether labels look wrong cannot be told yet"
    assert found.sentence.startswith("The model had hardly learnt anything")


def test_a_map_of_nothing_has_no_headline() -> None:
    assert prepare_suspects(Dynamics.from_logits(np.full((2, 6, 3), np.nan), np.zeros(6, dtype=np.int64))) is None
