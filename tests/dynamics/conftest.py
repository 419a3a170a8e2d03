from itertools import pairwise

import numpy as np
import pytest


def by_hand(observations):
    """The statistics of one sample from its (logits, label) in the order of time, as the papers define them."""
    margins, golds, rights, others = [], [], [], []
    for logits, label in observations:
        exps = np.exp(np.asarray(logits, dtype=np.float64) - max(logits))
        probs = exps / exps.sum()
        rest = [k for k in range(len(logits)) if k != label and logits[k] > -np.inf]
        margins.append(logits[label] - max(logits[k] for k in rest) if rest else np.nan)
        golds.append(probs[label])
        others.append(max((probs[k] for k in rest), default=0.0))
        rights.append(int(np.argmax(logits)) == label)
    n = len(observations)
    return {
        "aum": sum(margins) / n,
        "confidence": sum(golds) / n,
        "variability": (sum((p - sum(golds) / n) ** 2 for p in golds) / n) ** 0.5,
        "correctness": sum(rights) / n,
        "forgetting": sum(a and not b for a, b in pairwise(rights)),
        "learnt": any(rights),
        "observations": n,
        "loss": -sum(np.log(golds)) / n,
        "last_loss": -np.log(golds[-1]),
        "rival_confidence": sum(others) / n,
    }


@pytest.fixture(scope="session")
def agrees():
    """Return `agrees(dynamics, histories)`: check every sample against the loop."""

    def check(dynamics, histories):
        for row, history in enumerate(histories):
            if not history:
                assert dynamics.observations[row] == 0
                assert np.isnan(dynamics.aum[row])
                continue
            for name, value in by_hand(history).items():
                assert getattr(dynamics, name)[row] == pytest.approx(value, abs=1e-9, nan_ok=True), (name, row)
            assert dynamics.last_prediction[row] == int(np.argmax(history[-1][0]))

    return check
