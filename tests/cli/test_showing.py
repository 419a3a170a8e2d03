"""What is printed, and where."""

import json
import re
from contextlib import redirect_stderr
from io import StringIO
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from rich.text import Text

from calmix.cli.showing import (
    figures_table,
    guarantee_lines,
    interval_table,
    note,
    plain,
    print_json,
    print_side_by_side,
    separation_table,
    training_bar,
    unfamiliar_table,
    working_bar,
)
from calmix.training import Progress

# Width of a terminal → the columns that are printed beside each other.
BLOCKS = {30: [(k, k + 1) for k in range(12)], 80: [(k, k + 3) for k in range(0, 12, 3)], 400: [(0, 12)]}


def test_json_holds_no_number_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": float("nan"), "b": [np.float64("inf"), 1], "é": (1, 2)})
    out = capsys.readouterr().out
    assert json.loads(out) == {"a": None, "b": [None, 1], "é": [1, 2]}
    assert "é" in out


def test_notes_are_one_plain_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    note("[red]label\n\x1b[2J " + "x" * 300)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"· [red]label \\x1b[2J {'x' * 300}\n"


def test_plain_keeps_letters_of_every_script() -> None:
    assert plain("é 你 ß – λ") == "é 你 ß – λ"
    assert plain("a\tb\u202ec") == "a b\\u202ec"


@pytest.mark.parametrize("width", [30, 80, 400])
def test_columns_that_do_not_fit_come_below_and_no_figure_is_cut(width: int) -> None:
    names = [Text(name) for name in ("method", "erm", "AUM + saliency + LS")]
    columns = [[Text(f"task {k}"), Text(f"{k}.11 ± 1.56*"), Text(f"{k}.22 ± 0.10")] for k in range(12)]
    console = Console(width=width, file=StringIO(), highlight=False)
    print_side_by_side(console, "ECE", names, columns)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    rows = [line.split() for line in lines if line.strip().startswith("erm")]
    assert rows == [["erm", *_figures(first, last)] for first, last in BLOCKS[width]]
    assert all(len(line) <= width for line in lines)


def _figures(first: int, last: int) -> list[str]:
    return " ".join(f"{k}.11 ± 1.56*" for k in range(first, last)).split()


def test_no_bar_is_drawn_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with training_bar(quiet=False) as bar, working_bar("x", 3, quiet=False) as other:
        assert bar is None
        assert other is None
    assert capsys.readouterr().err == ""


def test_a_bar_is_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with training_bar(quiet=False) as bar:
        assert bar is not None
        bar(Progress(1, 3, 5, 30, 0.5, 100.0))
    with working_bar("x", 3, quiet=False) as other:
        assert other is not None
        other(2)
    assert capsys.readouterr().out == ""


