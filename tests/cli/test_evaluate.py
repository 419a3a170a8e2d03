"""`calmix evaluate`."""

import json
from pathlib import Path
from typing import Any

import pytest

from calmix.data import read_examples
from calmix.models import load
from calmix.training import intervals, measure


def strict(text: str) -> Any:
    return json.loads(text, parse_constant=lambda token: pytest.fail(f"{token} is not JSON"))


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


def test_the_table_has_intervals_and_a_warning_for_few_rows(calmix: Any, trained: Path, files: Any) -> None:
    ended = calmix("evaluate", trained, files["test"])
    assert ended.code == 0
    assert "accuracy" in ended.out
    assert "–" in ended.out
    assert "under 200 rows" in ended.err


def test_groups_are_measured_on_their_own(calmix: Any, trained: Path, place: Path) -> None:
    (place / "grouped.csv").write_text(
        "text,label,who\nthe cat,animal,ann\nbread,food,[bold]bob\nrain,weather,ann\nsnow,weather,\n"
    )
    found = strict(calmix("evaluate", trained, "grouped.csv", "--group", "who", "--json").out)["grouped.csv"]
    assert {name: f["n"] for name, f in found["groups"].items()} == {"ann": 2, "[bold]bob": 1, "": 1}
    assert "[bold]bob" in calmix("evaluate", trained, "grouped.csv", "--group", "who").out


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
