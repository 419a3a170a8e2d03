"""`calmix map`."""

import csv
import inspect
import json
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import tiny

from calmix.cli.map import map_
from calmix.data import read_table
from calmix.errors import InputError
from calmix.training import survey


@pytest.fixture
def words(files: Any, checkpoint: Any) -> list[Any]:
    return ["map", files["train"], "--model", checkpoint("bert"), "--epochs", 2, "--lr", 0.01, "--batch-size", 8]


def noisy(path: Path) -> Path:
    """Rows with an id, a text, a label that is wrong in a few, and a column that is nobody's business."""
    texts, labels = tiny.texts(90)
    labels = [tiny.LABELS[(tiny.LABELS.index(k) + 1) % 3] if i % 15 == 4 else k for i, k in enumerate(labels)]
    with path.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["who", "text", "label", "n"])
        writer.writerows([f"w{i}", t, k, f"00{i}"] for i, (t, k) in enumerate(zip(texts, labels, strict=True)))
    return path


def test_a_table_becomes_a_map_with_a_picture(calmix: Any, words: Any, place: Path) -> None:
    ended = calmix(*words, "--out", "map")
    assert ended.code == 0, ended.err
    assert "30 samples mapped over 2 epochs, recorded on the training pass\n" in ended.out
    assert ended.out.endswith("map: map/datamap.parquet, map/datamap.png\n")
    assert {"datamap.parquet", "label_issues.csv", "datamap.png", "datamap.svg"} <= {
        p.name for p in (place / "map").iterdir()
    }
    assert pq.read_table(place / "map" / "datamap.parquet").num_rows == 30
    assert calmix(*words, "--out", "again").code == 0
    for name in ("datamap.png", "datamap.svg", "datamap.parquet", "label_issues.csv"):
        assert (place / "map" / name).read_bytes() == (place / "again" / name).read_bytes(), name


def test_json_is_all_that_stdout_gets(calmix: Any, words: Any, place: Path) -> None:
    ended = calmix(*words, "--out", "map", "--json", "--filter")
    assert ended.code == 0
    found = json.loads(ended.out, parse_constant=lambda token: pytest.fail(f"{token} is not JSON"))
    assert found.pop("folder") == "map"
    assert found == json.loads((place / "map" / "metrics.json").read_text())
    assert isinstance(found["dropped_by_filter"], int)
    assert ended.err == ""


def test_the_clean_table_lacks_the_suspects_and_nothing_else(calmix: Any, checkpoint: Any, place: Path) -> None:
    noisy(place / "data.csv")
    settings = ["--model", checkpoint("bert"), "--epochs", 4, "--lr", 0.005, "--batch-size", 8]
    ended = calmix("map", "data.csv", *settings, "--out", "map", "--clean", "clean.csv")
    assert ended.code == 0, ended.err
    whole, kept = read_table(place / "data.csv"), read_table(place / "clean.csv")
    suspected = pq.read_table(place / "map" / "datamap.parquet")["suspected"].to_pylist()
    assert kept.column_names == whole.column_names
    assert kept.to_pylist() == [row for row, s in zip(whole.to_pylist(), suspected, strict=True) if s is None]
    assert 0 < kept.num_rows < 90
    issues = list(csv.DictReader((place / "map" / "label_issues.csv").open()))
    assert len(issues) == 90 - kept.num_rows
    assert {row["text"] for row in issues} == set(whole["text"].to_pylist()) - set(kept["text"].to_pylist())
    assert "table without the suspects: clean.csv" in ended.out
    # A finished map writes the table later on, too, and trains nothing.
    (place / "clean.csv").rename(place / "expected.csv")
    before = (place / "map" / "datamap.parquet").stat().st_mtime_ns
    ended = calmix("map", "data.csv", *settings, "--out", "map", "--clean", "clean.csv")
    assert ended.code == 0, ended.err
    assert (place / "clean.csv").read_bytes() == (place / "expected.csv").read_bytes()
    assert (place / "map" / "datamap.parquet").stat().st_mtime_ns == before
    assert calmix("map", "data.csv", *settings, "--out", "map").code == 2


