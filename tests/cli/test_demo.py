"""`calmix demo`, on a tiny model and a part of the messages."""

import json
from pathlib import Path
from typing import Any

import pytest

from calmix.data import write_table
from calmix.data.corpus import corpus_path


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first messages of each part of the corpus stand for all."""
    from calmix.data import read_table

    small = {}
    for split in ("train", "dev", "test", "ood"):
        small[split] = tmp_path / f"{split}.jsonl"
        write_table(read_table(corpus_path(split)).slice(0, 40), small[split])
    monkeypatch.setattr("calmix.data.corpus.corpus_path", lambda split: small[split])


@pytest.mark.usefixtures("_small")
def test_the_default_and_plain_training_are_compared_with_the_truth(calmix: Any, checkpoint: Any, place: Path) -> None:
    words = ["demo", "--model", checkpoint("bert"), "--epochs", 1, "--out", "runs"]
    ended = calmix(*words)
    assert ended.code == 0, ended.err
    assert "truth" in ended.out
    assert "colloquial" in ended.out
    assert sorted(p.name for p in (place / "runs").iterdir()) == ["calmix", "comparison.html", "plain"]
    assert "both on one page: runs/comparison.html" in ended.out
    assert (place / "runs" / "plain" / "report.html").is_file()
    # The same command again shows the same figures, without training again.
    again = calmix(*words, "--json")
    assert again.code == 0, again.err
    found = json.loads(again.out)
    assert set(found) == {"calmix", "plain"}
    assert found["calmix"]["test"]["after"]["truth_distance"] > 0
    runs = {name: json.loads((place / "runs" / name / "metrics.json").read_text()) for name in found}
    assert [entry["epoch"] for entry in runs["plain"]["epochs"]] == [1]  # a random head is worth nothing before
    assert [entry["epoch"] for entry in runs["calmix"]["epochs"]] == [0, 1]
