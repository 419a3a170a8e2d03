"""`calmix distil`."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def words(files: Any, checkpoint: Any) -> list[Any]:
    return ["--dev", files["dev"], "--student", checkpoint("bert"), "--epochs", 1]


def test_it_distils_a_run_and_prints_the_figures(
    calmix: Any, trained: Path, words: Any, files: Any, place: Path
) -> None:
    ended = calmix("distil", trained, files["train"], *words, "--test", files["test"], "--tau", 2, "--out", "run")
    assert ended.code == 0, ended.err
    for name in ("dev", "test", "accuracy", "ECE"):
        assert name in ended.out
    assert ended.out.endswith("model: run/model\n")
    assert len(list(Path("run").glob("teacher-*.parquet"))) == 1
    card = (place / "run" / "model" / "README.md").read_text()
    assert "recipe `distil` (alpha = `0.5`, tau = `2.0`, form = `usual`)" in card


@pytest.mark.parametrize(
    ("option", "says"),
    [("--model", "the model that learns is --student"), ("--recipe", "it is the recipe; for another one, train")],
)
def test_options_of_train_that_have_another_name_here_say_which(
    calmix: Any, trained: Path, words: Any, files: Any, place: Path, option: str, says: str
) -> None:
    ended = calmix("distil", trained, files["train"], *words, option, "x", "--out", "run")
    assert (ended.code, ended.out, ended.err) == (2, "", f"calmix: {option[2:]} is not for distil: {says}\n")
    assert list(place.iterdir()) == []
    assert option not in calmix("distil", "--help").out.split()


def test_several_teachers_come_before_the_table(
    calmix: Any, trained: Path, words: Any, files: Any, place: Path
) -> None:
    other = words[words.index("--student") + 1]
    (place / "texts.csv").write_text("text\nthe cat saw rain\nbread\nmy old dog liked snow\n")
    ended = calmix("distil", trained, other, "texts.csv", *words, "--no-cache", "--out", "run", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["rows"]["train"] == 3
    assert not list(Path("run").glob("teacher-*"))


def test_generations_are_runs_of_their_own(calmix: Any, trained: Path, words: Any, files: Any, place: Path) -> None:
    ended = calmix("distil", trained, files["train"], *words, "--generations", 2, "--out", "born")
    assert ended.code == 0, ended.err
    assert ended.out.endswith("model: born/generation-2/model\n")
    assert sorted(path.name for path in (place / "born").iterdir()) == ["generation-1", "generation-2"]


def test_all_generations_are_told_at_the_end(calmix: Any, trained: Path, words: Any, files: Any, place: Path) -> None:
    command = ["distil", trained, files["train"], *words, "--test", files["test"], "--out", "born", "--generations"]
    ended = calmix(*command, 2)
    assert ended.code == 0, ended.err
    shown = [line.split() for line in ended.out.splitlines() if line.startswith((" dev", " test"))]
    assert [line[:2] for line in shown[2:]] == [["dev", "1"], ["dev", "2"], ["test", "1"], ["test", "2"]]
    for name, turn, accuracy, *_, nll in shown[2:]:
        figures = json.loads((place / "born" / f"generation-{turn}" / "metrics.json").read_text())
        after = figures["splits"][name]["after"]
        assert (accuracy, nll) == (f"{after['accuracy']:.1%}", f"{after['nll']:.3f}")
    found = json.loads(calmix(*command, 3, "--json").out)
    assert [each["folder"] for each in found["generations"]] == [f"born/generation-{turn}" for turn in (1, 2, 3)]
    assert found["generations"][2]["splits"] == found["splits"]


def test_every_option_arrives(calmix: Any, monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    from calmix.training import Run, distil, train

    heard: dict[str, Any] = {}

    def listen(teacher: list[str], data: str, **options: Any) -> Run:
        heard.update(options, teacher=teacher, data=data)
        return Run(place, {"dry_run": True, "rows": {}, "labels": (), "steps": 1, "seconds": 1, "memory_bytes": 1})

    monkeypatch.setattr("calmix.training.distil", listen)
    own = [
        "--student",
        "m",
        "--alpha",
        0.25,
        "--tau",
        3,
        "--form",
        "paper",
        "--generations",
        2,
        "--no-cache",
        "--unscaled",
    ]
    shared = ["--epochs", 7, "--lr", 0.5, "--schedule", "constant", "--set", "smoothing=0.1", "--dry-run", "--out", "o"]
    ended = calmix("distil", "a", "b", "train.csv", *own, *shared)
    assert ended.code == 0, ended.err
    assert (heard["teacher"], heard["data"]) == (["a", "b"], "train.csv")
    expected = {"student": "m", "alpha": 0.25, "tau": 3.0, "form": "paper", "generations": 2, "cache": False}
    expected |= {"scaled": False}
    expected |= {"epochs": 7, "lr": 0.5, "schedule": "constant", "options": {"smoothing": "0.1"}, "out": Path("o")}
    assert {name: heard[name] for name in expected} == expected
    settings = set(inspect.signature(distil).parameters) - {"training"}
    others = set(inspect.signature(train).parameters) - {"train", "model", "recipe", "dynamics", "online", "lean"}
    assert set(heard) == settings | others - {"cache_teacher", "scaled_teacher"}


def test_defaults_are_those_of_the_function(calmix: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from calmix.training import Run, distil, train

    heard: dict[str, Any] = {}

    def listen(_teacher: list[str], _data: str, **options: Any) -> Run:
        heard.update(options)
        return Run(Path(), {})

    monkeypatch.setattr("calmix.training.distil", listen)
    calmix("distil", "a", "train.csv", "--json")
    known = {**inspect.signature(train).parameters, **inspect.signature(distil).parameters}
    given = {"ood": {}, "options": {}}
    for name, value in heard.items():
        if name not in ("on_progress", "on_note"):
            assert value == given.get(name, known[name].default), name


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--form", "other"], "Invalid value for '--form'"),
        (["--alpha", "2"], "alpha must be between 0 and 1"),
        (["--set", "tau=2"], "give --tau"),
        (["--dynamics", "map"], "No such option: --dynamics"),
        (["--generations", "2"], "give --out"),
    ],
)
def test_a_wrong_option_is_one_line(
    calmix: Any, trained: Path, words: Any, files: Any, place: Path, more: list[str], message: str
) -> None:
    ended = calmix("distil", trained, files["train"], *words, *more)
    assert ended.code == 2
    assert message in ended.err
    assert ended.err.count("\n") == 1
    assert list(place.iterdir()) == []


def test_labels_that_differ_are_both_listed(calmix: Any, checkpoint: Any, words: Any, files: Any, place: Path) -> None:
    ended = calmix("distil", checkpoint("roberta", classes=2), files["train"], *words, "--out", "run")
    assert ended.code == 2
    assert "animal, food, weather in the training set, LABEL_0, LABEL_1 in the teacher" in ended.err
    assert list(place.iterdir()) == []


def test_a_forgotten_table_is_said(calmix: Any, trained: Path) -> None:
    ended = calmix("distil", trained)
    assert ended.code == 2
    assert f"{trained} is the teacher, or the data? Give both: calmix distil TEACHER TRAIN" in ended.err
    assert "Missing argument 'TEACHER... TRAIN'" in calmix("distil").err


def test_an_encoder_teaches_a_sentence_cnn(calmix: Any, trained: Path, files: Any, place: Path) -> None:
    (place / "v.txt").write_text("cat 1 2 3\nrain 4 5 6\n")
    words = (
        "distil",
        trained,
        files["train"],
        "--dev",
        files["dev"],
        "--student",
        "sentence-cnn",
        "--vectors",
        "v.txt",
    )
    ended = calmix(*words, "--epochs", 1, "--no-report", "--out", "student")
    assert ended.code == 0, ended.err
    assert calmix("predict", "student", files["texts"]).code == 0


def test_columns_named_for_the_teacher_are_found_again_and_handed_on(
    calmix: Any, odd: Any, checkpoint: Any, place: Path
) -> None:
    ended = calmix("distil", odd.run, odd.file, "--student", checkpoint("bert"), "--epochs", 1, "--out", "run")
    assert ended.code == 0, ended.err
    found = json.loads((place / "run" / "model" / "config.json").read_text())["calmix_columns"]
    assert found == {"text": "Body (raw)", "label": "queue", "id": "KEY"}
