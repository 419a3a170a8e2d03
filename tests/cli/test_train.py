"""`calmix train`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ranks import free_port


@pytest.fixture
def words(files: Any, checkpoint: Any) -> list[Any]:
    return ["train", files["train"], "--dev", files["dev"], "--model", checkpoint("bert"), "--epochs", 1]


def test_it_trains_and_prints_the_figures(calmix: Any, words: Any, files: Any, place: Path) -> None:
    ended = calmix(*words, "--test", files["test"], "--ood", f"far={files['dev']}", "--out", "run")
    assert ended.code == 0, ended.err
    for name in ("dev", "test", "ood-far", "accuracy", "ECE"):
        assert name in ended.out
    assert ended.out.endswith("model: run/model\n")
    assert (place / "run" / "metrics.json").is_file()


def test_json_is_all_that_stdout_gets(calmix: Any, words: Any, place: Path) -> None:
    ended = calmix(*words, "--out", "run", "--json")
    assert ended.code == 0
    found = json.loads(ended.out, parse_constant=lambda token: pytest.fail(f"{token} is not JSON"))
    assert found.pop("folder") == "run"
    assert found == json.loads((place / "run" / "metrics.json").read_text())
    assert ended.err == ""


THEIRS = {"teacher", "cache_teacher", "scaled_teacher", "lean"}
"""What `calmix distil` and `calmix study` say."""


def test_every_option_arrives(calmix: Any, words: Any, monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    import inspect

    from calmix.training import Run, train

    heard: dict[str, Any] = {}

    def listen(source: str, **options: Any) -> Run:
        heard.update(options, train=source)
        return Run(place, {"dry_run": True, "rows": {}, "labels": (), "steps": 1, "seconds": 1, "memory_bytes": 1})

    monkeypatch.setattr("calmix.training.train", listen)
    given: dict[str, Any] = {
        "epochs": 7,
        "batch-size": 5,
        "lr": 0.25,
        "weight-decay": 0.125,
        "warmup": 0.5,
        "schedule": "constant",
        "clip": 2.0,
        "accumulate": 3,
        "max-length": 33,
        "select": "mcc",
        "patience": 4,
        "seed": 9,
        "bins": 11,
        "guarantee": 0.75,
        "precision": "fp32",
        "checkpoint-minutes": 2.5,
        "checkpoint-epochs": 6,
        "dev-fraction": 0.375,
        "folds": 2,
        "head": "random",
        "pooling": "mean",
        "text": "a",
        "text-b": "b",
        "choices": "c",
        "label": "d",
        "id": "e",
        "votes": "f",
        "recipe": "erl",
        "record": "evaluation",
    }
    without_dev = [*words[:2], *words[4:]]
    ended = calmix(
        *without_dev,
        *(word for name, value in given.items() for word in (f"--{name}", value)),
        *("--set", "x=1", "--set", "y=a=b", "--class-weights", "p=1,q=2", "--ood", "n=file.csv"),
        *("--track", "tensorboard", "--gradient-checkpointing", "--merge-labels", "--dry-run", "--out", "here"),
    )
    assert ended.code == 0, ended.err
    for name, value in given.items():
        assert heard[name.replace("-", "_")] == value
    assert heard["options"] == {"x": "1", "y": "a=b"}
    assert heard["class_weights"] == {"p": 1.0, "q": 2.0}
    assert heard["ood"] == {"n": "file.csv"}
    assert heard["track"] == ("tensorboard",)
    assert heard["gradient_checkpointing"] is heard["merge_labels"] is True
    assert heard["out"] == Path("here")
    assert set(heard) == set(inspect.signature(train).parameters) - THEIRS


def test_defaults_are_those_of_the_function(calmix: Any, files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import inspect

    from calmix.training import Run, train

    heard: dict[str, Any] = {}

    def listen(source: str, **options: Any) -> Run:
        heard.update(options)
        return Run(Path(), {})

    monkeypatch.setattr("calmix.training.train", listen)
    calmix("train", files["train"], "--json")
    given = {"ood": {}, "options": {}}
    for name, parameter in inspect.signature(train).parameters.items():
        if name not in {"train", "on_progress", "on_note", *THEIRS}:
            assert heard[name] == given.get(name, parameter.default), name


def test_labels_that_differ_in_case_alone_stop_unless_something_is_said(
    calmix: Any, words: Any, files: Any, place: Path
) -> None:
    lines = files["train"].read_text().splitlines()
    mixed = place / "mixed.csv"
    mixed.write_text("\n".join([*lines[:-1], lines[-1].replace("weather", "Weather")]) + "\n")
    asked = [words[0], mixed, *words[2:], "--out", "run"]
    ended = calmix(*asked)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "'Weather' (1 row) and 'weather' (9 rows); --merge-labels makes one of each" in ended.err
    assert not (place / "run").exists()
    assert "labels: animal, food, weather\n" in calmix(*asked, "--merge-labels", "--dry-run").out
    assert "labels: Weather, animal, food, weather\n" in calmix(*asked, "--keep-labels", "--dry-run").out


@pytest.mark.usefixtures("place")
def test_dev_data_and_a_share_to_split_off_contradict_each_other(calmix: Any, words: Any) -> None:
    ended = calmix(*words, "--dev-fraction", 0.1, "--out", "run")
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert "give --dev or --dev-fraction, not both" in ended.err


def test_a_dry_run_says_what_it_would_take(calmix: Any, words: Any, place: Path) -> None:
    ended = calmix(*words, "--dry-run", "--batch-size", 32, "--out", "run")
    assert ended.code == 0
    assert "rows: train 30, dev 30\nlabels: animal, food, weather\nsteps: 1\n" in ended.out
    assert "training would take about 0 min" in ended.out
    assert list(place.iterdir()) == []


def test_notes_go_to_stderr(calmix: Any, files: Any, checkpoint: Any, place: Path) -> None:
    words = ("train", files["train"], "--model", checkpoint("bert"), "--epochs", 1, "--folds")
    ended = calmix(*words, 0, "--out", "split")
    assert "· dev: 3 rows split off the training set" in ended.err
    assert "split off" not in ended.out
    ended = calmix(*words, 2, "--out", "folded")
    assert "· dev: none is split off so few rows: 2 networks learn from 1 of 2 parts each" in ended.err
    assert "· fold 2: 15 rows to learn from, 15 to predict" in ended.err
    assert "· head: it is trained for these labels already, and is kept" in ended.err


def test_a_head_alone_is_a_run_with_a_page(calmix: Any, words: Any, place: Path) -> None:
    ended = calmix(*words, "--epochs", 0, "--out", "run")
    assert ended.code == 0, ended.err
    assert "accuracy" in ended.out
    assert {path.name for path in (place / "run").iterdir()} >= {"report.html", "log.jsonl", "model"}
    assert not (place / "run" / "datamap.parquet").exists()
    assert calmix("predict", "run", words[words.index("--dev") + 1]).code == 0
    ended = calmix(*words, "--epochs", 0, "--head", "random", "--out", "other")
    assert (ended.code, ended.err.count("\n")) == (2, 1)


def test_a_guarantee_is_put_into_words(calmix: Any, words: Any, place: Path) -> None:
    ended = calmix(*words, "--guarantee", "30%", "--out", "run")
    assert "30% accuracy cannot be promised: the surest of the 15 held-out rows are too few, or wrong" in ended.out


def test_the_same_command_again_is_told_that_it_is_done_and_shows_what_came_out(
    calmix: Any, words: Any, place: Path, tree: Any
) -> None:
    first = calmix(*words, "--out", "run")
    before = tree(place)
    ended = calmix(*words, "--out", "run")
    assert (ended.code, ended.out) == (0, first.out)
    assert "holds this very run, finished" in ended.err
    assert tree(place) == before
    as_json = calmix(*words, "--out", "run", "--json")
    assert (as_json.code, as_json.err) == (0, "")
    assert json.loads(as_json.out)["folder"] == "run"
    ended = calmix(*words, "--out", "run", "--lr", "0.5")
    assert ended.code == 2
    assert "holds a different run (lr was 0.0024, is 0.5)" in ended.err


def test_a_run_that_was_killed_before_its_page_gets_it_from_the_same_command(
    calmix: Any, words: Any, place: Path
) -> None:
    first = calmix(*words, "--out", "run")
    page = (place / "run" / "report.html").read_bytes()
    (place / "run" / "report.html").unlink()
    ended = calmix(*words, "--out", "run")
    assert (ended.code, ended.out) == (0, first.out)
    assert (place / "run" / "report.html").read_bytes() == page
    (place / "run" / "report.html").unlink()
    assert calmix(*words, "--out", "run", "--no-report").code == 0
    assert not (place / "run" / "report.html").exists()


def test_averaging_weights_is_no_option_any_more(calmix: Any, words: Any, place: Path) -> None:
    ended = calmix(*words, "--out", "run", "--average", "0.5")
    assert ended.code == 2
    assert "No such option: --average" in ended.err
    assert ended.err.count("\n") == 1
    assert not (place / "run").exists()


def test_pushing_uploads_the_model(calmix: Any, words: Any, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[Any] = []
    monkeypatch.setattr("calmix.training.push", lambda *a: pushed.append(a) or "https://huggingface.co/org/name")
    for _ in range(2):  # a finished run can still be uploaded
        ended = calmix(*words, "--out", "run", "--push-to-hub", "org/name")
        assert ended.code == 0
        assert pushed.pop() == (Path("run/model"), "org/name")
        assert "uploaded to https://huggingface.co/org/name" in ended.err


def test_a_failed_upload_keeps_the_model(calmix: Any, words: Any, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hub:
        def create_repo(self, *_: Any, **__: Any) -> None:
            raise ConnectionError("no network")

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    ended = calmix(*words, "--out", "run", "--push-to-hub", "org/name", "--json")
    assert ended.code == 2
    assert "the upload failed (no network); the model is safe in run/model" in ended.err
    assert json.loads(ended.out)["folder"] == "run"
    assert (place / "run" / "metrics.json").is_file()


def test_control_characters_in_labels_stay_text(calmix: Any, checkpoint: Any, place: Path) -> None:
    rows = "".join(f"text {i},{('ok', chr(27) + '[31mred')[i % 2]}\n" for i in range(20))
    (place / "data.csv").write_text("text,label\n" + rows)
    ended = calmix("train", "data.csv", "--model", checkpoint("bert"), "--dry-run")
    assert ended.code in (0, 2)
    assert "\x1b" not in ended.out + ended.err


@pytest.mark.slow
def test_two_processes_print_once(words: Any, place: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python", "--master-port"]

    def launched(*more: str) -> "subprocess.CompletedProcess[str]":
        command = [*launcher, str(free_port()), str(Path(sys.executable).with_name("calmix")), *map(str, words), *more]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    done = launched("--out", "run", "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["folder"] == "run"
    again = launched("--out", "run", "--json")
    assert again.returncode == 0
    assert again.stdout == done.stdout


def test_a_sentence_cnn_begins_with_vectors_from_a_file(calmix: Any, files: Any, place: Path) -> None:
    (place / "v.txt").write_text("cat 1 2 3\nrain 4 5 6\n")
    words = ("train", files["train"], "--dev", files["dev"], "--epochs", 1, "--no-report")
    ended = calmix(*words, "--model", "sentence-cnn", "--vectors", "v.txt", "--out", "run")
    assert ended.code == 0, ended.err
    assert "2 of the" in ended.err
    assert calmix("predict", "run", files["texts"]).code == 0
    for wrong in (("--vectors", "v.txt"), ("--model", "sentence-cnn", "--vectors", "none.txt")):
        ended = calmix(*words, *wrong, "--out", "other")
        assert (ended.code, ended.err.count("\n")) == (2, 1), ended.err
    assert not (place / "other").exists()


@pytest.mark.usefixtures("place")
def test_what_the_model_knows_is_said_before_how_far_to_trust_it(calmix: Any, words: Any, files: Any) -> None:
    ended = calmix(*words, "--test", files["test"], "--out", "run", "--no-report")
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    trust = next(k for k, line in enumerate(lines) if line.startswith("On average it claims"))
    assert "lways answering the commonest class would be right 33 %" in lines[trust - 1]
