"""`calmix subset`."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from calmix.data import read_examples, read_table
from calmix.dynamics import Dynamics, regions
from calmix.training import survey


@pytest.fixture(scope="module")
def mapped(files: Any, checkpoint: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A map of the training file, with a filter."""
    out = tmp_path_factory.mktemp("mapped") / "map"
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 8, "lr": 1e-3, "filtered": True, "percentile": 99.0}
    survey(read_examples(files["train"]), out=out, model=str(checkpoint("bert")), **settings)
    return out


@pytest.mark.parametrize(
    ("take", "codes", "rows"), [("easy", [0], 10), ("ambiguous", [1], 10), ("both", [0, 1], 20), ("hard", [2], 10)]
)
def test_a_region_is_written_as_it_was_in_the_table(
    calmix: Any, files: Any, mapped: Path, place: Path, take: str, codes: list[int], rows: int
) -> None:
    ended = calmix("subset", files["train"], "--dynamics", mapped, "--take", take, "--out", "part.csv")
    assert ended.code == 0, ended.err
    assert ended.out == f"{rows} of 30 samples: part.csv\n"
    whole, part = read_table(files["train"]), read_table(place / "part.csv")
    inside = np.isin(regions(Dynamics.load(mapped / "datamap.parquet"), fraction=0.33), codes)
    assert part.column_names == whole.column_names
    assert part.to_pylist() == [row for row, kept in zip(whole.to_pylist(), inside, strict=True) if kept]
    assert part.num_rows == rows


def test_a_fraction_makes_regions_of_another_size(calmix: Any, files: Any, mapped: Path, place: Path) -> None:
    words = ["subset", files["train"], "--dynamics", mapped, "--fraction", 0.2]
    for take, rows in (("easy", 6), ("both", 12), ("hard", 18)):
        assert calmix(*words, "--take", take, "--out", f"{take}.jsonl").out.startswith(f"{rows} of 30 samples")


def test_a_file_that_is_there_is_not_replaced(calmix: Any, files: Any, mapped: Path, place: Path) -> None:
    (place / "part.csv").write_text("mine")
    ended = calmix("subset", files["train"], "--dynamics", mapped, "--out", "part.csv")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == "calmix: --out part.csv: is there already; give another file, or remove it\n"
    assert (place / "part.csv").read_text() == "mine"


def test_the_filter_leaves_out_what_it_dropped(calmix: Any, files: Any, mapped: Path, place: Path) -> None:
    words = ["subset", files["train"], "--dynamics", mapped / "datamap.parquet", "--take", "both"]
    assert calmix(*words, "--out", "all.parquet").code == 0
    assert calmix(*words, "--filtered", "--out", "kept.parquet").code == 0
    table = pq.read_table(mapped / "datamap.parquet")
    dropped = {i for i, kept in zip(table["id"].to_pylist(), table["kept"].to_pylist(), strict=True) if kept is False}
    texts = [read_examples(place / f"{name}.parquet").ids for name in ("all", "kept")]
    assert dropped
    assert texts[1] == [i for i in texts[0] if i not in dropped]


def test_a_training_run_has_a_map_too(calmix: Any, trained: Path, files: Any, place: Path) -> None:
    ended = calmix("subset", files["train"], "--dynamics", trained, "--out", "part.csv")
    assert ended.code == 0, ended.err
    ended = calmix("subset", files["train"], "--dynamics", trained, "--filtered", "--out", "other.csv")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "judged 0 of the 20 samples of the region both: make it with `calmix map --filter --judge both" in ended.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["TRAIN", "--dynamics", "nowhere", "--out", "a.csv"], "nowhere: no such folder"),
        (["DEV", "--dynamics", "MAP", "--out", "a.csv"], "have no recorded dynamics"),
        (["TRAIN", "--dynamics", "MAP", "--out", "a.docx"], "does not say what the file is"),
        (["TRAIN", "--dynamics", "MAP", "--out", "TRAIN"], "is one of the tables that are read"),
        (["TRAIN", "--dynamics", "MAP", "--out", "a.csv", "--fraction", "0.6"], "--fraction must be above 0"),
        (["TRAIN", "--dynamics", "MAP", "--out", "a.csv", "--fraction", "nan"], "--fraction must be above 0"),
        (["TRAIN", "--dynamics", "MAP", "--out", "a.csv", "--fraction", "0.001"], "no sample of"),
        (["TRAIN", "--dynamics", "MAP", "--out", "a.csv", "--take", "some"], "'some'"),
        (
            ["TRAIN", "--dynamics", "MAP", "--out", "a.csv", "--take", "ambiguous", "--filtered"],
            "of the region ambiguous",
        ),
        (["TRAIN", "--dynamics", "MAP", "--out", "a.csv", "--take", "hard", "--filtered"], "not hard ones"),
        (["none.csv", "--dynamics", "MAP", "--out", "a.csv"], "none.csv: no such file"),
    ],
)
def test_what_is_wrong_ends_in_one_line_and_leaves_nothing(
    calmix: Any, files: Any, mapped: Path, place: Path, words: list[str], message: str
) -> None:
    known = {"TRAIN": files["train"], "DEV": files["dev"], "MAP": mapped}
    before = files["train"].read_bytes()
    ended = calmix("subset", *(known.get(word, word) for word in words))
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1), ended.err
    assert message in ended.err
    assert list(place.iterdir()) == []
    assert files["train"].read_bytes() == before


def test_columns_named_for_the_map_are_found_again(calmix: Any, odd: Any, checkpoint: Any, place: Path) -> None:
    words = ("--text", "body (raw)", "--label", "queue", "--id", "key", "--epochs", 1, "--model", checkpoint("bert"))
    assert calmix("map", odd.file, *words, "--out", "map", "--no-report").code == 0
    ended = calmix("subset", odd.file, "--dynamics", "map", "--out", "part.csv")
    assert ended.code == 0, ended.err
    assert read_table(place / "part.csv").column_names == ["key", "Body (raw)", "Queue"]
