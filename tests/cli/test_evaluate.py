"""`calmix evaluate`."""

import json
from pathlib import Path
from typing import Any

import pytest
import tiny

from calmix.data import read_examples
from calmix.models import load
from calmix.training import intervals, measure


def strict(text: str) -> Any:
    return json.loads(text, parse_constant=lambda token: pytest.fail(f"{token} is not JSON"))


@pytest.mark.usefixtures("place")
def test_a_model_is_measured_on_each_file(calmix: Any, trained: Path, files: Any) -> None:
    ended = calmix("evaluate", trained, files["test"], files["dev"], "--json", "--bins", 7)
    assert (ended.code, ended.err) == (0, "")
    found = strict(ended.out)
    assert list(found) == [str(files["test"]), str(files["dev"])]
    examples = read_examples(files["test"])
    probs = load(trained).probabilities(examples)
    test = found[str(files["test"])]
    assert test["intervals"] == intervals(probs, examples.labels, bins=7)
    assert test["ece"] == measure(probs, examples.labels, bins=7)["ece"]


@pytest.mark.usefixtures("place")
def test_the_table_has_intervals_and_a_warning_for_few_rows(calmix: Any, trained: Path, files: Any) -> None:
    ended = calmix("evaluate", trained, files["test"])
    assert ended.code == 0
    assert "accuracy" in ended.out
    assert "–" in ended.out
    assert "under 200 rows" in ended.err


def test_recall_and_precision_of_a_rare_label_are_shown_and_kept(calmix: Any, place: Path) -> None:
    rows = [
        f"{name},{p},{1 - p:.1f}"
        for name, p, n in (("ham", 0.9, 98), ("spam", 0.8, 1), ("spam", 0.3, 1))
        for _ in range(n)
    ]
    (place / "said.csv").write_text("\n".join(["label,p_ham,p_spam", *rows]) + "\n")
    ended = calmix("evaluate", "--predictions", "said.csv", "--out", "judged")
    assert ended.code == 0, ended.err
    assert ["said.csv", "spam", "2", "50.0%", "100.0%"] in [line.split() for line in ended.out.splitlines()]
    (kept,) = json.loads((place / "judged" / "metrics.json").read_text())["splits"].values()
    assert kept["after"]["rare"] == [{"label": "spam", "rows": 2, "recall": 0.5, "precision": 1.0}]


def test_groups_are_measured_on_their_own(calmix: Any, trained: Path, place: Path) -> None:
    (place / "grouped.csv").write_text(
        "text,label,who\nthe cat,animal,ann\nbread,food,[bold]bob\nrain,weather,ann\nsnow,weather,\n"
    )
    found = strict(calmix("evaluate", trained, "grouped.csv", "--group", "who", "--json").out)["grouped.csv"]
    assert {name: f["n"] for name, f in found["groups"].items()} == {"ann": 2, "[bold]bob": 1, "": 1}
    assert "[bold]bob" in calmix("evaluate", trained, "grouped.csv", "--group", "Who ").out
    ended = calmix("evaluate", trained, "grouped.csv", "--group", "whom", "--no-report")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "--group: no column 'whom'; did you mean 'who'?" in ended.err


def test_rows_that_were_trained_on_are_told(calmix: Any, trained: Path, files: Any, place: Path) -> None:
    (place / "new.csv").write_text("text,label\nthe strangest cat,animal\na bread nobody knew,food\n")
    ended = calmix("evaluate", trained, files["train"], "new.csv", "--no-report")
    assert ended.code == 0, ended.err
    notes = [line for line in ended.err.splitlines() if "in the training data" in line]
    assert notes == [
        f"· {files['train']}: 30 of 30 rows were in the training data, so that these scores are optimistic"
    ]


def test_classes_are_groups_by_the_column_of_the_label(calmix: Any, trained: Path, odd: Any, place: Path) -> None:
    rows = "the cat,animal\nbread,food\nrain,weather\nsnow,weather\n"
    (place / "plain.csv").write_text(f"text,category\n{rows}")
    (place / "named.csv").write_text(f"text,team\n{rows}")
    for words in (("plain.csv", "--group", "label"), ("named.csv", "--label", "team", "--group", "team")):
        found = strict(calmix("evaluate", trained, *words, "--no-report", "--json").out)[words[0]]
        assert {name: f["n"] for name, f in found["groups"].items()} == {"animal": 1, "food": 1, "weather": 2}
    found = strict(calmix("evaluate", odd.run, odd.file, "--group", "Queue", "--no-report", "--json").out)
    assert {name: f["n"] for name, f in found[str(odd.file)]["groups"].items()} == dict.fromkeys(tiny.LABELS, 10)


