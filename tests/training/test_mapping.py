"""The data map on disk: what is in it, the suspects with their texts, and reading it back."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny

from calmix.data import Examples, write_table
from calmix.dynamics import Dynamics, label_issues, regions
from calmix.errors import InputError
from calmix.mixing import choose
from calmix.recipes import Recipe, clean
from calmix.training.filtering import Verdicts
from calmix.training.mapping import check_guided, dropped_notes, known_dynamics, map_notes, map_table, write_map

COLUMNS = [
    "id",
    "label",
    "aum",
    "confidence",
    "variability",
    "correctness",
    "forgetting",
    "learnt",
    "observations",
    "loss",
    "last_loss",
    "last_prediction",
    "rival",
    "rival_confidence",
    "history",
    "region",
    "suspected",
]


def seen(examples: Examples, *, wrong: tuple[int, ...] = (), never: tuple[int, ...] = ()) -> Dynamics:
    """Dynamics in which all labels are learnt but those that are `wrong`."""
    rng = np.random.default_rng(0)
    classes = len(examples.label_names) or 2
    logits = rng.normal(size=(3, len(examples), classes))
    told = examples.labels.copy()
    told[list(wrong)] = (told[list(wrong)] + 1) % classes
    logits[:, np.arange(len(examples)), told] += 6
    logits[:, list(never)] = np.nan
    return Dynamics.from_logits(logits, examples.labels, ids=examples.ids, label_names=examples.label_names)


def test_a_map_has_a_row_per_sample_in_order_with_region_and_suspected_label(tmp_path: Path) -> None:
    examples = tiny.examples(12)
    dynamics = seen(examples, wrong=(4, 7), never=(2,))
    write_map(tmp_path, dynamics, examples)
    table = pq.read_table(tmp_path / "datamap.parquet")
    assert table.column_names == [*COLUMNS, "text"]
    assert table["text"].to_pylist() == examples.column("text")
    assert table["id"].to_pylist() == examples.ids
    names = {0: "easy", 1: "ambiguous", 2: "hard", -1: None}
    assert table["region"].to_pylist() == [names[code] for code in regions(dynamics)]
    assert table["region"].to_pylist()[2] is None
    told = {4: tiny.LABELS[(examples.labels[4] + 1) % 3], 7: tiny.LABELS[(examples.labels[7] + 1) % 3]}
    assert table["suspected"].to_pylist() == [told.get(row) for row in range(12)]
    assert (
        "kept" in map_table(dynamics, Verdicts(np.ones(12, dtype=np.bool_), np.zeros(12, dtype=np.bool_))).column_names
    )


def test_the_suspects_come_worst_first_with_their_texts(tmp_path: Path) -> None:
    examples = tiny.examples(30, kind="pair")
    dynamics = seen(examples, wrong=(3, 9, 20))
    write_map(tmp_path, dynamics, examples)
    rows = list(csv.DictReader((tmp_path / "label_issues.csv").open()))
    assert {row["id"] for row in rows} == {examples.ids[i] for i in (3, 9, 20)}
    assert [row["rank"] for row in rows] == ["1", "2", "3"]
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    text = dict(zip(examples.ids, zip(examples.column("text"), examples.column("text_b"), strict=True), strict=True))
    assert all((row["text"], row["text_b"]) == text[row["id"]] for row in rows)


def test_texts_that_a_spreadsheet_would_run_are_guarded(tmp_path: Path) -> None:
    texts = ["=cmd()", "+1", "-2", "@x", "\tt", "plain"] * 2
    examples = Examples.from_texts([f"{t} {i}" for i, t in enumerate(texts)], ["=a", "b"] * 6)
    write_map(tmp_path, seen(examples, wrong=(0, 1, 2, 3, 4)), examples)
    rows = list(csv.DictReader((tmp_path / "label_issues.csv").open()))
    assert len(rows) == 5
    assert not any(cell[:1] in "=+-@\t\r" for row in rows for cell in row.values() if cell)


def test_no_suspects_is_a_header_and_nothing_seen_is_no_map(tmp_path: Path) -> None:
    examples = tiny.examples(9)
    write_map(tmp_path / "a", seen(examples), examples)
    assert (tmp_path / "a" / "label_issues.csv").read_text().count("\n") == 1
    write_map(tmp_path / "b", seen(examples, never=tuple(range(9))), examples)
    assert not (tmp_path / "b").exists()


def test_choices_are_mapped_by_number(tmp_path: Path) -> None:
    examples = tiny.examples(12, kind="choices", counts=(2,))
    dynamics = seen(examples, wrong=(5,))
    write_map(tmp_path, dynamics, examples)
    assert pq.read_table(tmp_path / "datamap.parquet")["suspected"].to_pylist()[5] == str(1 - examples.labels[5])
    (row,) = csv.DictReader((tmp_path / "label_issues.csv").open())
    assert row["choices"].startswith("[")


def test_a_map_is_read_back_in_the_order_asked_for(tmp_path: Path) -> None:
    examples = tiny.examples(12)
    dynamics = seen(examples, wrong=(4,))
    judged, dropped = np.arange(12) % 3 > 0, np.arange(12) % 3 == 2
    write_map(tmp_path, dynamics, examples, Verdicts(judged, dropped))
    order = np.random.default_rng(1).permutation(12)[:9]
    for source in (tmp_path, tmp_path / "datamap.parquet", str(tmp_path)):
        known = known_dynamics(source, examples.take(order))
        assert known.dynamics.ids == tuple(examples.ids[i] for i in order)
        np.testing.assert_array_equal(known.dynamics.aum, dynamics.aum[order])
        assert known.verdicts is not None
        assert known.verdicts.judged.tolist() == judged[order].tolist()
        assert known.verdicts.dropped.tolist() == dropped[order].tolist()
    flagged = label_issues(known_dynamics(tmp_path, examples).dynamics).flagged
    assert flagged.tolist() == label_issues(dynamics).flagged.tolist()


def test_how_many_the_filter_of_a_map_dropped_is_said_where_it_guides(tmp_path: Path) -> None:
    examples = tiny.examples(12)
    judged, nobody = np.arange(12) % 3 > 0, np.zeros(12, dtype=bool)
    for dropped, said in ((np.arange(12) % 3 == 2, "dropped 4 of 8 samples"), (nobody, "dropped none of 8 samples")):
        write_map(tmp_path, seen(examples), examples, Verdicts(judged, dropped))
        (note,) = dropped_notes(known_dynamics(tmp_path, examples))
        assert said in note
        assert ("as without a filter" in note) == (dropped is nobody)
    write_map(tmp_path, seen(examples), examples)
    assert dropped_notes(known_dynamics(tmp_path, examples)) == dropped_notes(None) == []


def test_label_names_in_another_order_are_the_same_labels(tmp_path: Path) -> None:
    examples = tiny.examples(12)
    write_map(tmp_path, seen(examples), examples)
    texts, labels = tiny.texts(12)
    turned = Examples.from_texts(texts, labels, label_names=tiny.LABELS[::-1])
    assert known_dynamics(tmp_path, turned).verdicts is None


def _broken(folder: Path, what: str) -> Path:
    examples = tiny.examples(12)
    if what == "never seen":
        write_table(map_table(seen(examples, never=tuple(range(12)))), folder / "datamap.parquet")
    elif what == "other labels":
        write_map(folder, seen(Examples(examples.table, (examples.labels + 1) % 3, tiny.LABELS)), examples)
    elif what == "not ours":
        write_table(pa.table({"id": ["a"]}), folder / "datamap.parquet")
    elif what == "damaged":
        write_map(folder, seen(examples), examples)
        file = folder / "datamap.parquet"
        file.write_bytes(file.read_bytes()[:-10])
    elif what == "csv":
        (folder / "map.csv").write_text("id,label\na,b\n")
        return folder / "map.csv"
    elif what == "other data":
        other = tiny.examples(12, seed=3)
        write_map(folder, seen(other), other)
    return folder


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("nothing", "holds no recorded dynamics"),
        ("never seen", "none of the samples was observed"),
        ("other labels", "12 of 12 samples had another label when they were recorded"),
        ("other data", "12 of 12 samples have no recorded dynamics"),
        ("not ours", "not dynamics that calmix recorded"),
        ("damaged", "not a whole Parquet file"),
        ("csv", "are a Parquet file"),
    ],
)
def test_what_is_no_map_of_this_data_is_refused_in_a_line_that_names_it(
    tmp_path: Path, what: str, message: str
) -> None:
    source = _broken(tmp_path, what)
    with pytest.raises(InputError, match=message) as caught:
        known_dynamics(source, tiny.examples(12))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_only_guided_recipes_take_dynamics(tmp_path: Path) -> None:
    examples = tiny.examples(12)
    write_map(tmp_path, seen(examples), examples)
    guided, plain = choose("tdmixup"), Recipe(clean())
    assert check_guided(plain, None, False, examples) is None
    assert check_guided(guided, None, False, examples) is None
    assert check_guided(guided, None, True, examples) is None
    known: Any = check_guided(guided, tmp_path, False, examples)
    assert len(known.dynamics) == 12
    for arguments in ((plain, tmp_path, False), (plain, None, True), (guided, tmp_path, True)):
        with pytest.raises(InputError, match=r"--dynamics|--online"):
            check_guided(*arguments, examples)


def test_a_map_of_what_was_learnt_in_several_epochs_needs_no_note() -> None:
    examples = tiny.examples(60)
    assert map_notes(seen(examples, wrong=(4, 7), never=(2,))) == []
    assert map_notes(seen(examples, never=tuple(range(60)))) == []


def test_one_epoch_has_no_variability_and_that_is_said() -> None:
    logits = np.eye(3)[None, [0, 1, 2] * 4]
    notes = map_notes(Dynamics.from_logits(logits, np.arange(12) % 3))
    assert notes == ["map: every sample was seen once, so there is no variability; regions go by confidence alone"]


@pytest.mark.parametrize(("right", "said"), [(20, True), (27, True), (28, False), (60, False)])
def test_a_model_that_hardly_learnt_is_said_to_have(right: int, said: bool) -> None:
    """Of 60 labels in three classes: 20 is what the most frequent makes, 28 a fifth of the rest more."""
    labels = np.arange(60) % 3
    told = np.where(np.arange(60) < right, labels, (labels + 1) % 3)
    notes = map_notes(Dynamics.from_logits(np.stack([np.eye(3)[told] * e for e in (1, 2)]), labels))
    assert any("hardly learnt" in note for note in notes) == said
    if said:
        assert f"{right / 60:.0%} of the training labels right, the most frequent alone makes 33%" in notes[0]
        assert "no label is called wrong" in notes[0]


def test_of_many_classes_that_a_region_lacks_three_are_named_and_a_single_one_reads_plainly() -> None:
    labels = np.arange(150) % 50
    sure = np.eye(50)[labels] * np.where(labels < 20, 9.0, 2.0)[:, None]
    names = tuple(f"c{k:02}" for k in range(50))
    easy, *_ = map_notes(Dynamics.from_logits(np.stack([sure, sure]), labels, label_names=names))
    assert easy.startswith("data map: no rows labelled 'c")
    assert easy.endswith(" more are in the easy third")
    assert easy.count("'c") == 3
    labels = np.array([0] * 20 + [1] * 10)
    sure = np.eye(2)[labels] * np.where(labels == 0, 9.0, 2.0)[:, None]
    easy, *_ = map_notes(Dynamics.from_logits(np.stack([sure, sure]), labels, label_names=("ok", "Technical")))
    assert easy == "data map: no 'Technical' rows are in the easy third"


def test_a_class_that_a_region_lacks_is_named() -> None:
    labels = np.array([0] * 8 + [1] * 8 + [2] * 8)
    sure = np.eye(3)[labels] * 5
    unsure = sure.copy()
    unsure[8:16] = 0.1 * np.eye(3)[labels[8:16]]  # the second class is learnt late, and so ambiguous
    sure[:8] *= 2
    dynamics = Dynamics.from_logits(np.stack([unsure, sure]), labels, label_names=("a", "b", "c"))
    assert map_notes(dynamics) == [
        "data map: no rows labelled 'b', 'c' are in the easy third",
        "data map: no rows labelled 'a', 'c' are in the ambiguous third",
    ]