def test_labels_merged_for_a_map_stay_as_they_are_in_the_tables_made_by_it(
    calmix: Any, checkpoint: Any, place: Path
) -> None:
    noisy(place / "data.csv")
    lines = (place / "data.csv").read_text().splitlines()
    spelt = [line.replace(",food,", ",Food,") if i % 9 == 2 else line for i, line in enumerate(lines)]
    (place / "data.csv").write_text("\n".join(spelt) + "\n")
    asked = ["map", "data.csv", "--id", "who", "--model", checkpoint("bert"), "--epochs", 4, "--lr", 0.005]
    ended = calmix(*asked, "--out", "map")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "; --merge-labels makes one of each" in ended.err
    assert not (place / "map").exists()

    ended = calmix(*asked, "--merge-labels", "--out", "map", "--clean", "clean.csv")
    assert ended.code == 0, ended.err
    assert "· train: merged labels of 8 rows: 'Food' (8 rows) into 'food'\n" in ended.err
    table = pq.read_table(place / "map" / "datamap.parquet")
    assert set(table["label"].to_pylist()) == set(tiny.LABELS)
    whole = read_table(place / "data.csv").to_pylist()
    suspected = table["suspected"].to_pylist()
    expected = [row for row, other in zip(whole, suspected, strict=True) if other is None]
    assert read_table(place / "clean.csv").to_pylist() == expected
    assert calmix(*asked, "--merge-labels", "--out", "map", "--clean", "again.csv").code == 0
    assert (place / "again.csv").read_bytes() == (place / "clean.csv").read_bytes()

    ended = calmix("subset", "data.csv", "--dynamics", "map", "--out", "easy.csv", "--take", "easy")
    assert ended.code == 0, ended.err
    assert all(row in whole for row in read_table(place / "easy.csv").to_pylist())

    other = next(row["who"] for row in whole if row["label"] == "Food")
    (place / "decisions.csv").write_text(f"id,label,decision,new_label\n{other},food,relabel,animal\n")
    ended = calmix("map", "data.csv", "--id", "who", "--apply", "decisions.csv", "--out", "decided.csv")
    assert ended.code == 0, ended.err
    decided = [row | {"label": "animal"} if row["who"] == other else row for row in whole]
    assert read_table(place / "decided.csv").to_pylist() == decided

    training = ["train", "data.csv", "--id", "who", "--dev-fraction", 0.1, "--model", checkpoint("bert")]
    training += ["--epochs", 1, "--recipe", "tdmixup", "--dynamics", "map", "--out", "run"]
    assert "had another label when they were recorded" in calmix(*training, "--keep-labels").err


