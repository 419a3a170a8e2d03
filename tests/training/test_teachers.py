"""Teachers: asked once and remembered, read in their own words, matched by the names of labels."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tiny
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

import calmix
from calmix.calibration import Isotonic
from calmix.data import Examples
from calmix.errors import InputError
from calmix.mixing import choose
from calmix.models import Beside, encode, save_ensemble, write_beside
from calmix.training.launching import accelerator_for
from calmix.training.teachers import Teachers, lesson_of, load_teachers, order_of, rehearsed_lesson

BACKWARDS = tuple(reversed(tiny.LABELS))


@pytest.fixture
def alone(tmp_path: Path) -> Any:
    return accelerator_for("fp32", (), tmp_path)


@pytest.fixture
def other(checkpoint: Callable[..., Path], tmp_path: Path) -> Path:
    """A teacher of another architecture and tokenizer, with its labels in another order, that reads 12 tokens."""
    folder = shutil.copytree(checkpoint("roberta"), tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    config |= {"id2label": dict(enumerate(BACKWARDS)), "label2id": {name: i for i, name in enumerate(BACKWARDS)}}
    (folder / "config.json").write_text(json.dumps(config))
    words = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(words | {"model_max_length": 12}))
    return folder


def found(*teachers: Any) -> Teachers:
    loaded = load_teachers(teachers, choose("distil"))
    assert loaded is not None
    return loaded


def by_name(folder: Path, texts: list[str], *, max_length: int) -> list[dict[str, float]]:
    """What transformers alone makes of each text: a logit for each label's name."""
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    names, rows = AutoConfig.from_pretrained(folder).id2label, []
    for text in texts:
        with torch.no_grad():
            inputs = tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")
            rows.append({names[k]: float(z) for k, z in enumerate(model.eval()(**inputs).logits[0])})
    return rows


def test_another_tokenizer_length_and_label_order_are_the_teachers_own(other: Path, alone: Any) -> None:
    examples = tiny.examples(20)
    logits = found(other).logits(examples, alone)
    expected = by_name(other, examples.column("text"), max_length=12)
    for row, names in zip(logits, expected, strict=True):
        assert dict(zip(examples.label_names, row, strict=True)) == pytest.approx(names, abs=1e-5)
    longer = by_name(other, examples.column("text"), max_length=64)
    assert longer != expected  # some texts were cut


def test_a_run_folder_teaches_with_what_it_was_calibrated_to(quick: Any, alone: Any) -> None:
    run, examples = quick(), tiny.examples(10, seed=7)
    teachers = found(run.folder)
    expected = calmix.load(run.folder).probabilities(examples)
    np.testing.assert_allclose(torch.from_numpy(teachers.logits(examples, alone)).softmax(1), expected, atol=1e-6)


def test_unscaled_a_teacher_is_as_it_came_out_of_training(quick: Any, alone: Any) -> None:
    dev = tiny.examples(12, seed=1)
    run = quick(dev=dev)
    raw = np.array(pq.read_table(run.folder / "predictions-dev.parquet")["logits"].to_pylist())
    write_beside(run.model, Beside(Isotonic.fit(raw, dev.labels)))
    unscaled = load_teachers(run.folder, choose("distil"), scaled=False)
    assert unscaled is not None
    assert run.metrics["temperature"] != 1
    np.testing.assert_allclose(unscaled.logits(dev, alone), raw, atol=1e-5)
    assert unscaled.identities != found(run.folder).identities


def test_a_recalibrator_beside_the_weights_is_applied_in_the_teachers_order(other: Path, alone: Any) -> None:
    examples = tiny.examples(60, seed=3)
    plain = found(other).logits(examples, alone)
    mine = np.array([2, 1, 0])[examples.labels]  # as the teacher counts
    write_beside(other, Beside(Isotonic.fit(plain[:, ::-1].copy(), mine)))
    expected = calmix.load(other).probabilities(examples)[:, ::-1]
    np.testing.assert_allclose(np.exp(found(other).logits(examples, alone)), expected, atol=1e-6)
    assert np.abs(expected - torch.from_numpy(plain).softmax(1).numpy()).max() > 0.05


