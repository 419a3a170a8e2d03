"""How uncertain mixup makes the training labels, by the strength of mixing (Thulasidasan et al. 2019, figure 5)."""

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from calmix.errors import InputError
from calmix.report.figures import STYLES, look, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_entropies", "prepare_entropies"]


def prepare_entropies(
    alphas: Sequence[float],
    *,
    generator: np.random.Generator,
    shares: Sequence[float] | None = None,
    bins: int = 50,
    draws: int = 200_000,
) -> pa.Table:
    """Return the distribution of the entropy (in nats) of mixed labels, λ ~ Beta(α, α), for each α.

    Columns: `alpha`, `low` and `high` of a bin, its `share` of the labels, and their `mean` entropy.

    Args:
        alphas: the strengths of mixing; 0 mixes nothing.
        generator: of the draws.
        shares: of the classes: two samples of one class mix to a label without entropy. Without them, partners
            are always of different classes.
        bins: of the distribution, from 0 to ln 2.
        draws: for each α.
    """
    if any(not (np.isfinite(alpha) and alpha >= 0) for alpha in alphas):
        raise InputError("α is a number from 0 on: 0 mixes nothing")
    edges = np.linspace(0, np.log(2), bins + 1)
    same = 0.0 if shares is None else float(np.square(np.asarray(shares) / np.sum(shares)).sum())
    rows = []
    for alpha in alphas:
        weight = generator.beta(alpha, alpha, draws) if alpha > 0 else np.ones(draws)
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy = -np.nan_to_num(weight * np.log(weight)) - np.nan_to_num((1 - weight) * np.log1p(-weight))
        entropy = np.where(generator.random(draws) < same, 0.0, entropy.clip(0, edges[-1]))
        counts, _ = np.histogram(entropy, edges)
        rows += [
            {"alpha": float(alpha), "low": low, "high": high, "share": count / draws, "mean": float(entropy.mean())}
            for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
        ]
    return pa.Table.from_pylist(rows)


def draw_entropies(table: pa.Table) -> "Figure":
    """Return a figure with a line for each α."""
    rows = table.to_pylist()
    with look():
        figure = new_figure(5.2, 4.0)
        axes = figure.add_subplot(1, 1, 1)
        for alpha, (colour, _), line in zip(
            dict.fromkeys(row["alpha"] for row in rows), cycle(STYLES), cycle(("-", "--", "-.", ":")), strict=False
        ):
            here = [row for row in rows if row["alpha"] == alpha]
            edges = [*(row["low"] for row in here), here[-1]["high"]]
            label = f"α = {alpha:g} (mean {here[0]['mean']:.2f})"
            axes.stairs([row["share"] for row in here], edges, color=colour, linestyle=line, linewidth=1.5, label=label)
        axes.set_yscale("log")
        axes.set_xlabel("entropy of the training label (nats)")
        axes.set_ylabel("share of the labels")
        axes.legend(frameon=False, fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    return figure