def test_without_matplotlib_there_is_a_note_instead_of_a_picture(
    calmix: Any, words: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ended = calmix(*words, "--out", "map")
    assert ended.code == 0, ended.err
    assert "no figure: it needs matplotlib" in ended.err
    assert ended.out.endswith("map: map/datamap.parquet\n")
    assert not (place / "map" / "datamap.png").exists()


def test_the_same_map_again_is_told_that_it_is_done(calmix: Any, words: Any, place: Path, tree: Any) -> None:
    assert calmix(*words, "--out", "map").code == 0
    before = tree(place)
    ended = calmix(*words, "--out", "map")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "holds this very run, finished" in ended.err
    assert tree(place) == before


def test_a_map_that_was_killed_before_its_page_gets_it_from_the_same_command(
    calmix: Any, words: Any, place: Path
) -> None:
    first = calmix(*words, "--out", "map")
    (place / "map" / "report.html").unlink()
    ended = calmix(*words, "--out", "map")
    assert (ended.code, ended.out) == (0, first.out)
    assert (place / "map" / "report.html").is_file()


def test_a_map_that_could_not_be_drawn_is_drawn_by_the_next(
    calmix: Any, words: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("calmix.report.save_figure", full)
        assert calmix(*words, "--out", "map").code == 1
    assert calmix(*words, "--out", "map").code == 0
    assert (place / "map" / "datamap.svg").is_file()


def test_a_map_guides_training(calmix: Any, words: Any, files: Any, checkpoint: Any, place: Path) -> None:
    assert calmix(*words, "--out", "map", "--filter").code == 0
    training = ["train", files["train"], "--dev", files["dev"], "--model", checkpoint("bert"), "--epochs", 1]
    ended = calmix(*training, "--recipe", "tdmixup", "--dynamics", "map", "--out", "run")
    assert ended.code == 0, ended.err
    assert not (place / "run" / "dynamics").exists()
    (easy,) = json.loads((place / "map" / "metrics.json").read_text())["filter"]["regions"]
    notes = json.loads((place / "run" / "metrics.json").read_text())["notes"]
    said = f"the map's AUM filter dropped {easy['dropped'] or 'none'} of {easy['judged']} samples"
    assert next(note for note in notes if note.startswith("filter: ")).startswith(f"filter: {said}")
    ended = calmix(*training, "--recipe", "tdmixup", "--dynamics", "map", "--online", "--out", "other")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert not (place / "other").exists()


@pytest.mark.parametrize(
    "more",
    [
        ["--model", "no/such-model-here"],
        ["--epochs", 0],
        ["--filter", "--percentile", 100],
        ["--label", "colour"],
        ["--max-length", 2],
        ["--clean", "clean.docx"],
        ["--clean", "map/clean.csv"],
        ["--batch-size", "many"],
    ],
)
def test_what_is_wrong_ends_in_one_line_and_leaves_nothing(calmix: Any, words: Any, place: Path, more: Any) -> None:
    ended = calmix(*words, "--out", "map", *more)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1), ended.err
    assert list(place.iterdir()) == []


def test_choices_are_mapped_and_filtered(calmix: Any, files: Any, checkpoint: Any, place: Path) -> None:
    words = ["map", files["choices"], "--model", checkpoint("bert", choices=True), "--epochs", 1, "--out", "map"]
    ended = calmix(*words, "--filter", "--json")
    assert ended.code == 0, ended.err
    assert isinstance(json.loads(ended.out)["dropped_by_filter"], int)
    assert "kept" in pq.read_table(place / "map" / "datamap.parquet").column_names


def test_which_pass_was_recorded_is_said_and_what_a_map_is_worth(calmix: Any, words: Any, place: Path) -> None:
    ended = calmix(*words, "--epochs", 1, "--lr", 1e-6, "--record", "evaluation", "--out", "map")
    assert ended.code == 0, ended.err
    assert "30 samples mapped over 1 epoch, recorded on the evaluation pass\n" in ended.out
    assert "every sample was seen once" in ended.err
    assert "had hardly learnt anything" in ended.err
    assert "whether labels look wrong cannot be told" in ended.out
    found = json.loads((place / "map" / "metrics.json").read_text())
    assert found["recorded_on"] == "evaluation pass"
    assert len([line for line in found["notes"] if "hardly learnt" in line]) == 1
    assert "hardly learnt" in found["suspects_withheld"]


def test_the_table_itself_is_never_overwritten(calmix: Any, checkpoint: Any, place: Path) -> None:
    before = noisy(place / "data.csv").read_bytes()
    ended = calmix("map", "data.csv", "--model", checkpoint("bert"), "--out", "map", "--clean", "data.csv")
    assert ended.code == 2
    assert "--clean data.csv: is one of the tables that are read" in ended.err
    assert (place / "data.csv").read_bytes() == before


def test_decisions_are_applied_to_the_table(calmix: Any, place: Path) -> None:
    noisy(place / "data.csv")
    (place / "decisions.csv").write_text(
        "id,label,decision,new_label\nw0,animal,drop,\nw1,food,relabel,weather\nw2,weather,keep,\n"
    )
    ended = calmix("map", "data.csv", "--id", "who", "--apply", "decisions.csv", "--out", "clean.csv")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "1 relabelled, 1 dropped, 1 kept\n89 of 90 rows: clean.csv\n"
    before, after = read_table(place / "data.csv").to_pylist(), read_table(place / "clean.csv").to_pylist()
    assert after == [{**before[1], "label": "weather"}, *before[2:]]
    ended = calmix("map", "data.csv", "--id", "who", "--apply", "decisions.csv", "--out", "clean.jsonl", "--json")
    assert json.loads(ended.out) == {"out": "clean.jsonl", "rows": 89, "relabelled": 1, "dropped": 1, "kept": 1}


def test_columns_that_were_named_are_found_again(calmix: Any, place: Path) -> None:
    (place / "data.csv").write_text("key,words,class,kind\na,one,x,1\nb,two,y,2\n")
    (place / "decisions.csv").write_text("id,decision,new_label\na,relabel,2\n")
    names = ["--id", "key", "--text", "words", "--label", "kind"]
    assert calmix("map", "data.csv", *names, "--apply", "decisions.csv", "--out", "clean.csv").code == 0
    assert read_table(place / "clean.csv")["kind"].to_pylist() == ["2", "2"]
    assert read_table(place / "clean.csv")["class"].to_pylist() == ["x", "y"]


def test_columns_named_for_the_map_are_known_where_the_decisions_are_in_its_folder(
    calmix: Any, odd: Any, checkpoint: Any, place: Path
) -> None:
    names = ("--text", "body (raw)", "--label", "queue", "--id", "key")
    words = ("--epochs", 1, "--model", checkpoint("bert"), "--no-report")
    assert calmix("map", odd.file, *names, *words, "--out", "map").code == 0
    for folder in ("map", "."):
        (place / folder / "decisions.csv").write_text("id,label,decision,new_label\nk0,animal,relabel,food\n")
    ended = calmix("map", odd.file, "--apply", "map/decisions.csv", "--out", "clean.csv")
    assert ended.code == 0, ended.err
    assert read_table(place / "clean.csv")["Queue"].to_pylist()[:2] == ["food", "food"]
    ended = calmix("map", odd.file, "--apply", "decisions.csv", "--out", "other.csv")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "if the map was made with --text, --label or --id, give the same here" in ended.err


def test_a_finished_map_knows_its_columns(calmix: Any, odd: Any, checkpoint: Any, place: Path) -> None:
    names = ("--text", "body (raw)", "--label", "queue", "--id", "key")
    words = ("--epochs", 1, "--model", checkpoint("bert"), "--no-report", "--out", "map")
    assert calmix("map", odd.file, *names, *words, "--clean", "one.csv").code == 0
    ended = calmix("map", odd.file, *words, "--clean", "two.csv")
    assert ended.code == 0, ended.err
    assert (place / "two.csv").read_bytes() == (place / "one.csv").read_bytes()


def test_decisions_say_which_columns_were_named_wherever_they_are_put(calmix: Any, odd: Any, place: Path) -> None:
    columns = json.dumps({"text": "body (raw)", "label": "queue", "id": "key"}).replace('"', '""')
    rows = [("k0", "relabel", "food", columns), ("k1", "keep", "", columns)]
    lines = ["id,decision,new_label,columns", *(f'{a},{b},{c},"{d}"' for a, b, c, d in rows)]
    (place / "decisions.csv").write_text("\n".join(lines) + "\n")
    ended = calmix("map", odd.file, "--apply", "decisions.csv", "--out", "clean.csv")
    assert ended.code == 0, ended.err
    assert read_table(place / "clean.csv")["Queue"].to_pylist()[:2] == ["food", "food"]
    # What is named on the command line goes before.
    ended = calmix("map", odd.file, "--label", "nowhere", "--apply", "decisions.csv", "--out", "other.csv")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "nowhere" in ended.err


def test_lines_end_as_they_did_in_the_table(calmix: Any, place: Path) -> None:
    (place / "data.csv").write_bytes(b'id,text,label\r\na,one,x\r\nb,"two\nlines",y\r\nc,three,x\r\n')
    (place / "decisions.csv").write_text("id,decision\na,drop\n")
    assert calmix("map", "data.csv", "--apply", "decisions.csv", "--out", "clean.csv").code == 0
    assert (place / "clean.csv").read_bytes() == b'id,text,label\r\nb,"two\nlines",y\r\nc,three,x\r\n'


def test_semicolons_and_the_byte_order_mark_of_the_table_stay(calmix: Any, place: Path) -> None:
    (place / "data.csv").write_bytes(b"\xef\xbb\xbfid;text;label\r\na;one, two;x\r\nb;three;y\r\nc;four;x\r\n")
    (place / "decisions.csv").write_text("id,decision,new_label\nb,drop,\nc,relabel,y\n")
    assert calmix("map", "data.csv", "--apply", "decisions.csv", "--out", "clean.csv").code == 0
    assert (place / "clean.csv").read_bytes() == b"\xef\xbb\xbfid;text;label\r\na;one, two;x\r\nc;four;y\r\n"


@pytest.mark.parametrize(
    "words",
    [
        ["--out", "clean.docx"],
        ["--out", "data.csv"],
        ["--out", "decisions.csv"],
        ["--out", "all.csv"],  # it is there already
        ["--out", "clean.csv", "--filter"],
        ["--out", "clean.csv", "--clean", "other.csv"],
        ["--out", "clean.csv", "--label", "colour"],
        ["--out", "clean.csv", "--apply", "nowhere.csv"],
        ["--out", "clean.csv", "--apply", "all.csv"],
    ],
)
def test_decisions_that_cannot_be_applied_change_nothing(calmix: Any, place: Path, tree: Any, words: Any) -> None:
    (place / "data.csv").write_text("id,text,label\na,one,x\nb,two,y\n")
    (place / "decisions.csv").write_text("id,decision\na,drop\n")
    (place / "all.csv").write_text("id,decision\na,drop\nb,drop\n")
    before = tree(place)
    ended = calmix("map", "data.csv", "--apply", "decisions.csv", *words)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1), ended.err
    assert tree(place) == before