def test_several_teachers_are_averaged_as_probabilities(checkpoint: Any, other: Path, alone: Any) -> None:
    examples = tiny.examples(12)
    one, two = (torch.from_numpy(found(name).logits(examples, alone)) for name in (checkpoint("bert"), other))
    both = torch.from_numpy(found(checkpoint("bert"), other).logits(examples, alone))
    torch.testing.assert_close(both.exp(), (one.softmax(1) + two.softmax(1)) / 2)


def test_an_ensemble_in_a_folder_teaches_as_its_members_do(
    checkpoint: Any, other: Path, alone: Any, tmp_path: Path
) -> None:
    examples = tiny.examples(12)
    save_ensemble(calmix.load([checkpoint("bert"), other]), Beside(), tmp_path / "both")
    both, folder = found(checkpoint("bert"), other), found(tmp_path / "both")
    np.testing.assert_allclose(folder.logits(examples, alone), both.logits(examples, alone), atol=1e-5)
    student = encode(examples, tiny.tokenizer(), max_length=32)
    with pytest.raises(InputError, match="is an ensemble"):
        folder.live(examples, student, alone)


def test_choices_are_taught_too(checkpoint: Any, alone: Any, tmp_path: Path) -> None:
    examples = tiny.examples(9, kind="choices")
    teachers = found(checkpoint("bert", choices=True))
    logits = teachers.logits(examples, alone)
    np.testing.assert_array_equal(np.isfinite(logits).sum(1), examples.choice_counts)
    kept = teachers.known(tmp_path, examples, alone)
    again = teachers.known(tmp_path, examples, alone)
    assert torch.equal(kept, again)


# ---- remembered


