"""The default recipe: each of its parts can be had alone, and all together."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from calmix.dynamics import Dynamics
from calmix.errors import InputError
from calmix.mixing.auto import auto
from calmix.mixing.terms import clean, mixed
from calmix.training import train

ALL = {"alpha": 0.4, "halves": True, "own": 0.3, "entropy": 0.05, "smoothing": 0.02, "doubt": 0.05, "distrust": 0.5}


def asked(model: Path, out: Path, seed: int = 0, **options: Any) -> dict[str, Any]:
    sets = {"train": tiny.examples(45), "dev": tiny.examples(12, seed=1), "test": tiny.examples(12, seed=2)}
    return sets | {"model": model, "recipe": "auto", "options": options, "out": out / str(seed), "seed": seed,
                   "epochs": 3, "batch_size": 8, "lr": 1e-3}  # fmt: skip


def test_with_nothing_switched_on_it_is_plain_training(make_step: Any) -> None:
    recipe = auto(average=0.0)
    torch.testing.assert_close(recipe.loss(make_step()), clean()(make_step()))
    assert not recipe.online
    assert not recipe.remembers
    assert recipe.average == 0


def test_rows_that_are_not_mixed_are_as_they_would_be_alone_and_can_be_recorded(make_step: Any) -> None:
    step, plain = make_step(rows=6), make_step(rows=6)
    losses = mixed(0, alpha=1.0, share=0.5)(step)
    assert step.observed is not None
    logits, rows = step.observed
    alone = rows >= 0
    assert alone.sum() == 3
    torch.testing.assert_close(logits[alone], plain.logits[alone])
    torch.testing.assert_close(losses[alone], clean()(plain)[alone])
    assert not torch.allclose(logits[~alone], plain.logits[~alone])


def test_entropy_is_that_of_the_mixed_prediction(make_step: Any) -> None:
    found = mixed("head", alpha=1.0, entropy=0.5)(make_step())
    without, entropy = mixed("head", alpha=1.0)(make_step()), make_step()
    partner, weight = entropy.permutation(), entropy.beta(1.0)[:, None]
    logits = weight * entropy.logits + (1 - weight) * entropy.logits[partner]
    expected = without - 0.5 * torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(found, expected)


def test_halves_without_mixing_are_refused() -> None:
    with pytest.raises(InputError, match="alpha must be above 0"):
        auto(halves=True)


@pytest.mark.parametrize("name", ["alpha", "own", "entropy", "doubt", "distrust", "average", "cooling"])
@pytest.mark.parametrize("value", ["0.4", -1.0])
def test_an_option_that_is_no_number_or_outside_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"^{name} must be .*, not {value!r}$"):
        auto(**{name: value})


@pytest.mark.parametrize("option", [{"own": 0.5}, {"alpha": 1.0}, {"doubt": 0.1}, {"distrust": 0.0}, ALL])
def test_each_part_trains_and_records(checkpoint: Any, tmp_path: Path, option: dict[str, Any]) -> None:
    run = train(**asked(checkpoint("bert"), tmp_path, **option))
    observed = Dynamics.load(run.folder / "datamap.parquet").observations
    assert observed.sum() == pytest.approx(3 * 45 * (0.5 if option == {"alpha": 1.0} else 1), rel=0.4)
    assert np.isfinite(run.metrics["splits"]["test"]["after"]["nll"])