def test_the_label_is_each_class_whatever_its_column_is_called(calmix: Any, odd: Any, place: Path) -> None:
    words = ("evaluate", odd.run, odd.file, "--no-report", "--json", "--group")
    found = strict(calmix(*words, "label").out)[str(odd.file)]["groups"]
    assert {name: f["n"] for name, f in found.items()} == dict.fromkeys(tiny.LABELS, 10)
    # A column of the file that is called so is meant, though it is not the label.
    lines = odd.file.read_text().splitlines()
    (place / "two.csv").write_text("\n".join([f"{lines[0]},Label", *(f"{line},same" for line in lines[1:])]) + "\n")
    found = strict(calmix("evaluate", odd.run, "two.csv", *words[3:], "label").out)["two.csv"]["groups"]
    assert {name: f["n"] for name, f in found.items()} == {"same": 30}


@pytest.mark.usefixtures("place")
def test_groups_are_named_as_the_file_names_its_columns(calmix: Any, odd: Any) -> None:
    words = ("evaluate", odd.run, odd.file, "--no-report", "--json", "--group")
    assert set(strict(calmix(*words, "key").out)[str(odd.file)]["groups"]) == {f"k{row}" for row in range(30)}
    assert calmix(*words, "body (raw)").code == 0
    ended = calmix(*words, "quue")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "no column 'quue'; did you mean 'Queue'? (columns: 'key', 'Body (raw)', 'Queue')" in ended.err
    assert calmix(*words, "text").code == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere.csv"], "nowhere.csv: no such file"),
        (["no-label.csv"], "no-label.csv: no column looks like the label"),
        (["good.csv", "no-text.csv"], "no-text.csv: no column looks like the text"),
        (["good.csv", "--text", "body"], "good.csv: --text: no column 'body'"),
        (["good.csv", "--group", "whom"], "good.csv: --group: no column 'whom'; did you mean 'who'?"),
        (["good.csv", "--ood", "other=no-text.csv"], "no-text.csv: no column looks like the text"),
        (["good.csv", "--ood", "other=cut.csv"], "cut.csv: line 2 has 1 fields"),
    ],
)
def test_files_and_columns_are_found_before_the_model_is_loaded(
    calmix: Any, trained: Path, place: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    monkeypatch.setattr("calmix.models.load", lambda *_, **__: pytest.fail("loaded"))
    (place / "good.csv").write_text("text,label,who\nthe cat,animal,ann\nbread,food,bob\n")
    (place / "no-label.csv").write_text("text,what\nthe cat,animal\n")
    (place / "no-text.csv").write_text("what,label\nthe cat,animal\n")
    (place / "cut.csv").write_text("text,label\nthe cat\n")
    ended = calmix("evaluate", trained, *words)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert says in ended.err


@pytest.mark.parametrize("again", ["a.csv", "./a.csv", "link.csv"])
def test_a_file_that_is_given_twice_is_refused(calmix: Any, trained: Path, place: Path, again: str) -> None:
    (place / "a.csv").write_text("text,label,p_a,p_b\nthe cat,a,0.5,0.5\n")
    (place / "link.csv").symlink_to("a.csv")
    before = sorted(place.iterdir())
    for words in ((trained, "a.csv", again), ("--predictions", "a.csv", "--predictions", again)):
        ended = calmix("evaluate", *words)
        assert (ended.code, ended.out, ended.err) == (2, "", f"calmix: {Path(again)}: is given twice\n")
    assert sorted(place.iterdir()) == before


@pytest.mark.parametrize(
    "content",
    [
        '{"label": "a", "p_a": 0.75, "p_b": 0.25}\n{"label": "b", "p_a": 0.5, "p_b": 0.5}\n',
        '{"label": 0, "probs": [0.75, 0.25]}\n{"label": 1, "probs": [0.5, 0.5]}\n',
        '{"label": 0, "logits": [1.0986122886681098, 0]}\n{"label": 1, "logits": [2, 2]}\n',
    ],
)
def test_predictions_made_anywhere_are_measured(calmix: Any, place: Path, content: str) -> None:
    (place / "p.jsonl").write_text(content)
    found = strict(calmix("evaluate", "--predictions", "p.jsonl", "--json").out)["p.jsonl"]
    assert found["n"] == 2
    assert found["brier"] == pytest.approx((2 * 0.25**2 + 2 * 0.5**2) / 2)


@pytest.mark.usefixtures("place")
def test_our_own_predictions_can_be_measured_again(calmix: Any, trained: Path) -> None:
    file = trained / "predictions-dev.parquet"
    found = strict(calmix("evaluate", "--predictions", file, "--json").out)[str(file)]
    metrics = json.loads((trained / "metrics.json").read_text())
    assert found["ece"] == pytest.approx(metrics["splits"]["dev"]["after"]["ece"])


def test_a_certain_mistake_is_null_in_json_and_a_dash_in_the_table(calmix: Any, place: Path) -> None:
    (place / "p.csv").write_text("label,p_a,p_b\na,0,1\nb,0,1\na,1,0\n")
    ended = calmix("evaluate", "--predictions", "p.csv", "--json")
    assert ended.code == 0, ended.err
    strict(ended.out)
    assert calmix("evaluate", "--predictions", "p.csv").code == 0


def test_an_evaluation_leaves_its_figures_predictions_and_page(
    calmix: Any, trained: Path, files: Any, place: Path, tree: Any
) -> None:
    ended = calmix("evaluate", trained, files["test"], files["dev"], "--out", "judged")
    assert (ended.code, "page: judged/report.html\n" in ended.out) == (0, True), ended.err
    metrics = json.loads((place / "judged" / "metrics.json").read_text())
    found = strict(calmix("evaluate", trained, files["test"], files["dev"], "--json", "--no-report").out)
    assert {metrics["files"][name]: stages["after"] for name, stages in metrics["splits"].items()} == found
    assert "as supplied" in (place / "judged" / "report.html").read_text(encoding="utf-8")
    before = tree(place / "judged")
    assert calmix("evaluate", trained, files["test"], files["dev"], "--out", "judged").code == 0
    assert tree(place / "judged") == before
    ended = calmix("evaluate", trained, files["dev"], "--out", "judged")
    assert (ended.code, ended.err.count("\n")) == (2, 1)


def test_without_a_place_it_goes_below_evaluations_and_without_a_page_nowhere(
    calmix: Any, trained: Path, files: Any, place: Path
) -> None:
    assert calmix("evaluate", trained, files["test"], "--no-report").code == 0
    assert list(place.iterdir()) == []
    assert calmix("evaluate", trained, files["test"], "--json").code == 0
    (folder,) = (place / "evaluations").iterdir()
    assert folder.name.startswith(f"{trained.name}-")
    assert (folder / "report.html").is_file()


def test_predictions_made_anywhere_get_a_page_with_their_groups(calmix: Any, place: Path) -> None:
    (place / "p.csv").write_text("label,p_a,p_b,who\na,0.9,0.1,<b>ann\nb,0.2,0.8,bob\na,0.6,0.4,bob\n")
    ended = calmix("evaluate", "--predictions", "p.csv", "--group", "who", "--out", "judged")
    assert ended.code == 0, ended.err
    page = (place / "judged" / "report.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;ann" in page
    assert calmix("report", "judged").code == 0


def test_an_ensemble_is_another_evaluation_than_its_first_member(
    calmix: Any, trained: Path, files: Any, place: Path, checkpoint: Any
) -> None:
    words = ("evaluate", trained, files["test"], "--json")
    alone = strict(calmix(*words).out)
    both = strict(calmix(*words, "--ensemble", checkpoint("electra")).out)
    dropped = strict(calmix(*words, "--mc-dropout", 5).out)
    name = str(files["test"])
    assert len({found[name]["nll"] for found in (alone, both, dropped)}) == 3
    assert len(list((place / "evaluations").iterdir())) == 3
    examples = read_examples(files["test"])
    probs = load([trained, checkpoint("electra")]).probabilities(examples)
    assert both[name]["ece"] == measure(probs, examples.labels)["ece"]
    assert calmix("evaluate", "--predictions", "x.csv", "--mc-dropout", 5).code == 2


def test_unfamiliar_data_is_told_from_the_files_own(calmix: Any, trained: Path, files: Any, place: Path) -> None:
    words = ("evaluate", trained, files["test"], "--ood", "random-tokens", "--ood", f"other={files['texts']}")
    ended = calmix(*words, "--out", "judged")
    assert ended.code == 0, ended.err
    assert "random-tokens" in ended.out
    found = json.loads((place / "judged" / "metrics.json").read_text())["splits"]["test"]["after"]["ood"]
    assert found["other"]["n"] == 3
    assert 0 <= found["random-tokens"]["negative_energy"]["auroc"] <= 1
    assert (place / "judged" / "ood-scores.parquet").is_file()
    assert calmix("plot", "judged", "--what", "ood", "--out", "fig.png").code == 0
    assert strict(calmix(*words, "--json", "--no-report").out)[str(files["test"])]["ood"] == found
    assert calmix("evaluate", trained, files["test"], "--ood", "noise").code == 2
