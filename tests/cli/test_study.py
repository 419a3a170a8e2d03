"""`calmix study`."""

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def file(place: Path, checkpoint: Any, files: Any) -> Path:
    """A study of one task that is described in it, with two seeds."""
    text = f"""
    models = ["{checkpoint("bert")}"]
    seeds = 2
    figures = ["accuracy", "ece"]
    [training]
    epochs = 1
    [task.mine]
    train = "train.csv"
    dev = "dev.csv"
    test = "test.csv"
    [[method]]
    recipe = "erm"
    [[method]]
    recipe = "erl"
    """
    (place / "study.toml").write_text(text)
    return place / "study.toml"


def test_a_study_prints_its_tables_and_goes_on_where_it_was(calmix: Any, file: Path, files: Any, place: Path) -> None:
    words = ["study", file, "--out", "out", "--data", files["train"].parent]
    ended = calmix(*words, "--dry-run")
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[-1] == "4 runs, 0 done, 0 failed; 120 training samples to go"
    assert not (place / "out").exists()
    ended = calmix(*words, "--minutes", 0)
    assert ended.code == 0, ended.err
    assert "4 of 4 runs are still to be made" in ended.err
    assert ended.out == "page: out/report.html\n"  # there is nothing in the tables yet
    ended = calmix(*words)
    assert ended.code == 0, ended.err
    assert "ECE (%)" in ended.out
    assert "mine +TS" in ended.out
    errors = ended.out.split("ECE (%)")[1].splitlines()
    assert next(line for line in errors if "method" in line).split()[-3:] == ["rank", "rank", "+TS"]
    rows = [next(line.split() for line in errors if line.strip().startswith(name)) for name in ("erm", "erl")]
    ranks = [float(rank) for column in (-2, -1) for rank in (row[column] for row in rows)]
    told = json.loads((place / "out/study.json").read_text())["tables"]
    assert ranks == [row["rank"] for row in told if row["figure"] == "ece"]
    assert "standard deviation over 2 seeds; * differs from erm" in ended.out
    assert ended.out.endswith("page: out/report.html\n")
    page = (place / "out/report.html").read_bytes()
    assert calmix("report", "out").out == "page: out/report.html\n"
    assert (place / "out/report.html").read_bytes() == page
    (place / "out/report.html").unlink()
    assert "page:" not in calmix(*words, "--tables", "--no-report").out
    assert not (place / "out/report.html").exists()
    before = {path: path.stat().st_mtime_ns for path in (place / "out/runs").rglob("metrics.json")}
    assert len(before) == 4
    ended = calmix(*words, "--json")
    assert json.loads(ended.out)["study"]["title"] == "study"
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert calmix(*words, "--tables").code == 0
    assert "4 done" in calmix(*words, "--dry-run").out


def test_a_failure_ends_with_code_1_after_all_else_is_done(calmix: Any, file: Path, files: Any, place: Path) -> None:
    words = ["study", file, "--out", "out", "--data", files["train"].parent]
    key = calmix(*words, "--dry-run").out.split()[0]
    (place / "out/runs" / key).mkdir(parents=True)
    blocked = place / "out/runs" / key / "x"
    blocked.write_text("x")
    ended = calmix(*words)
    assert ended.code == 1
    assert "1 of 4 runs failed, the first of them: " in ended.err
    assert "is not empty and holds no run of ours" in ended.err
    assert "failed" in calmix(*words, "--dry-run").out.splitlines()[0]
    blocked.unlink()
    assert calmix(*words).code == 1
    assert calmix(*words, "--retry").code == 0


