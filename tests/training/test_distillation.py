"""A student from a teacher: the whole way."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

import calmix
from calmix.data import Examples
from calmix.errors import CalmixWarning, InputError
from calmix.recipes import informed_mixup, taught
from calmix.training import Run, distil, train
from calmix.training.teachers import Teachers

UNKNOWN = -1


@pytest.fixture
def teacher(checkpoint: Any, request: pytest.FixtureRequest) -> Path:
    """Another architecture than the student's."""
    return Path(checkpoint(getattr(request, "param", "roberta")))


@pytest.fixture
def opinionated(tmp_path: Path) -> Any:
    """Return `opinionated(checkpoint)`: a copy that is sure of what it says, where tiny ones have hardly a view."""

    def copy(checkpoint: Path) -> Path:
        folder = shutil.copytree(checkpoint, tmp_path / "opinionated")
        file = folder / "model.safetensors"
        save_file(
            {
                name: tensor * 50 if "classifier" in name and name.endswith("weight") else tensor
                for name, tensor in load_file(file).items()
            },
            file,
            {"format": "pt"},
        )
        return folder

    return copy


@pytest.fixture
def quickly(checkpoint: Any, teacher: Path, tmp_path: Path) -> Any:
    """Return `quickly(out, **changes)`: a distillation of two epochs of three steps, with changes."""

    def run(out: str | None = "run", **changes: Any) -> Run:
        options: dict[str, Any] = {
            "teacher": teacher,
            "data": tiny.examples(24),
            "student": checkpoint("bert"),
            "dev": tiny.examples(12, seed=1),
            "head": "random",
            "epochs": 2,
            "batch_size": 8,
            "lr": 1e-2,
            "seed": 3,
            "out": None if out is None else tmp_path / out,
        }
        options |= changes
        return distil(options.pop("teacher"), options.pop("data"), **options)

    return run


def weights(run: Run) -> dict[str, torch.Tensor]:
    return load_file(run.model / "model.safetensors")


def without_labels(examples: Examples, rows: Any) -> Examples:
    labels = examples.labels.copy()
    labels[rows] = UNKNOWN
    return Examples(examples.table, labels, examples.label_names, source="some.csv")


def test_alpha_one_is_plain_training_to_the_bit(quickly: Any, quick: Any) -> None:
    plain, student = quick("plain"), quickly("student", alpha=1.0)
    expected = weights(plain)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(student).items())
    assert student.metrics["temperature"] == plain.metrics["temperature"]


def test_a_run_has_what_a_run_has_and_the_teachers_logits(quickly: Any, quick: Any, outcome: Any) -> None:
    student, plain = quickly(), quick("plain")
    extra = {p.name for p in student.folder.iterdir()} - {p.name for p in plain.folder.iterdir()}
    assert len(extra) == 1
    assert pq.read_table(student.folder / extra.pop()).num_rows == 24
    assert outcome(quickly("again").folder) == outcome(student.folder)


@pytest.mark.parametrize("form", ["usual", "paper"])
def test_a_teacher_asked_in_every_step_gives_the_weights_of_one_asked_once(quickly: Any, form: str) -> None:
    cached = quickly("cached", form=form, tau=2.0, alpha=0.2)
    live = quickly("live", form=form, tau=2.0, alpha=0.2, cache=False)
    assert not list(live.folder.glob("teacher-*"))
    found, expected = weights(live), weights(cached)
    for name, tensor in expected.items():
        # A key's bias adds the same to all scores of a query: its gradient is rounding, which Adam makes steps of.
        if not name.endswith("key.bias"):
            torch.testing.assert_close(found[name], tensor, atol=1e-4, rtol=1e-4)


STUDENTS = [("roberta", "bert"), ("bert", "distilbert"), ("bert", "electra"), ("bert", "sentence-cnn")]


@pytest.mark.parametrize("form", ["usual", "paper"])
@pytest.mark.parametrize(("teacher", "student"), STUDENTS, indirect=["teacher"])
def test_without_adam_all_weights_are_those_of_one_asked_once_but_for_rounding(
    quickly: Any, checkpoint: Any, opinionated: Any, teacher: Path, student: str, form: str
) -> None:
    name = student if student == "sentence-cnn" else checkpoint(student)
    settings = {"student": name, "form": form, "tau": 2.0, "alpha": 0.2, "optimizer": "sgd", "precision": "fp32"}
    settings |= {"teacher": opinionated(teacher), "lr": 0.1, "select": "none"}
    cached, live = weights(quickly("cached", **settings)), weights(quickly("live", cache=False, **settings))
    torch.testing.assert_close(live, cached, rtol=1e-5, atol=1e-6)
    # That is far less than what the teacher says amounts to.
    other = weights(quickly("other", **settings | {"teacher": teacher}))
    assert max((other[name] - tensor).abs().max() for name, tensor in cached.items()) > 1e-2


