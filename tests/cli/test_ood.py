"""`calmix ood`."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import tiny

from calmix.data import read_table


def test_models_are_compared_side_by_side(calmix: Any, trained: Path, files: Any, place: Path, checkpoint: Any) -> None:
    words = ("ood", f"plain={trained}", f"other={checkpoint('electra')}", "--test", files["test"])
    words = (*words, "--ood", "random-tokens", "--ood", f"dev={files['dev']}", "--mc-dropout", 2, "--out", "found")
    ended = calmix(*words)
    assert ended.code == 0, ended.err
    assert "plain +TS" in ended.out
    rows = list(csv.DictReader((place / "found" / "ood.csv").open()))
    assert {row["model"] for row in rows} == {"plain", "plain +TS", "plain +dropout", "other", "other +dropout"}
    assert {row["data"] for row in rows} == {"random-tokens", "dev"}
    scores = read_table(place / "found" / "ood-scores.parquet")
    assert len(scores) == 5 * 90
    assert (place / "found" / "ood.png").stat().st_size > 0
    again = calmix(*words, "--json")
    found = json.loads(again.out)
    assert found["ood"]["plain"]["runs"] == 1
    assert float(rows[0]["auroc"]) == pytest.approx(
        found["ood"]["plain"]["data"]["random-tokens"]["max_probability"]["auroc"]
    )
    assert calmix("plot", "found", "--what", "ood", "--score", "margin", "--out", "margin.svg").code == 0
    assert calmix("plot", trained, "--what", "ood", "--out", "no.svg").code == 2
    ended = calmix("report", "found")
    assert (ended.code, "plot --what ood" in ended.err) == (2, True)


@pytest.mark.parametrize(
    "words",
    [
        ("run=",),
        ("{trained}", "--ood", "noise"),
        ("{trained}", "--ood", "gaussian-noise"),
        ("{trained}", "--ood", "random-tokens", "--score", "luck"),
        ("{trained}", "--ood", "random-tokens", "--dropout", "0.1"),
        ("{trained}", "--ood", "a=missing.csv"),
        ("{trained}", "--ood", "random-tokens", "--ood", "random-tokens"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    calmix: Any, trained: Path, files: Any, place: Path, words: tuple[str, ...]
) -> None:
    words = tuple(word.format(trained=trained) for word in words)
    extra = () if "--ood" in words else ("--ood", "random-tokens")
    ended = calmix("ood", *words, *extra, "--test", files["test"])
    assert (ended.code, ended.err.count("\n")) == (2, 1), ended.err
    assert list(place.iterdir()) == []


def test_models_of_images_are_compared_on_noise(calmix: Any, place: Path, image_checkpoint: Any) -> None:
    pictures = tiny.image_folder(place / "pictures", 12)
    words = ("ood", image_checkpoint(), "--test", pictures, "--ood", "gaussian-noise", "--ood", f"same={pictures}")
    ended = calmix(*words, "--mc-dropout", 2, "--dropout", 0.3, "--out", "found")
    assert ended.code == 0, ended.err
    found = json.loads((place / "found" / "metrics.json").read_text())["ood"]
    assert [name.split()[-1] for name in found] == [image_checkpoint().name, "+dropout"]
    plain = next(iter(found.values()))["data"]
    assert plain["same"]["max_probability"]["auroc"] == 0.5
    assert 0 <= plain["gaussian-noise"]["negative_energy"]["auroc"] <= 1
    ended = calmix("ood", image_checkpoint(), "--test", pictures, "--ood", "random-tokens")
    assert (ended.code, "random tokens are for texts" in ended.err) == (2, True)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("words", [("--label", "what"), ("--text", "what")])
def test_a_column_that_is_not_there_is_told_before_a_model_is_loaded(
    calmix: Any, trained: Path, files: Any, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr("calmix.models.load", lambda *_, **__: pytest.fail("loaded"))
    ended = calmix("ood", trained, "--test", files["test"], "--ood", "random-tokens", *words)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert f"{words[0]}: no column 'what'" in ended.err