def test_every_setting_of_a_map_is_an_option_of_the_command() -> None:
    options = {name: p.default for name, p in inspect.signature(map_).parameters.items()}
    settings = {name: p.default for name, p in inspect.signature(survey).parameters.items()}
    for name in ("examples", "out", "on_progress", "on_done", "columns"):
        del settings[name]
    offered = {name: value.value if isinstance(value, Enum) else value for name, value in options.items()}
    assert {name: offered.get(name, "no such option") for name in settings} == settings


def test_what_is_set_on_the_command_line_reaches_the_map(
    calmix: Any, words: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def heard(_examples: Any, **settings: Any) -> Any:
        asked.update(settings)
        raise InputError("heard")

    monkeypatch.setattr("calmix.training.survey", heard)
    usual = {name: p.default for name, p in inspect.signature(survey).parameters.items()}
    said: dict[str, Any] = {"optimizer": "sgd", "weight_decay": 0.1, "warmup": 0.3, "schedule": "constant", "clip": 0.5}
    said |= {"accumulate": 2, "precision": "fp32", "class_weights": "balanced", "checkpoint_minutes": 3.0}
    said |= {"filter_wording": "literal", "filter_on": "all", "fraction": 0.25, "percentile": 50.0, "max_length": 64}
    said |= {"epochs": 2, "lr": 0.01, "batch_size": 8, "seed": 5, "image_size": 16, "augment": "none"}
    options = [word for name, value in said.items() for word in (f"--{name.replace('_', '-')}", value)]
    said |= {"gradient_checkpointing": True, "filtered": True, "judged": "both", "record": "evaluation"}
    options += ["--gradient-checkpointing", "--filter", "--judge", "both", "--record", "evaluation"]
    said |= {"merge_labels": False, "head": "random", "pooling": "first"}
    options += ["--keep-labels", "--head", "random", "--pooling", "first"]
    assert "heard" in calmix(*words, *options, "--out", "map").err
    assert {name: asked[name] for name in said} == said
    unsaid = usual.keys() - said.keys()
    assert unsaid == {"examples", "out", "model", "columns", "on_progress", "on_done"}


def test_how_many_a_filter_dropped_is_said(calmix: Any, words: Any, place: Path) -> None:
    ended = calmix(*words, "--out", "map", "--filter")
    assert ended.code == 0, ended.err
    found = json.loads((place / "map" / "metrics.json").read_text())
    (easy,) = found["filter"]["regions"]
    assert f"filter: {easy['dropped']} of 10 easy samples are below the threshold samples" in ended.out
    page = (place / "map" / "report.html").read_text()
    assert f"AUM filter dropped <b>{easy['dropped']}</b> of <b>10</b> easy samples" in page
    assert ("none of the 10 easy samples is dropped" in ended.err) == (easy["dropped"] == 0)
