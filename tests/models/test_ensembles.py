"""Several models as one: averaged by the names of their labels, saved and loaded as any other."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from calmix.calibration import ConformalSets, SelectiveThreshold, Temperature, VectorScaling
from calmix.errors import InputError
from calmix.models import Beside, Classifier, Dropout, Ensemble, identity, load, load_one, save_ensemble, write_beside

TEXTS = ["the cat saw rain", "bread", "my old dog liked snow and hail"]


@pytest.fixture
def backwards(checkpoint: Any, tmp_path: Path) -> Path:
    """A model of another architecture whose labels stand in another order."""
    folder = shutil.copytree(checkpoint("roberta"), tmp_path / "backwards")
    names = tiny.LABELS[::-1]
    config = json.loads((folder / "config.json").read_text())
    config |= {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_probabilities_are_averaged_by_the_names_of_the_labels(checkpoint: Any, backwards: Path) -> None:
    one, other, both = load(checkpoint("bert")), load(backwards), load([checkpoint("bert"), backwards])
    assert isinstance(both, Ensemble)
    expected = (one.predict_proba(TEXTS) + other.predict_proba(TEXTS)[:, ::-1]) / 2
    np.testing.assert_allclose(both.predict_proba(TEXTS), expected, atol=1e-6)
    assert both.label_names == tiny.LABELS
    assert both.predict(TEXTS) == [tiny.LABELS[k] for k in expected.argmax(1)]


def test_choices_vote_too(checkpoint: Any) -> None:
    rows = [("the cat", ["rain", "dog", "pie"]), ("bread", ["butter", "fox"])]
    names = [checkpoint(kind, choices=True) for kind in ("bert", "electra")]
    both = load(names)
    np.testing.assert_allclose(both.predict_proba(rows), sum(load(n).predict_proba(rows) for n in names) / 2, atol=1e-6)
    assert both.multiple_choice
    assert both.predict_proba(rows)[1, 2] == 0


def test_each_member_counts_as_it_was_calibrated_and_progress_counts_rows_once(checkpoint: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint("bert"), tmp_path / "bert")
    write_beside(folder, Beside(VectorScaling((0.5, 2.0, 1.0), (0.0, 1.0, -1.0))))
    examples, told = tiny.examples(10), []
    both = load([folder, checkpoint("electra")])
    expected = (load(folder).probabilities(examples) + load(checkpoint("electra")).probabilities(examples)) / 2
    np.testing.assert_allclose(both.probabilities(examples, progress=told.append), expected, atol=1e-6)
    assert sum(told) == 10
    plain = load([checkpoint("bert"), checkpoint("electra")]).probabilities(examples)
    np.testing.assert_allclose(both.unscaled().probabilities(examples), plain, atol=1e-6)


def test_an_ensemble_is_one_folder_with_a_temperature_of_its_own(
    checkpoint: Any, backwards: Path, tmp_path: Path
) -> None:
    both = load([checkpoint("bert"), backwards], mc_dropout=Dropout(2, 0.2))
    assert isinstance(both, Ensemble)
    save_ensemble(both, Beside(Temperature(2.0)), tmp_path / "saved")
    saved = load(tmp_path / "saved")
    examples = tiny.examples(6)
    np.testing.assert_allclose(saved.probabilities(examples), Temperature(2.0)(both.logits(examples)), atol=1e-6)
    promised = Beside(threshold=SelectiveThreshold(0.0, 0.9, 0.05, 1.0), sets=ConformalSets(None, 0.9, "lac"))
    save_ensemble(both, promised, tmp_path / "promised")
    whole = load(tmp_path / "promised")
    assert whole.predict(TEXTS, abstain=True) == whole.predict(TEXTS)
    assert whole.accepted(whole.predict_proba(TEXTS)).tolist() == [True] * 3
    assert whole.possible(whole.predict_proba(TEXTS)) == [list(tiny.LABELS)] * 3
    before = identity(str(tmp_path / "saved"))
    write_beside(tmp_path / "saved" / "member-2", Beside(Temperature(3.0)))
    assert identity(str(tmp_path / "saved")) != before
    with pytest.raises(InputError, match="is an ensemble; name one of its members"):
        load_one(tmp_path / "saved")
    with pytest.raises(InputError, match="is an ensemble itself"):
        load([tmp_path / "saved", backwards])
    with pytest.raises(InputError, match="calibrated as it stands"):
        load(tmp_path / "saved", mc_dropout=3)


@pytest.mark.parametrize("content", ["{", "[]", '{"members": []}', '{"members": ["../elsewhere"]}', '{"members": [1]}'])
def test_a_damaged_ensemble_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "ensemble.json").write_text(content)
    with pytest.raises(InputError, match=r"ensemble\.json: is damaged"):
        load(tmp_path)


def test_members_that_cannot_vote_together_are_refused(checkpoint: Any) -> None:
    with pytest.raises(InputError, match="labels differ"):
        load([checkpoint("bert"), checkpoint("bert", classes=5)])
    with pytest.raises(InputError, match="cannot vote together"):
        load([checkpoint("bert"), checkpoint("bert", choices=True)])
    with pytest.raises(InputError, match="at least one member"):
        load([])


def test_a_precision_that_there_is_not_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(InputError, match=r"^precision must be one of fp32, bf16, not 'fp16'$"):
        load("nowhere", precision="fp16")  # type: ignore[arg-type]


def test_one_alone_is_a_classifier_and_dropout_is_asked_for_when_loading(checkpoint: Any, tmp_path: Path) -> None:
    assert isinstance(load([checkpoint("bert")]), Classifier)
    one = load(checkpoint("bert"), mc_dropout=4)
    assert one.beside.dropout == Dropout(4)
    assert (one.predict_proba(TEXTS) != load(checkpoint("bert")).predict_proba(TEXTS)).any()
    folder = shutil.copytree(checkpoint("bert"), tmp_path / "bert")
    write_beside(folder, Beside(VectorScaling((1.0, 1.0, 1.0), (0.0, 0.0, 0.0))))
    with pytest.raises(InputError, match="calibrate the model again with --mc-dropout"):
        load(folder, mc_dropout=4)
    write_beside(folder, Beside(Temperature(2.0), dropout=Dropout(3, 0.1)))
    kept = load(folder)
    np.testing.assert_array_equal(
        kept.predict_proba(TEXTS), load(folder, mc_dropout=Dropout(3, 0.1)).predict_proba(TEXTS)
    )
