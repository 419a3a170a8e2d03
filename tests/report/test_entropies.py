"""The entropy of mixed labels."""

import numpy as np
import pytest
from scipy import integrate, stats

from calmix.errors import InputError
from calmix.report import draw_entropies, prepare_entropies


def test_the_mean_is_that_of_the_integral_and_shares_sum_to_one() -> None:
    table = prepare_entropies([0.0, 0.1, 1.0], generator=np.random.default_rng(0))
    rows = table.to_pylist()
    for alpha in (0.1, 1.0):
        here = [row for row in rows if row["alpha"] == alpha]

        def entropy(x: float, alpha: float = alpha) -> float:
            h = -x * np.log(x) - (1 - x) * np.log(1 - x)
            return float(h * stats.beta.pdf(x, alpha, alpha))

        expected = 2 * integrate.quad(entropy, 0, 0.5)[0]
        assert here[0]["mean"] == pytest.approx(expected, abs=0.003)
        assert sum(row["share"] for row in here) == pytest.approx(1)
    plain = [row for row in rows if row["alpha"] == 0]
    assert (plain[0]["share"], plain[0]["mean"]) == (1, 0)


def test_partners_of_one_class_mix_to_no_entropy() -> None:
    both = [
        prepare_entropies([1.0], generator=np.random.default_rng(0), shares=shares)["mean"][0].as_py()
        for shares in (None, [3, 1])
    ]
    assert both[1] == pytest.approx((1 - 0.75**2 - 0.25**2) * both[0], abs=0.005)
    with pytest.raises(InputError, match="0 mixes nothing"):
        prepare_entropies([-1.0], generator=np.random.default_rng(0))


def test_each_alpha_has_a_line() -> None:
    figure = draw_entropies(prepare_entropies([0.1, 0.4], generator=np.random.default_rng(0)))
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert [label.split(" (")[0] for label in labels] == ["α = 0.1", "α = 0.4"]