def test_where_no_terminal_is_progress_is_told_now_and_then(
    calmix: Any, file: Path, files: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["study", file, "--data", files["train"].parent, "--no-report"]
    assert "run " not in calmix(*words, "--out", "quick").err
    monkeypatch.setattr("calmix.cli.study._QUIET", 0.0)
    lines = [line for line in calmix(*words, "--out", "out").err.splitlines() if line.startswith("· run ")]
    assert lines[0].startswith("· run 1/4, about 1 min left: mine · ")
    assert lines[-1].startswith("· run 4/4, ")
    # Of several processes, nobody knows what they are at.
    monkeypatch.setattr("calmix.study.conduct_with_workers", lambda _, __, minutes, on_state: _tell(on_state))
    assert "· run 1/4, about 1 min left\n" in calmix(*words, "--out", "several", "--workers", 2).err
    assert "run " not in calmix(*words, "--out", "silent", "--json").err


def _tell(on_state: Any) -> None:
    from calmix.study import State

    for samples in (0, 10):
        on_state(State(done=1, failed=0, total=4, samples_done=samples, samples=40))


def test_where_it_runs_is_said_once(calmix: Any, file: Path, place: Path) -> None:
    for many in (2, "auto"):
        ended = calmix("study", file, "--out", "out", "--on", "ray", "--workers", many)
        assert (ended.code, "give --workers or --on ray" in ended.err) == (2, True)


@pytest.mark.parametrize("many", ["0", "-2", "two", "1.5", ""])
def test_workers_are_counted_in_whole_numbers(calmix: Any, file: Path, place: Path, many: str) -> None:
    ended = calmix("study", file, "--out", "out", f"--workers={many}")
    assert ended.code == 2
    assert "--workers must be" in ended.err
    assert len(ended.err.splitlines()) == 1
    assert not (place / "out").exists()


def test_as_many_workers_as_fit_are_one_without_a_gpu(calmix: Any, file: Path, files: Any, place: Path) -> None:
    ended = calmix("study", file, "--out", "out", "--data", files["train"].parent, "--workers", "auto")
    assert ended.code == 0, ended.err
    assert "one process: there is no GPU that several would fit on" in ended.err
    assert "4 done" in calmix("study", file, "--out", "out", "--data", files["train"].parent, "--dry-run").out


def test_as_many_workers_as_fit_on_the_gpu_are_started(
    calmix: Any, file: Path, files: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    monkeypatch.setattr("calmix.study.fitting_workers", lambda _: 3)
    monkeypatch.setattr("calmix.study.conduct_with_workers", lambda _, many, **__: started.append(many))
    words = ["study", file, "--out", "out", "--data", files["train"].parent, "--workers", "auto"]
    ended = calmix(*words)
    assert started == [3]
    assert "3 processes share the GPU" in ended.err


def test_tables_of_nothing_are_refused_with_what_to_do(
    calmix: Any, file: Path, files: Any, place: Path, tree: Any
) -> None:
    words = ["study", file, "--out", "out", "--data", files["train"].parent, "--tables"]
    before = tree(place)
    ended = calmix(*words)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert "out/runs: has none of the 4 runs of this study" in ended.err
    assert "leave out --tables to make them, or say with --runs where they are" in ended.err
    ended = calmix(*words, "--retry")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "leave one of them out" in ended.err
    assert tree(place) == before


def test_tables_of_a_part_say_what_is_missing(calmix: Any, file: Path, files: Any, place: Path) -> None:
    words = ["study", file, "--out", "out", "--data", files["train"].parent]
    whole = file.read_text()
    file.write_text(whole.replace("seeds = 2", "seeds = 1"))
    assert calmix(*words).code == 0
    file.write_text(whole)
    ended = calmix(*words, "--tables")
    assert ended.code == 0, ended.err
    assert "2 of 4 runs are still to be made: without --tables they are made" in ended.err


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"erl"', '"erml"', "did you mean erm?"),
        ("epochs", "epoch", "did you mean 'epochs'?"),
        ("test.csv", "tset.csv", "no such file"),
    ],
)
def test_what_is_wrong_is_one_line_before_anything_trains(
    calmix: Any, file: Path, files: Any, place: Path, old: str, new: str, words: str
) -> None:
    file.write_text(file.read_text().replace(old, new))
    ended = calmix("study", file, "--out", "out", "--data", files["train"].parent)
    assert ended.code == 2
    assert words in ended.err
    assert len(ended.err.splitlines()) == 1
    assert not (place / "out").exists()
