"""The benchmark of rankings of wrong labels."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

ROOT = Path(__file__).parents[1]


@pytest.fixture
def ranked(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import label_issues

    return label_issues


def written(folder: Path, name: str, rows: list[dict[str, str]]) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_people_are_wrong_where_the_truth_is_another(ranked: Any, tmp_path: Path) -> None:
    texts, truth = tiny.texts(6)
    given = [*truth[:5], next(name for name in tiny.LABELS if name != truth[5])]
    rows = [
        dict(zip(("text", "label", "true_label"), row, strict=True)) for row in zip(texts, given, truth, strict=True)
    ]
    written(tmp_path, "noisy_ag_news", rows)
    examples, wrong = ranked.noisy_examples("noisy_ag_news", tmp_path, 0)
    assert wrong.tolist() == [False] * 5 + [True]
    assert examples.label_names[examples.labels[5]] == given[5]


def test_a_share_of_the_labels_is_flipped(ranked: Any, tmp_path: Path) -> None:
    texts, labels = tiny.texts(300)
    written(tmp_path, "trec6", [{"text": t, "label": y} for t, y in zip(texts, labels, strict=True)])
    examples, wrong = ranked.noisy_examples("trec6-20", tmp_path, 1)
    names = np.array(examples.label_names)[examples.labels]
    assert ((names != np.array(labels)) == wrong).all()
    assert 40 < wrong.sum() < 80


def test_a_loss_is_the_negative_logarithm_of_the_labels_probability(ranked: Any) -> None:
    logits = np.log([[0.2, 0.8], [0.5, 0.5]])
    np.testing.assert_allclose(ranked.losses_and_margins(logits + 7, np.array([0, 1]))[0], -np.log([0.2, 0.5]))


def test_maps_and_heads_are_ranked_alone_and_together(ranked: Any) -> None:
    found = ranked.rankings({"map-fitted": np.array([1.0, 2.0]), "head": np.array([4.0, 0.0])})
    assert found["map-fitted + ½ head"].tolist() == [3.0, 2.0]
    assert found["map-fitted + 2 head"].tolist() == [9.0, 2.0]
    assert set(ranked.rankings({"map-random": np.zeros(2)})) == {"map-random"}


def test_figures_of_a_perfect_and_of_a_reversed_ranking(ranked: Any) -> None:
    wrong = np.arange(10) < 2
    assert ranked.figures(wrong, -np.arange(10.0)) == (1.0, 1.0, 1.0)
    precision, auroc, first = ranked.figures(wrong, np.arange(10.0))
    assert (auroc, first) == (0.0, 0.0)
    assert precision == pytest.approx((1 / 9 + 2 / 10) / 2)


def test_the_table_has_a_row_for_each_ranking_and_is_kept(ranked: Any, tmp_path: Path, capsys: Any) -> None:
    for seed in (0, 1):
        for way in ("map-fitted", "head"):
            loss, wrong = np.random.default_rng(seed).random(20), np.arange(20) < 4
            np.savez(tmp_path / f"trec6-10--{way}--{seed}.npz", loss=loss, wrong=wrong, cpu=1.0, wall=1.0)
    ranked.table(argparse.Namespace(keep=tmp_path, out=tmp_path / "out", seeds=2))
    told = capsys.readouterr().out
    assert "| map-fitted + ½ head | – | " in told
    kept = json.loads((tmp_path / "out" / "label-issues.json").read_text(encoding="utf-8"))
    assert set(kept) == {"map-fitted", "head", *(f"map-fitted + {name}head" for name in ("½ ", "", "2 "))}
    assert kept["head"]["trec6-10"][0] == pytest.approx(
        np.mean([ranked.average_precision(np.arange(20) < 4, np.random.default_rng(s).random(20)) for s in (0, 1)]),
        abs=1e-4,
    )
