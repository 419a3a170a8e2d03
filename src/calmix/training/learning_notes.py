"""What the epochs of a run say about its learning: whether it was broken off, and whether fine-tuning helped at all."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["BEFORE", "UNFINISHED", "dev_loss", "dev_loss_fell", "training_notes"]

BEFORE = 0
"""The epoch that stands for the time before fine-tuning: the network as it was loaded, with a head fitted to it."""

UNFINISHED = "training: the network was still learning when it stopped"
"""How the note begins of a run whose dev loss still fell."""

# A fall by less than this is within what the draw of the dev rows makes of it; of tiny losses nobody sees the rest.
_MARKED, _LEAST = 0.02, 0.005
# A network that was trained to its end and made this much surer is rare.
_TIMID = 0.7


def training_notes(
    history: Sequence[Mapping[str, Any]], temperature: float, *, best_epoch: int, softened: bool = False
) -> list[str]:
    """Return what someone who reads the figures of a run should know about its training.

    Args:
        history: its epochs, as in `metrics.json`; an entry of epoch 0 is the fitted head before fine-tuning.
        temperature: of the epoch that was kept.
        best_epoch: that epoch.
        softened: whether the recipe makes the network less sure on purpose, as mixed labels do; then a low temperature
            says nothing about how long it was trained.
    """
    trained = [entry for entry in history if entry["epoch"] > BEFORE]
    if best_epoch == BEFORE:
        return [_never_better(history)] if trained else []
    fell = dev_loss_fell(history, best_epoch)
    timid = temperature < _TIMID and not softened
    signs = []
    if fell is not None:
        last = "its only epoch" if len(trained) == 1 else f"the last of {len(trained)} epochs"
        signs.append(f"the dev loss still fell, by {fell:.0%} in {last}")
    if timid:
        shown = f"{temperature:.2f}" if temperature >= 0.01 else f"{temperature:.2g}"
        signs.append(f"its confidence was far too low and needed a temperature of {shown}, a sign of little training")
    if not signs:
        return []
    which = UNFINISHED if fell is not None else "training: the network may have been trained too little"
    return [f"{which} ({'; '.join(signs)}): more --epochs, or a larger --lr, may help"]


def dev_loss_fell(history: Sequence[Mapping[str, Any]], best_epoch: int | None) -> float | None:
    """Return by which share the dev loss fell in the last epoch; None where that was not kept, or fell but little.

    It is the NLL after temperature, and is compared with the lowest before.
    """
    losses = [(int(entry["epoch"]), dev_loss(entry)) for entry in history]
    known = [(epoch, loss) for epoch, loss in losses if loss is not None]
    if len(known) < 2 or known[-1][0] != best_epoch or best_epoch != losses[-1][0]:
        return None
    last, before = known[-1][1], min(loss for _, loss in known[:-1])
    fell = (before - last) / before if before > 0 else 0.0
    return fell if fell > _MARKED and before - last >= _LEAST else None


def dev_loss(entry: Mapping[str, Any]) -> float | None:
    """Return the dev NLL after temperature of an epoch, where it was measured."""
    loss = (entry.get("dev") or {}).get("nll-ts")
    return float(loss) if isinstance(loss, int | float) and math.isfinite(loss) else None


def _never_better(history: Sequence[Mapping[str, Any]]) -> str:
    losses = {int(entry["epoch"]): dev_loss(entry) for entry in history}
    before = losses.get(BEFORE)
    later = [loss for epoch, loss in losses.items() if epoch > BEFORE and loss is not None]
    shown = f" (dev NLL {min(later):.3f} at best, {before:.3f} before)" if later and before is not None else ""
    return (
        f"training: no epoch of fine-tuning was better than the head fitted before it{shown}: the model is the network "
        "as it was loaded, with that head"
    )