def test_logits_are_made_once_and_read_back_to_the_bit(
    other: Path, alone: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples, teachers = tiny.examples(20), found(other)
    made = teachers.known(tmp_path / "run", examples, alone)
    (file,) = (tmp_path / "run").iterdir()
    table = pq.read_table(file)
    assert table["id"].to_pylist() == examples.ids
    assert np.array_equal(np.array(table["logits"].to_pylist(), dtype=np.float32), made.numpy())
    monkeypatch.setattr(Teachers, "logits", lambda *_: pytest.fail("asked again"))
    assert torch.equal(found(other).known(tmp_path / "run", examples, alone), made)


@pytest.mark.parametrize("changed", ["teacher", "texts", "order"])
def test_another_teacher_or_other_data_are_asked_anew(
    other: Path, checkpoint: Any, tmp_path: Path, changed: str
) -> None:
    examples, teachers = tiny.examples(20), found(other)
    before = teachers.file(tmp_path, examples)
    if changed == "teacher":
        assert found(checkpoint("roberta")).file(tmp_path, examples) != before
    else:
        rows = tiny.examples(20, seed=1) if changed == "texts" else examples.take(range(20)[::-1])
        assert teachers.file(tmp_path, rows) != before
    assert found(other).file(tmp_path, tiny.examples(20)) == before


# ---- asked in every step


@pytest.mark.parametrize("kind", ["text", "choices"])
def test_a_teacher_asked_in_the_step_says_what_it_said_before(
    checkpoint: Any, other: Path, alone: Any, kind: str
) -> None:
    from calmix.mixing import Step

    examples = tiny.examples(12, kind=kind, counts=(3,))
    choices = 3 if kind == "choices" else None
    names = [checkpoint("bert", choices=True)] if choices else [checkpoint("bert"), other]
    student = encode(examples, tiny.tokenizer("bert"), max_length=32)
    ask = found(*names).live(examples, student, alone)
    rows = torch.tensor([7, 0, 3])
    step = Step(
        model=torch.nn.Identity(),
        inputs=student.batch(rows, width=student.width(rows.numpy()), choices=choices),
        targets=torch.zeros(3, 3),
        generator=torch.Generator(),
        rows=rows,
    )
    said = ask(step)
    assert not said.requires_grad
    expected = found(*names).logits(examples, alone)[rows.numpy()]
    torch.testing.assert_close(said, torch.from_numpy(expected), atol=1e-5, rtol=1e-5)


def test_a_recalibrated_teacher_cannot_be_asked_in_every_step(other: Path, alone: Any) -> None:
    examples = tiny.examples(30)
    write_beside(other, Beside(Isotonic.fit(2 * np.eye(3)[examples.labels], examples.labels)))
    with pytest.raises(InputError, match="beside its weights"):
        found(other).live(examples, encode(examples, tiny.tokenizer("bert"), max_length=32), alone)


def test_a_lesson_is_a_column_or_a_question(other: Path, alone: Any, tmp_path: Path) -> None:
    examples = tiny.examples(6)
    student = encode(examples, tiny.tokenizer("bert"), max_length=32)
    assert lesson_of(None, tmp_path, examples, student, alone, cache=True) == {}
    kept = lesson_of(found(other), tmp_path, examples, student, alone, cache=True)["teacher"]
    assert isinstance(kept, torch.Tensor)
    assert callable(lesson_of(found(other), tmp_path, examples, student, alone, cache=False)["teacher"])


@pytest.mark.parametrize("kind", ["text", "choices"])
def test_a_dry_run_has_a_stand_in_and_the_time_the_teacher_takes(checkpoint: Any, alone: Any, kind: str) -> None:
    examples = tiny.examples(100, kind=kind)
    student = encode(examples, tiny.tokenizer("bert"), max_length=32)
    teachers = found(checkpoint("bert", choices=kind == "choices"))
    lesson, seconds = rehearsed_lesson(teachers, examples, student, alone, cache=True)
    assert seconds > 0
    assert isinstance(lesson["teacher"], torch.Tensor)
    assert lesson["teacher"].shape == (100, 3 if kind == "text" else 4)
    live, nothing = rehearsed_lesson(teachers, examples, student, alone, cache=False)
    assert callable(live["teacher"])
    assert nothing == 0
    assert rehearsed_lesson(None, examples, student, alone, cache=True) == ({}, 0.0)


# ---- refused


def test_labels_are_matched_by_name() -> None:
    assert order_of(["a", "b", "c"], ["c", "a", "b"], "t").tolist() == [1, 2, 0]
    with pytest.raises(InputError) as caught:
        order_of(["a", "b"], ["LABEL_0", "LABEL_1"], "their/model")
    assert "labels differ: a, b in the training set, LABEL_0, LABEL_1 in the teacher their/model" in str(caught.value)
    with pytest.raises(InputError, match="labels differ"):
        order_of(["a", "b"], ["a", "b", "c"], "t")


def test_a_teacher_and_a_recipe_that_learns_go_together(checkpoint: Any) -> None:
    assert load_teachers(None, choose("erm")) is None
    with pytest.raises(InputError, match=r"learns from a teacher: give one, as in `calmix distil TEACHER TRAIN`"):
        load_teachers(None, choose("distil"))
    with pytest.raises(InputError, match="learns from no teacher"):
        load_teachers(checkpoint("bert"), choose("erm"))
    with pytest.raises(InputError, match="cannot teach together"):
        found(checkpoint("bert"), checkpoint("bert", choices=True))


def test_a_teacher_of_other_data_or_labels_is_refused(checkpoint: Any) -> None:
    with pytest.raises(InputError, match="holds choices data"):
        found(checkpoint("bert")).check(tiny.examples(6, kind="choices"))
    texts = Examples.from_texts(["a b", "c d"], ["yes", "no"])
    with pytest.raises(InputError, match="labels differ: no, yes in the training set"):
        found(checkpoint("bert")).check(texts)
    found(checkpoint("bert")).check(replace(tiny.examples(6), labels=np.full(6, -1)))


def test_a_teacher_that_predicts_no_numbers_is_refused(checkpoint: Any, alone: Any) -> None:
    teachers = found(checkpoint("bert"))
    with torch.no_grad():
        next(teachers.classifiers[0].model.parameters()).fill_(float("nan"))
    with pytest.raises(InputError, match="not finite"):
        teachers.logits(tiny.examples(4), alone)
