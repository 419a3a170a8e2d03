"""`calmix plot`."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from calmix.data import read_table

pytest.importorskip("matplotlib")


@pytest.mark.parametrize("what", ["reliability", "risk-coverage", "confusion", "curves", "datamap"])
@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_each_figure_in_each_format(
    calmix: Any, trained: Path, place: Path, what: str, kind: str, start: bytes
) -> None:
    ended = calmix("plot", trained, "--what", what, "--out", f"fig.{kind}")
    assert (ended.code, ended.out, ended.err) == (0, f"figure: fig.{kind}\n", "")
    assert (place / f"fig.{kind}").read_bytes().startswith(start)


def test_data_sets_are_chosen_by_name(calmix: Any, trained: Path, place: Path) -> None:
    words = ["plot", trained, "--what", "reliability", "--bins", 5, "--out", "fig.svg"]
    assert calmix(*words, "--data", "dev", "--data", "guard").code == 0
    text = (place / "fig.svg").read_text()
    assert "<!-- dev -->" in text
    assert "<!-- guard -->" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--what", "reliability", "--out", "fig.jpg"], "PNG, SVG or PDF"),
        (["--what", "reliability", "--out", "fig.png", "--data", "tset"], "run has guard, dev"),
        (["--what", "colours", "--out", "fig.png"], "colours"),
    ],
)
def test_what_is_wrong_ends_in_one_line(
    calmix: Any, trained: Path, place: Path, words: list[str], message: str
) -> None:
    ended = calmix("plot", trained, *words)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert message in ended.err
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nope"], "nope: no such folder; give the folder of a run, a map, an evaluation or a study"),
        (["nope", "--what", "alpha", "--out", "f.png"], "nope: no such folder; give the folder of a run"),
        (["reliability", "--out", "f.png"], "for the figure of that name, calmix plot RUN --what reliability"),
        (["."], "Missing option '--what'. Choose from: reliability, scatter, risk-coverage"),
        ([".", "--what", "curves"], "Missing option '--out'"),
    ],
)
def test_a_folder_that_is_not_there_is_said_before_options_that_are_missing(
    calmix: Any, place: Path, words: list[str], message: str
) -> None:
    ended = calmix("plot", *words)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert message in ended.err


def test_what_a_run_does_not_have_is_said(calmix: Any, files: Any, checkpoint: Any, place: Path) -> None:
    words = ["map", files["choices"], "--model", checkpoint("bert", choices=True), "--epochs", 1, "--no-report"]
    assert calmix(*words, "--out", "map").code == 0
    for what, message in (("reliability", "judged on no data"), ("confusion", "judged on no data")):
        ended = calmix("plot", "map", "--what", what, "--out", "fig.png")
        assert (ended.code, message in ended.err) == (2, True)
    assert calmix("plot", "map", "--what", "curves", "--out", "fig.png").code == 0


def test_without_matplotlib_one_line_says_what_to_install(
    calmix: Any, trained: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ended = calmix("plot", trained, "--what", "reliability", "--out", "fig.png")
    assert (ended.code, ended.err) == (2, "calmix: figures need matplotlib: pip install 'calmix[report]'\n")


@pytest.mark.parametrize("what", ["scatter", "joint", "extended"])
def test_several_runs_are_drawn_together_and_their_numbers_written(
    calmix: Any, trained: Path, place: Path, what: str
) -> None:
    shutil.copytree(trained, place / "other")
    words = ("plot", trained, "other", "--what", what, "--out", "fig.svg", "--table", "numbers.csv")
    ended = calmix(*words)
    assert (ended.code, ended.err) == (0, "")
    table = read_table(place / "numbers.csv")
    assert set(table["run"].to_pylist()) == {"run", "other"}
    assert calmix(*words).code == 0  # numbers may replace such numbers


@pytest.mark.parametrize("what", ["scatter", "joint", "extended"])
def test_runs_in_folders_of_one_name_are_told_apart(calmix: Any, trained: Path, place: Path, what: str) -> None:
    for folder in ("a", "b"):
        shutil.copytree(trained, place / folder / "run")
    assert calmix("plot", "a/run", "b/run", "--what", what, "--out", "f.svg", "--table", "n.csv").code == 0
    assert set(read_table(place / "n.csv")["run"].to_pylist()) == {"a/run", "b/run"}


@pytest.mark.parametrize("what", ["reliability", "risk-coverage"])
def test_curves_of_several_runs_are_in_one_diagram(calmix: Any, trained: Path, place: Path, what: str) -> None:
    shutil.copytree(trained, place / "other")
    ended = calmix("plot", trained, "other", "--what", what, "--data", "dev", "--out", "fig.svg")
    assert (ended.code, ended.out, ended.err) == (0, "figure: fig.svg\n", "")
    text = (place / "fig.svg").read_text()
    panels = {"reliability": ["dev, before temperature", "dev, after temperature"]}
    for panel in panels.get(what, ["What is gained by answering only when sure: dev"]):
        assert f"<!-- {panel} -->" in text
    for run in ("run", "other"):
        assert text.count(f"<!-- {run} (") == len(panels.get(what, [1]))


def test_runs_judged_on_other_rows_are_drawn_and_told(calmix: Any, trained: Path, odd: Any, place: Path) -> None:
    ended = calmix("plot", trained, odd.run, "--what", "reliability", "--data", "dev", "--out", "fig.svg")
    assert ended.code == 0
    assert ended.err == "· dev: is not the same rows in every run, so that curves may differ for that alone\n"


@pytest.mark.parametrize(
    ("what", "instead"),
    [
        ("curves", "extended draws those of several"),
        ("confusion", "draw one of each"),
        ("datamap", "draw one of each"),
        ("ood", "calmix ood compares models"),
    ],
)
def test_what_is_drawn_of_one_folder_says_what_to_do_with_several(
    calmix: Any, trained: Path, place: Path, what: str, instead: str
) -> None:
    ended = calmix("plot", trained, ".", "--what", what, "--out", "fig.svg")
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert f"{what} is drawn of one folder, not of 2: {instead}" in ended.err


@pytest.mark.parametrize(
    ("what", "words", "of"),
    [
        ("curves", ("--data", "dev"), "reliability, risk-coverage, scatter, confusion"),
        ("joint", ("--data", "dev"), "reliability, risk-coverage, scatter, confusion"),
        ("risk-coverage", ("--bins", 5), "reliability"),
        ("reliability", ("--score", "margin"), "ood"),
        ("reliability", ("--points", 50), "scatter"),  # what it would be without: but it was meant
        ("extended", ("--epoch", 1), "joint"),
        ("alpha", ("--alpha", 0.4), "label-entropy"),
        ("curves", ("--classes", 4), "label-entropy"),
        ("bars", ("--recipe", "erm"), "alpha"),
        ("alpha", ("--method", "erm"), "bars"),
        ("scatter", ("--figure", "ece"), "alpha, bars"),
        ("reliability", ("--scaled",), "bars"),
    ],
)
def test_options_of_other_figures_are_refused(
    calmix: Any, trained: Path, place: Path, what: str, words: tuple[Any, ...], of: str
) -> None:
    ended = calmix("plot", trained, "--what", what, *words, "--out", "fig.svg")
    assert ended.code == 2
    assert ended.err == f"calmix: {words[0]} is of {of}, and means nothing to {what}: leave it out\n"
    assert list(place.iterdir()) == []


def test_a_confusion_is_of_one_data_set(calmix: Any, trained: Path, place: Path) -> None:
    words = ("plot", trained, "--what", "confusion", "--out", "fig.svg", "--data", "dev")
    assert calmix(*words).code == 0
    ended = calmix(*words, "--data", "guard")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "confusion is drawn of one data set, not of 2" in ended.err


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("run/predictions-dev.parquet", "is one of the tables that are read"),
        ("run/log.jsonl", "is one of the tables that are read"),
        ("link.jsonl", "is one of the tables that are read"),
        ("train.csv", "is there already, and holds something else"),
        ("notes.csv", "is there already, and holds something else"),
        ("run/label_issues.csv", "is there already, and holds something else"),
    ],
)
def test_numbers_replace_nothing_but_such_numbers(
    calmix: Any, trained: Path, place: Path, tree: Any, table: str, says: str
) -> None:
    shutil.copytree(trained, place / "run")
    (place / "link.jsonl").symlink_to("run/log.jsonl")
    (place / "train.csv").write_text("text,label\na,b\n")
    (place / "notes.csv").write_text('never,"closed\n')
    before = tree(place)
    ended = calmix("plot", "run", "--what", "extended", "--out", "fig.svg", "--table", table)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert f"--table {table}: {says}" in ended.err
    assert tree(place) == before


@pytest.mark.parametrize(
    ("what", "file"),
    [
        ("reliability", "predictions-*.parquet"),
        ("risk-coverage", "predictions-*.parquet"),
        ("confusion", "predictions-*.parquet"),
        ("curves", "log.jsonl"),
        ("datamap", "datamap.parquet"),
    ],
)
def test_numbers_that_a_run_keeps_are_not_written_again(
    calmix: Any, trained: Path, place: Path, what: str, file: str
) -> None:
    ended = calmix("plot", trained, "--what", what, "--out", "f.png", "--table", "f.csv")
    assert ended.code == 2
    assert ended.err == f"calmix: --table: the numbers of {what} are in the run's folder already: {file}\n"
    assert list(trained.glob(file))
    assert not list(place.glob("f.*"))


def test_the_entropy_of_labels_is_of_no_run(calmix: Any, trained: Path, place: Path) -> None:
    words = (
        "plot",
        "--what",
        "label-entropy",
        "--alpha",
        0.2,
        "--classes",
        4,
        "--out",
        "fig.png",
        "--table",
        "t.parquet",
    )
    ended = calmix(*words)
    assert ended.code == 0, ended.err
    assert set(read_table(place / "t.parquet")["alpha"].to_pylist()) == {0.2}
    assert calmix("plot", trained, *words[1:]).code == 2


def test_a_study_is_drawn_by_alpha_and_as_bars(calmix: Any, files: Any, checkpoint: Any, place: Path) -> None:
    (place / "study.toml").write_text(
        f'''
models = ["{checkpoint("bert")}"]
seeds = 1
[training]
epochs = 1
[task.tiny]
train = "{files["train"].name}"
dev = "{files["dev"].name}"
test = "{files["test"].name}"
[[method]]
recipe = "erm"
[[method]]
recipe = "input-mixup"
vary = {{ alpha = [0.2, 0.8] }}
'''
    )
    assert calmix("study", "study.toml", "--data", files["train"].parent, "--out", "out", "--no-report").code == 0
    assert calmix("plot", "out", "--what", "alpha", "--out", "a.png", "--table", "a.csv").code == 0
    assert sorted(set(map(float, read_table(place / "a.csv")["alpha"].to_pylist()))) == [0, 0.2, 0.8]
    words = ("plot", "out", "--what", "bars", "--figure", "ece", "--out", "b.png", "--table", "b.csv")
    assert calmix(*words, "--method", "erm").code == 0
    assert read_table(place / "b.csv")["method"].to_pylist() == ["erm"]
    shutil.copytree(place / "out", place / "again")
    words = ("plot", "out", "again", "--what", "bars", "--figure", "ece", "--out", "c.png", "--table", "c.csv")
    ended = calmix(*words)
    assert ended.code == 0, ended.err
    names = ["erm", "input-mixup alpha=0.2", "input-mixup alpha=0.8"]
    assert read_table(place / "c.csv")["method"].to_pylist() == names


@pytest.mark.parametrize(
    "words",
    [
        ("--what", "reliability"),
        ("{trained}", "{trained}", "--what", "curves"),
        ("{trained}", "--what", "alpha"),
        ("{trained}", "--what", "joint", "--epoch", "9"),
        ("{trained}", "--what", "curves", "--table", "t.csv"),
        ("{trained}", "--what", "scatter", "--table", "t.xlsx"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(calmix: Any, trained: Path, place: Path, words: tuple[str, ...]) -> None:
    ended = calmix("plot", *(word.format(trained=trained) for word in words), "--out", "fig.png")
    assert (ended.code, ended.err.count("\n")) == (2, 1), ended.err
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("what", ["curves", "datamap", "extended"])
def test_what_was_not_fine_tuned_has_no_epochs_to_draw(calmix: Any, trained: Path, place: Path, what: str) -> None:
    shutil.copytree(trained, place / "head")
    (place / "head" / "datamap.parquet").unlink()
    entry = {"epoch": 0, "step": 0, "loss": None, "dev": {"accuracy": 0.5, "nll": 1.0, "nll-ts": 1.0, "ece": 0.1}}
    (place / "head" / "log.jsonl").write_text(json.dumps(entry) + "\n")
    ended = calmix("plot", "head", "--what", what, "--out", "fig.png")
    assert ended.code == 2
    assert "was not fine-tuned (--epochs 0)" in ended.err
    assert calmix("plot", "head", "--what", "reliability", "--out", "fig.png").code == 0
