import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calmix.calibration import ConformalSets
from calmix.errors import InputError

SCORES = ["lac", "aps"]


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("level", [0.5, 0.9])
def test_sets_hold_the_label_as_often_as_promised_and_not_much_more(draw, sharpen, score, level):
    held = []
    for seed in range(150):
        _, probs, labels = draw(seed, 400, classes=6)
        probs = sharpen(probs, 1.7)
        sets = ConformalSets.fit(probs[:200], labels[:200], level=level, score=score)
        held.append(sets(probs[200:])[np.arange(200), labels[200:]].mean())
    # Between level and level + 1/(n + 1), on average over calibration sets.
    spread = 3 * np.std(held) / np.sqrt(len(held))
    assert level - spread <= np.mean(held) <= level + 1 / 201 + spread


@given(st.data(), st.sampled_from(SCORES), st.floats(0.05, 0.95))
def test_on_its_own_data_the_quantile_is_exact(awkward, data, score, level):
    probs, labels = data.draw(awkward)
    sets = ConformalSets.fit(probs, labels, level=level, score=score)
    held = sets(probs)[np.arange(len(labels)), labels]
    assert held.sum() >= min(len(labels), math.ceil((len(labels) + 1) * level - 1e-9))
    if sets.quantile is None:
        assert sets(probs).all()


def test_aps_scores_by_the_mass_of_classes_at_least_as_likely():
    probs = np.array([[0.5, 0.25, 0.25], [0.6, 0.3, 0.1]])
    sets = ConformalSets(0.91, 0.9, "aps")
    assert sets(probs).tolist() == [[True, False, False], [True, True, False]]
    assert ConformalSets(0.75, 0.9, "lac")(probs).tolist() == [[True, True, True], [True, True, False]]


@pytest.mark.parametrize("score", SCORES)
def test_names_of_classes_do_not_matter(draw, score):
    _, probs, labels = draw(0, 200)
    order = np.array([2, 0, 1])
    renamed = probs[:, order], np.argsort(order)[labels]
    sets = ConformalSets.fit(probs, labels, score=score)
    assert np.array_equal(ConformalSets.fit(*renamed, score=score)(renamed[0]), sets(probs)[:, order])


def test_nine_rows_are_just_enough_for_ninety_percent(draw):
    _, probs, labels = draw(1, 9)
    assert ConformalSets.fit(probs, labels, level=0.9).quantile is not None
    assert ConformalSets.fit(probs[:8], labels[:8], level=0.9).quantile is None


def test_tensors_json_and_nonsense(draw):
    _, probs, labels = draw(2, 100)
    sets = ConformalSets.fit(torch.tensor(probs), torch.tensor(labels))
    assert sets == ConformalSets.fit(probs, labels)
    assert np.array_equal(sets(torch.tensor(probs)).numpy(), sets(probs))
    assert ConformalSets.from_json(json.loads(json.dumps(sets.to_json()))) == sets
    with pytest.raises(InputError, match="level is 90"):
        ConformalSets.fit(probs, labels, level=90)
    with pytest.raises(InputError, match="score is 'raps'"):
        ConformalSets.fit(probs, labels, score="raps")