def test_a_student_without_labels_agrees_with_its_teacher_by_name(
    checkpoint: Any, quickly: Any, tmp_path: Path
) -> None:
    # The teacher has another tokenizer, reads fewer tokens, and counts its labels the other way round.
    texts, labels = tiny.texts(48)
    learnt = Examples.from_texts(texts, labels, label_names=tiny.LABELS[::-1])
    common = {"dev": learnt.take(range(12)), "lr": 1e-2, "batch_size": 8, "select": "none", "seed": 1}
    teacher = train(learnt, model=checkpoint("roberta"), max_length=10, epochs=20, out=tmp_path / "teacher", **common)
    student = quickly(teacher=teacher.folder, data=tiny.examples(48), alpha=0.0, epochs=30, select="none")
    by_teacher, by_student = (calmix.load(each) for each in (teacher.folder, student.folder))
    assert by_teacher.label_names == by_student.label_names[::-1] == tiny.LABELS[::-1]
    expected = by_teacher.predict(texts)
    assert len(set(expected)) == 3
    assert np.mean([a == b for a, b in zip(expected, by_student.predict(texts), strict=True)]) > 0.9


def test_several_teachers_teach_together(quickly: Any, checkpoint: Any, teacher: Path) -> None:
    run = quickly(teacher=[teacher, checkpoint("electra")])
    assert np.isfinite(run.metrics["splits"]["dev"]["before"]["nll"])


def test_choices_are_distilled(checkpoint: Any, quickly: Any) -> None:
    choices = {"data": tiny.examples(24, kind="choices"), "dev": tiny.examples(12, kind="choices", seed=1)}
    run = quickly(teacher=checkpoint("roberta", choices=True), student=checkpoint("bert", choices=True), **choices)
    assert np.isfinite(run.metrics["splits"]["dev"]["before"]["nll"])


def test_a_guided_recipe_can_have_a_teacher(quick: Any, teacher: Path) -> None:
    first = quick("first")
    run = quick("second", recipe=taught(informed_mixup(), alpha=0.5), teacher=teacher, dynamics=first.folder)
    assert run.metrics["best_epoch"] >= 1
    online = quick("third", recipe=taught(informed_mixup(), alpha=0.5), teacher=teacher, online=True)
    assert online.metrics["best_epoch"] >= 1


# ---- rows without a label


def test_rows_without_a_label_are_learnt_from(quickly: Any) -> None:
    data = tiny.examples(24)
    heard: list[str] = []
    some = quickly("some", data=without_labels(data, slice(0, 12)), on_note=heard.append)
    assert "train: 12 of 24 rows have no label and learn from the teacher alone" in heard
    assert some.metrics["rows"]["train"] == 24
    seen = pq.read_table(some.folder / "datamap.parquet")["observations"].to_pylist()
    assert seen == [0] * 12 + [2] * 12
    none = quickly("none", data=Examples(data.table, np.full(24, UNKNOWN), ()))
    assert calmix.load(none.folder).label_names == tiny.LABELS
    assert not (none.folder / "datamap.parquet").exists()
    ignoring = quickly("ignoring", alpha=0.0)
    expected = weights(ignoring)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(none).items())


def test_dev_data_are_split_off_rows_with_a_label(quickly: Any) -> None:
    run = quickly(data=without_labels(tiny.examples(60), slice(0, 30)), dev=None, dev_fraction=0.2)
    assert run.metrics["rows"] == {"train": 54, "dev": 6}
    assert len(pq.read_table(run.folder / "predictions-dev.parquet")["label"]) == 6
    with pytest.raises(InputError, match="no row has a label, to choose the epoch and the temperature by: give --dev"):
        quickly("none", data=without_labels(tiny.examples(24), slice(0, 24)), dev=None)


def test_the_classes_are_the_teachers_where_rows_have_no_label(quickly: Any) -> None:
    texts, labels = tiny.texts(24)
    known = Examples.from_texts(texts, labels, label_names=tiny.LABELS[::-1])
    two = without_labels(known, known.labels == 0)  # nothing is left of one class
    run = quickly(data=Examples(two.table, two.labels, two.label_names), class_weights="balanced")
    assert calmix.load(run.folder).label_names == tiny.LABELS
    other = Examples(two.table, two.labels, ("x", "y", "z"))
    with pytest.raises(InputError, match="labels differ: x, y, z in the training set, animal, food, weather in the"):
        quickly("other", data=other)


