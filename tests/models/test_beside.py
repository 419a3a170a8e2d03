"""What travels beside a checkpoint."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calmix.calibration import ConformalSets, SelectiveThreshold, Temperature, VectorScaling
from calmix.errors import InputError
from calmix.models.beside import Beside, read_beside, write_beside

FULL = Beside(
    recalibrator=VectorScaling((1.0, 2.0), (0.0, 0.5)),
    threshold=SelectiveThreshold(0.8, 0.9, 0.05, 0.4),
    sets=ConformalSets(0.7, 0.9, "lac"),
)


def test_all_of_it_comes_back(tmp_path: Path) -> None:
    write_beside(tmp_path, FULL)
    again = read_beside(tmp_path)
    logits = np.array([[1.0, 3.0], [2.0, -1.0]])
    assert FULL.recalibrator is not None
    assert again.recalibrator is not None
    np.testing.assert_array_equal(again.recalibrator(logits), FULL.recalibrator(logits))
    assert again.threshold == FULL.threshold
    assert again.sets == FULL.sets


def test_without_a_recalibrator_probabilities_are_the_softmax() -> None:
    logits = np.array([[0.0, np.log(3)], [-np.inf, 2.0]], np.float32)
    np.testing.assert_allclose(Beside().probabilities(logits), [[0.25, 0.75], [0, 1]], atol=1e-7)
    halved = Beside(recalibrator=Temperature(2.0)).probabilities(2 * logits)
    np.testing.assert_allclose(halved, Beside().probabilities(logits))


def test_what_is_possible_is_in_the_set_and_there() -> None:
    probs = np.array([[0.5, 0.5, 0.0], [0.1, 0.2, 0.7]])
    everything = Beside(sets=ConformalSets(None, 0.9, "lac"))
    assert everything.inside(probs).tolist() == [[True, True, False], [True, True, True]]
    assert FULL.inside(probs).tolist() == [[True, True, False], [False, False, True]]


def test_without_a_guarantee_there_is_nothing_to_abstain_by() -> None:
    assert FULL.rule() == FULL.threshold
    with pytest.raises(InputError, match="no threshold to abstain by: train or calibrate the model with a guarantee"):
        Beside().rule()
    with pytest.raises(InputError, match="no prediction sets: train or calibrate the model with a guarantee"):
        Beside().inside(np.array([[0.5, 0.5]]))


def test_parts_of_it_come_back_alone(tmp_path: Path) -> None:
    write_beside(tmp_path, Beside(threshold=FULL.threshold))
    assert read_beside(tmp_path) == Beside(threshold=FULL.threshold)
    write_beside(tmp_path, Beside(recalibrator=Temperature(1.5)))
    assert read_beside(tmp_path) == Beside(recalibrator=Temperature(1.5))


def test_nothing_leaves_no_file_and_takes_an_old_one_away(tmp_path: Path) -> None:
    write_beside(tmp_path, FULL)
    write_beside(tmp_path, Beside())
    assert list(tmp_path.iterdir()) == []
    assert read_beside(tmp_path) == Beside()


@pytest.mark.parametrize("files", [("calmix.json",), ("calmix.safetensors",), ("calmix.json", "calmix.safetensors")])
def test_a_checkpoint_with_a_temperature_for_each_input_is_refused_with_what_to_do(
    tmp_path: Path, files: tuple[str, ...]
) -> None:
    for name in files:
        (tmp_path / name).write_text('{"cooling": {"slope": 0.1, "usual": [1.0, 0.5]}}')
    with pytest.raises(InputError) as caught:
        read_beside(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: was made by the default of calmix 0.1.0, which had a temperature for each input and is gone: "
        "delete calmix.json and calmix.safetensors there and calibrate the model again, or use 0.1.0 (commit cda59c8)"
    )


def _changed(state: dict[str, Any], part: str, **values: Any) -> str:
    return json.dumps({**state, part: {**state[part], **values}})


@pytest.mark.parametrize(
    "damage",
    [
        lambda _state: "{",
        lambda _state: "[1]",
        lambda _state: "\xff",
        lambda state: _changed(state, "recalibrator", kind="unknown"),
        lambda _state: '{"recalibrator": 3}',
        lambda _state: '{"threshold": {}}',
        lambda _state: '{"sets": null}',
    ],
)
def test_a_damaged_file_gets_one_line(tmp_path: Path, damage: Any) -> None:
    write_beside(tmp_path, FULL)
    file = tmp_path / "calmix.json"
    file.write_text(damage(json.loads(file.read_text())), encoding="latin-1")
    with pytest.raises(InputError, match=r"calmix\.json: is damaged") as caught:
        read_beside(tmp_path)
    assert "\n" not in str(caught.value)