class Terminal(StringIO):
    """A terminal that shows what is written to it: lines, of which the cursor is at the start of one."""

    def __init__(self) -> None:
        super().__init__()
        self.lines, self.row = [""], 0
        self.shown: list[str] = []

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        for part in re.findall(r"\x1b\[[\d;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
            if part == "\n":
                self.row += 1
                self.lines += [""] * (self.row == len(self.lines))
            elif part == "\x1b[2K":
                self.lines[self.row] = ""
            elif part.endswith("A") and part.startswith("\x1b"):
                self.row -= int(part[2:-1] or 1)
            elif not part.startswith("\x1b") and part != "\r":
                self.lines[self.row] += part
        self.shown += self.lines
        return len(text)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal for `redirect_stderr`."""
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "110", "LINES": "30"}.items():
        monkeypatch.setenv(name, value)
    return Terminal()


def test_a_note_has_a_line_of_its_own_above_a_bar(terminal: Terminal) -> None:
    with redirect_stderr(terminal), training_bar(quiet=False) as bar:
        assert bar is not None
        note("dev: 40 rows split off the training set")
        bar(Progress(1, 3, 5, 30, 0.5, 100.0))
        note("memory: " + "very " * 40 + "low")
    with redirect_stderr(terminal), working_bar("predicting", 3, quiet=False) as other:
        assert other is not None
        other(1)
        note("done")
    lines = [line.rstrip() for line in terminal.lines if line.strip()]
    assert lines == [
        "· dev: 40 rows split off the training set",
        "· memory: " + "very " * 40 + "low",
        "· done",
    ]
    assert all(line.startswith("·") for line in terminal.shown if "·" in line)


def test_a_bar_says_nothing_about_a_loss_before_there_is_one(terminal: Terminal) -> None:
    with redirect_stderr(terminal), training_bar(quiet=False) as bar:
        assert bar is not None
        bar(Progress(1, 3, 1, 30, float("nan"), 100.0))
        bar(Progress(1, 3, 5, 30, 0.5, 100.0))
        note("now")
    drawn = " ".join(terminal.shown)
    assert "preparing" in drawn
    assert "nan" not in drawn
    assert "?" not in drawn
    assert "epoch 1/3" in drawn
    assert "5/30  loss 0.5000  100 samples/s" in drawn


def _split(rare: list[tuple[str, int, float, float | None]]) -> dict[str, Any]:
    plain = {"n": 1000, "accuracy": 0.998, "ece": 0.01, "oe": 0.0, "nll": 0.02}
    keys = ("label", "rows", "recall", "precision")
    return {"before": plain, "after": plain | {"rare": [dict(zip(keys, one, strict=True)) for one in rare]}}


def test_rare_labels_stand_below_the_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    figures_table({"dev": _split([("early", 1, 1.0, 1.0)]), "test": _split([("fraud", 20, 0.05, None)])})
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "data rare label rows recall precision" in shown
    assert "test fraud 20 5.0% –" in shown
    assert not any("early" in line for line in shown)  # dev data chose the epoch
    figures_table({"dev": _split([("early", 1, 1.0, 1.0)])})
    assert "early" in capsys.readouterr().out
    figures_table({"dev": _split([]), "test": _split([])})
    assert "rare" not in capsys.readouterr().out


def test_of_many_rare_labels_the_worst_are_shown_and_the_others_counted(capsys: pytest.CaptureFixture[str]) -> None:
    figures_table({"test": _split([(f"c{k}", 4, k / 10, 0.5) for k in range(8)])})
    out = capsys.readouterr().out
    assert [f"c{k}" in out for k in range(8)] == [True] * 5 + [False] * 3
    assert "and 3 more rare labels, found more often (--json lists all)\n" in out


@pytest.mark.parametrize(
    ("threshold", "words"),
    [
        (None, "90% accuracy cannot be promised from the rows kept for it. --abstain would accept nothing"),
        (0.0, "accepting every prediction keeps accuracy ≥ 90% (with 95% confidence)"),
        (0.8, "accepting confidence ≥ 0.800 keeps accuracy ≥ 90% (with 95% confidence) while answering 40% of"),
    ],
)
def test_guarantees_in_words(threshold: float | None, words: str) -> None:
    found = {"threshold": threshold, "accuracy": 0.9, "error": 0.05, "coverage": 0.4}
    (line,) = guarantee_lines({"guarantee": {"threshold": found}, "rows": {"guard": 40}})
    assert words in line
    assert guarantee_lines({}) == []


@pytest.mark.parametrize(
    ("threshold", "accuracy", "promises", "words"),
    [
        (
            None,
            0.95,
            {"rows": 76, "needed": 104, "constant": {"label": "ok", "accuracy": 0.4}, "possible": (0.9, 0.71)},
            [
                "95% accuracy cannot be promised: you need at least 104 held-out rows, all predicted correctly (more "
                "if any are wrong); you have 76. --abstain would accept nothing",
                "from these rows: 90% on 71% of the texts (--guarantee 0.9)",
            ],
        ),
        (
            None,
            0.999,
            {"rows": 9000, "needed": 5296, "constant": {"label": "ok", "accuracy": 0.4}, "possible": None},
            [
                "99.9% accuracy cannot be promised: the surest of the 9,000 held-out rows are too few, or wrong too "
                "often. --abstain would accept nothing",
                "from these rows no accuracy above that of always answering 'ok' (40%) can be promised: give more dev "
                "data",
            ],
        ),
        (
            0.0,
            0.95,
            {"rows": 500, "needed": 104, "constant": {"label": "o\nk", "accuracy": 0.98}, "possible": (0.99, 0.8)},
            [
                "accepting every prediction keeps accuracy ≥ 95% (with 95% confidence)",
                "95% says nothing: it is kept by always answering 'o k' (98% of these rows)",
                "from these rows: 99% on 80% of the texts (--guarantee 0.99)",
            ],
        ),
        (
            0.5,
            0.95,
            {"rows": 500, "needed": 104, "constant": {"label": "ok", "accuracy": 0.98}, "possible": None},
            [
                "accepting confidence ≥ 0.500 keeps accuracy ≥ 95% (with 95% confidence) while answering 40% of the "
                "texts",
                "95% says nothing: it is kept by always answering 'ok' (98% of these rows)",
                "from these rows no accuracy above that of always answering 'ok' can be promised: give more dev data",
            ],
        ),
        (
            None,
            0.9,
            {"rows": 10, "needed": 51, "constant": None, "possible": None},
            [
                "90% accuracy cannot be promised: you need at least 51 held-out rows, all predicted correctly (more if "
                "any are wrong); you have 10. --abstain would accept nothing",
                "from these rows nothing can be promised: give more dev data",
            ],
        ),
        (
            0.8,
            0.9,
            {"rows": 500, "needed": 51, "constant": {"label": "ok", "accuracy": 0.4}, "possible": None},
            [
                "accepting confidence ≥ 0.800 keeps accuracy ≥ 90% (with 95% confidence) while answering 40% of the "
                "texts"
            ],
        ),
    ],
)
def test_what_a_promise_is_worth_and_what_can_be_promised_instead(
    threshold: float | None, accuracy: float, promises: dict[str, Any], words: list[str]
) -> None:
    found = {"threshold": threshold, "accuracy": accuracy, "error": 0.05, "coverage": 0.4}
    if promises["possible"] is not None:
        level, coverage = promises["possible"]
        promises = promises | {"possible": {"accuracy": level, "coverage": coverage}}
    guarantee = {"threshold": found, "sets": {"level": accuracy}}
    assert guarantee_lines({"guarantee": guarantee, "promises": promises}) == words


def test_separation_is_shown_with_its_interval(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"auroc": 0.905, "interval": [0.88, 0.93], "aupr_out": 0.5, "fpr95": 0.25}
    separation_table(("model", "unfamiliar"), [(("a_\x1b", "noise"), 0.75, found)])
    out = capsys.readouterr().out
    assert "90.5% (88.0–93.0)" in out
    assert "a_\\x1b" in out
    unfamiliar_table({"f.csv": {"ood": {"my_noise": {"mean_confidence": 0.75, "max_probability": found}}}})
    assert " my_noise     max probability " in capsys.readouterr().out


def measured(n: int, **more: Any) -> dict[str, Any]:
    figures = dict.fromkeys(("accuracy", "ece", "debiased_ece", "oe", "nll"), 0.123)
    return {"n": n, **figures, "intervals": dict.fromkeys(figures, (0.1, 0.2)), **more}


def test_a_debiased_ece_below_zero_is_explained_and_only_then(capsys: pytest.CaptureFixture[str]) -> None:
    says = "debiased below 0 is no error"
    interval_table({"f.csv": measured(3, groups={"north": measured(2)})})
    assert says not in capsys.readouterr().out
    interval_table({"f.csv": measured(3, debiased_ece=-0.05)})
    assert says in capsys.readouterr().out
    interval_table({"f.csv": measured(3, groups={"north": measured(2, debiased_ece=-0.05)})})
    assert says in capsys.readouterr().out


def test_names_are_whole_where_no_terminal_limits_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    name = f"/a/long/way/{'deep/' * 30}test.csv"
    interval_table({name: measured(3, groups={"north": measured(2)})})
    out = capsys.readouterr().out
    assert f" {name} " in out
    assert " 0.100–0.200" in out
    assert "   north " in out
    figures_table({name: {"before": measured(3), "after": measured(3)}})
    assert f" {name} " in capsys.readouterr().out


def test_in_a_terminal_the_ends_of_long_names_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    interval_table({f"/a/long/way/{place}/test.csv": measured(3) for place in ("here", "there")})
    lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 90
    for place in ("here", "there"):
        shown = [line for line in lines if f"/{place}/test.csv " in line]
        assert len(shown) == 1
        assert shown[0].lstrip().startswith("…")
        assert "12.3%" in shown[0]