def test_a_file_without_labels_will_do(quickly: Any, tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text("text\n" + "\n".join(tiny.texts(24)[0]))
    run = quickly(data=tmp_path / "texts.csv")
    assert run.metrics["rows"]["train"] == 24


def test_without_a_teacher_every_row_needs_a_label(quick: Any) -> None:
    with pytest.raises(InputError, match=r"some\.csv: has unlabelled rows"):
        quick(train=without_labels(tiny.examples(24), [3]))


# ---- killed, and gone on with


class _Killed(Exception):
    pass


@pytest.mark.parametrize("step", [1, 3, 5])
@pytest.mark.usefixtures("often")
def test_a_killed_run_goes_on_to_the_same_result_without_asking_again(
    quickly: Any, outcome: Any, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    whole = quickly("whole", checkpoint_minutes=0.0)

    def kill(progress: Any) -> None:
        if progress.step == step:
            raise _Killed

    with pytest.raises(_Killed):
        quickly("killed", checkpoint_minutes=0.0, on_progress=kill)
    monkeypatch.setattr(Teachers, "logits", lambda *_: pytest.fail("the teacher was asked again"))
    again = quickly("killed", checkpoint_minutes=0.0)
    assert outcome(again.folder) == outcome(whole.folder)


def test_the_teachers_logits_are_not_saved_with_every_checkpoint(quickly: Any, often: None) -> None:
    seen: list[set[str]] = []

    def look(progress: Any) -> None:
        for file in Path(folder).glob("checkpoints/step-*/guidance.safetensors"):
            seen.append({name for name in load_file(file) if "teacher" in name})

    folder = quickly("first").folder.parent / "second"
    quickly("second", checkpoint_minutes=0.0, on_progress=look)
    assert seen
    assert not any(seen)


def test_another_teacher_or_weight_is_another_run(quickly: Any, checkpoint: Any) -> None:
    with pytest.warns(CalmixWarning, match="holds this very run"):
        assert quickly() == quickly()
    for change, told in (
        ({"teacher": checkpoint("electra")}, "teacher is not the same as it was"),
        ({"alpha": 0.25}, "options: alpha was 0.5, is 0.25"),
        ({"tau": 2.0}, "options: tau was 1.0, is 2.0"),
        ({"cache": False}, "cache_teacher was not given, is False"),
        ({"scaled": False}, "teacher was scaled, is unscaled"),
    ):
        with pytest.raises(InputError, match=rf"holds a different run \({told}\)"):
            quickly(**change)


# ---- generations


def test_each_generation_learns_from_the_one_before(quickly: Any, tmp_path: Path) -> None:
    last = quickly("born", generations=2)
    assert last.folder == tmp_path / "born" / "generation-2"
    alone = quickly("alone", teacher=tmp_path / "born" / "generation-1")
    expected = weights(alone)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(last).items())


def test_notes_say_which_generation_they_are_about(quickly: Any) -> None:
    told: list[str] = []
    last = quickly("born", generations=2, on_note=told.append)
    assert last.metrics["notes"]
    assert [line for line in told if line.startswith("generation 2: ")] == [
        f"generation 2: {line}" for line in last.metrics["notes"]
    ]
    assert all(line.startswith(("generation 1: ", "generation 2: ")) for line in told)


def test_generations_that_are_there_are_not_made_again(quickly: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = quickly("born/generation-1")
    before = first.model.stat().st_mtime_ns
    second = quickly("born", generations=2, on_note=print)
    assert first.model.stat().st_mtime_ns == before
    assert second.folder.name == "generation-2"
    assert quickly("born", generations=2, on_note=print) == second


# ---- refused


def test_nonsense_is_refused_before_anything_is_written(quickly: Any, tmp_path: Path, checkpoint: Any) -> None:
    for changes, message in (
        ({"generations": 0}, "--generations must be 1 or more"),
        ({"generations": 2, "out": None}, "give --out"),
        ({"options": {"alpha": 0.2}}, "give --alpha"),
        ({"learning_rate": 0.2}, r"^distil\(\) has no argument 'learning_rate'; did you mean 'lr'\?$"),
        ({"model": checkpoint("bert")}, "model is not for distil: the model that learns is --student"),
        ({"recipe": "erm"}, "recipe is not for distil: it is the recipe"),
        ({"cache_teacher": False}, "give --cache or --no-cache"),
        ({"alpha": 2.0}, "alpha must be between 0 and 1"),
        ({"teacher": []}, "learns from a teacher"),
        ({"teacher": tmp_path / "nowhere"}, "no such folder"),
        ({"teacher": checkpoint("bert", classes=2)}, "labels differ"),
    ):
        with pytest.raises(InputError, match=message):
            quickly(**changes)
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match="learns from a teacher"):
        train(tiny.examples(24), recipe="distil", model=checkpoint("bert"), out=tmp_path / "run")


@pytest.mark.parametrize("cache", [True, False])
def test_a_dry_run_writes_nothing_and_counts_generations(quickly: Any, tmp_path: Path, cache: bool) -> None:
    once = quickly(dry_run=True, cache=cache)
    assert once.metrics["steps"] == 6
    assert once.metrics["seconds"] > 0
    assert quickly(dry_run=True, generations=3).metrics["steps"] == 18
    assert not (tmp_path / "run").exists()


def test_merged_labels_are_spelt_as_the_teacher_spells_them(quickly: Any) -> None:
    data = tiny.examples(24)
    names = ("Animal", "animal", "Food", "weather")  # Food is the only spelling there is
    labels = np.where(np.arange(24) % 6 == 0, 1, np.array([0, 2, 3])[data.labels])
    spelt = Examples(data.table, labels, names, source="spelt.csv")
    with pytest.raises(InputError, match=r"'animal' \(4 rows\) and 'Animal' \(4 rows\)"):
        quickly(data=spelt)
    run = quickly(data=spelt, merge_labels=True)
    assert run.metrics["splits"]["dev"]["after"]["n"] == 12
    assert "train: merged labels of" in run.metrics["notes"][0]
    assert calmix.load(run.model).label_names == tiny.LABELS
