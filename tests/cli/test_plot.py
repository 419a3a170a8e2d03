"""`calmix plot`."""

import sys
from pathlib import Path
from typing import Any

import pytest

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
        (["--what", "reliability", "--out", "fig.png", "--data", "tset"], "the run has"),
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
