"""Weights in shards: processes that keep a part of each weight come to what those come to that keep all."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tiny
import torch
from ranks import together
from runs import Killed, assert_same_dynamics, assert_same_weights, recorded, weights
from safetensors.torch import load_file
from torch import nn

from calmix.errors import InputError, TrainingError
from calmix.models import load_for_training
from calmix.training import loop, train
from calmix.training.launching import accelerator_for
from calmix.training.sharding import Shards, trainable
from calmix.training.state import optimizer_tensors
from calmix.training.stepping import Stepper

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def run(model: Path, out: Path, *, sharded: bool, images: bool = False, **changes: Any) -> dict[str, Any]:
    os.environ["ACCELERATE_USE_FSDP"] = str(sharded).lower()
    settings: dict[str, Any] = {"epochs": 2, "lr": 1e-3, "select": "none", "seed": 3, "batch_size": 8}
    make: Any = tiny.images if images else tiny.examples
    dev, test = make(7, seed=1), make(4, seed=2)
    return train(make(24), dev=dev, test=test, model=model, out=out, **settings | changes).metrics


def assert_close(one: Path, other: Path) -> None:
    a, b = weights(one), weights(other)
    assert a.keys() == b.keys()
    for name in a:
        if not name.endswith("key.bias"):  # its gradient is rounding alone, which Adam blows up
            torch.testing.assert_close(a[name], b[name], rtol=0, atol=1e-5)


def assert_same_figures(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert [entry["step"] for entry in ours["epochs"]] == [entry["step"] for entry in theirs["epochs"]]
    for entry, other in zip(ours["epochs"], theirs["epochs"], strict=True):
        assert (entry["loss"] is None) == (other["loss"] is None) == (entry["epoch"] == 0)
        if entry["epoch"] > 0:
            assert entry["loss"] == pytest.approx(other["loss"], rel=1e-5)
    for split in ("dev", "test"):
        for name in ("nll", "brier", "accuracy"):
            ours_is, theirs_is = (metrics["splits"][split]["before"][name] for metrics in (ours, theirs))
            assert ours_is == pytest.approx(theirs_is, abs=1e-5)


@pytest.mark.parametrize("world", [2, 3])  # three: some weights have two rows
def test_parts_of_weights_learn_what_whole_ones_learn_in_one_process(calm: Path, tmp_path: Path, world: int) -> None:
    (alone,) = together(1, partial(run, calm, tmp_path / "one", sharded=False))
    told = together(world, partial(run, calm, tmp_path / "parts", sharded=True))
    assert all(metrics == told[0] for metrics in told)
    assert_same_figures(told[0], alone)
    assert_close(tmp_path / "one", tmp_path / "parts")
    assert_same_dynamics(recorded(tmp_path / "one"), recorded(tmp_path / "parts"), rtol=1e-3, atol=1e-4)
    assert sorted(p.name for p in (tmp_path / "one").rglob("*")) == sorted(
        p.name for p in (tmp_path / "parts").rglob("*")
    )


def beaten(model: Path, out: Path) -> dict[str, Any]:
    """Train in parts for an epoch that is worse than the head was before."""
    worth = iter([1.0, 0.0])
    loop.score = lambda *_: next(worth)  # in a process of its own
    return run(model, out, sharded=True, epochs=1)


def test_a_fitted_head_that_nothing_beat_is_put_together_at_full_size(calm_anew: Path, tmp_path: Path) -> None:
    together(1, partial(run, calm_anew, tmp_path / "alone", sharded=False, epochs=0))
    told, _ = together(2, partial(beaten, calm_anew, tmp_path / "parts"))
    assert told["best_epoch"] == 0
    assert [entry["epoch"] for entry in told["epochs"]] == [0, 1]
    # A head of full size is large: what rounding leaves is larger, too.
    a, b = weights(tmp_path / "alone"), weights(tmp_path / "parts")
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-4)


WAYS: dict[str, dict[str, Any]] = {
    "mixup": {"recipe": "input-mixup", "clip": 0.05},
    "layers": {"recipe": "manifold-mixup", "gradient_checkpointing": True, "accumulate": 2},
    "guided": {"recipe": "tdmixup"},  # with a plain run before it
    "gradients": {"recipe": "aum-saliency", "options": {"search": "set"}, "online": True, "epochs": 3},
    "evaluated": {"record": "evaluation", "optimizer": "sgd", "lr": 0.05},
}


def test_layers_that_share_their_weights_are_put_in_parts_once(checkpoint_of: Any, tmp_path: Path) -> None:
    settings = {"recipe": "manifold-mixup", "epochs": 1}
    whole, parts = (
        together(2, partial(run, checkpoint_of("albert"), tmp_path / str(sharded), sharded=sharded, **settings))[0]
        for sharded in (False, True)
    )
    assert_same_figures(parts, whole)


def test_every_way_of_training_is_that_of_whole_weights(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    model = checkpoint()  # made before the processes part, which would make it both

    # As many processes with whole weights draw the same: pairs, mixing weights and dropout.
    def all_of_them(sharded: bool) -> dict[str, Any]:
        folder = tmp_path / ("parts" if sharded else "whole")
        return {name: run(model, folder / name, sharded=sharded, **way) for name, way in WAYS.items()}

    whole, parts = (together(2, partial(all_of_them, sharded))[0] for sharded in (False, True))
    for name in WAYS:
        assert_same_figures(parts[name], whole[name])
        assert_close(tmp_path / "whole" / name, tmp_path / "parts" / name)
    for name in ("guided", "gradients", "evaluated"):  # those that see unmixed texts
        seen = [recorded(tmp_path / each / name) for each in ("whole", "parts")]
        assert_same_dynamics(*seen, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("architecture", ["convnet", "vit"])
def test_networks_for_images_are_trained_in_parts(
    image_checkpoint: Callable[..., Path], tmp_path: Path, architecture: str
) -> None:
    settings: dict[str, Any] = {"images": True, "optimizer": "sgd", "lr": 0.05, "recipe": "input-mixup"}
    model = image_checkpoint(architecture)
    whole, parts = (
        together(2, partial(run, model, tmp_path / str(sharded), sharded=sharded, **settings))[0]
        for sharded in (False, True)
    )
    assert_same_figures(parts, whole)
    assert_close(tmp_path / "False", tmp_path / "True")  # the statistics of batch norm, too


@pytest.mark.parametrize("images", [False, True])  # the network for images has batch norm
def test_in_bf16_weights_stay_in_float32(
    calm: Path, image_checkpoint: Callable[..., Path], tmp_path: Path, images: bool
) -> None:
    model = image_checkpoint("convnet") if images else calm
    settings: dict[str, Any] = {"images": images, "recipe": "input-mixup"}
    (exact, *_), (low, *_) = (
        together(2, partial(run, model, tmp_path / precision, sharded=True, precision=precision, **settings))
        for precision in ("fp32", "bf16")
    )
    for ours, theirs in zip(low["epochs"], exact["epochs"], strict=True):
        if ours["epoch"] == 0:
            continue
        assert ours["loss"] != theirs["loss"]
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.02)
    assert {tensor.dtype for tensor in weights(tmp_path / "bf16").values() if tensor.is_floating_point()} == {
        torch.float32
    }


def killed_at(step: int, *args: Any, **settings: Any) -> None:
    """Run until every process dies at a step."""
    taken = Stepper.step

    def dying(self: Stepper, parts: Any, number: int, lr: float) -> None:
        if number == step:
            raise Killed
        taken(self, parts, number, lr)

    Stepper.step = dying  # type: ignore[method-assign]
    loop._ASK = 1
    with pytest.raises(Killed):
        run(*args, **settings)


@pytest.mark.parametrize(("before", "after"), [(2, 2), (1, 2), (2, 1), (3, 2)])
def test_a_run_that_was_killed_goes_on_in_any_number_of_parts(
    calm: Path, tmp_path: Path, before: int, after: int
) -> None:
    settings: dict[str, Any] = {"head": "random", "epochs": 3, "checkpoint_epochs": 1, "select": "nll"}
    together(after, partial(run, calm, tmp_path / "whole", sharded=after > 1, **settings))
    together(before, partial(killed_at, 7, calm, tmp_path / "run", sharded=before > 1, **settings))
    (saved,) = (tmp_path / "run" / "checkpoints").glob("step-00000006")
    assert all(tensor.shape == weights(tmp_path / "whole")[name].shape for name, tensor in kept(saved).items())
    together(after, partial(run, calm, tmp_path / "run", sharded=after > 1, **settings))
    if before == after:
        assert_same_weights(tmp_path / "run", tmp_path / "whole")
        for name in ("predictions-dev.parquet", "datamap.parquet"):
            assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert_close(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("after", [1, 2])
def test_amid_an_epoch_parts_are_put_together_to_be_saved(calm: Path, tmp_path: Path, after: int) -> None:
    together(2, partial(killed_at, 7, calm, tmp_path / "run", sharded=True, epochs=3, checkpoint_minutes=0))
    assert (tmp_path / "run" / "checkpoints" / "step-00000007").is_dir()
    together(after, partial(run, calm, tmp_path / "run", sharded=after > 1, epochs=3))
    together(2, partial(run, calm, tmp_path / "whole", sharded=True, epochs=3))
    assert_close(tmp_path / "run", tmp_path / "whole")
    if after == 2:
        assert_same_weights(tmp_path / "run", tmp_path / "whole")
        assert recorded(tmp_path / "run").observations.tolist() == recorded(tmp_path / "whole").observations.tolist()


def kept(checkpoint: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint / "best.safetensors")


def test_what_is_saved_is_an_ordinary_checkpoint(calm: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    together(2, partial(run, calm, tmp_path / "run", sharded=True))
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run" / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    examples = tiny.examples(4, seed=2)
    inputs = tokenizer(examples.table["text"].to_pylist(), padding=True, return_tensors="pt")
    probs = model(**inputs).logits.softmax(1).detach().numpy()
    written = pq.read_table(tmp_path / "run" / "predictions-test.parquet")
    np.testing.assert_allclose(probs, np.stack([written[f"p_{n}"].to_numpy() for n in tiny.LABELS], 1), atol=1e-5)


def stopped_by_a_bad_row(model: Path, out: Path) -> str:
    """Run until one process has a loss that is not a number, in the second epoch; return what is said."""
    from calmix.mixing import Recipe, choose

    plain, taken = choose("erm").loss, []

    def loss(step: Any) -> Any:
        taken.append(1)
        return plain(step) * (float("nan") if len(taken) == 5 and os.environ["RANK"] == "1" else 1.0)

    with pytest.raises(TrainingError) as error:
        run(model, out, sharded=True, recipe=Recipe(loss), checkpoint_epochs=1)
    return str(error.value)


def test_what_is_not_finite_in_one_process_reaches_no_weight_of_any(calm: Path, tmp_path: Path) -> None:
    for said in together(2, partial(stopped_by_a_bad_row, calm, tmp_path / "run")):
        assert "stopped being finite at step 5; the weights were not touched" in said
    assert all(tensor.isfinite().all() for tensor in kept(tmp_path / "run" / "checkpoints" / "step-00000003").values())


def cut_and_joined(model: Path, folder: Path) -> None:
    """Check, in each of some processes, that parts put together are what was cut."""
    os.environ["ACCELERATE_USE_FSDP"] = "true"
    accelerator = accelerator_for("fp32", (), folder)
    network, _ = load_for_training(str(model), label_names=("one", "two"))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    _, optimizer, shards = trainable(network, accelerator, "adamw", lr=0.1, weight_decay=0.0)
    assert shards is not None
    held = shards.named()
    assert sum(t.numel() for t in held.values()) < 0.6 * sum(t.numel() for t in before.values())
    assert sum(p.numel() for p in network.parameters()) == 0
    for weight in shards.weights:
        weight.grad = weight.detach().clone()
    optimizer.step()
    with torch.no_grad():
        shards.load(shards.parts("weights", before))
    groups = {"weights": held, "optimizer": optimizer_tensors(optimizer)}
    for group, parts in groups.items():
        whole = shards.whole(group, parts)
        assert bool(whole) == accelerator.is_main_process
        if whole:
            again = shards.parts(group, whole)
            assert all(torch.equal(again[name], part) for name, part in parts.items())
    with shards.put_together():
        assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert sum(p.numel() for p in network.parameters()) == 0
    shards.leave()
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_each_process_holds_its_part_and_together_they_are_the_whole(calm: Path, tmp_path: Path) -> None:
    together(3, partial(cut_and_joined, calm, tmp_path))


def test_one_process_has_nothing_to_share(calm: Path, tmp_path: Path) -> None:
    (alone,) = together(1, partial(run, calm, tmp_path / "one", sharded=True))
    (plain,) = together(1, partial(run, calm, tmp_path / "plain", sharded=False))
    assert alone["splits"] == plain["splits"]
    assert_same_weights(tmp_path / "one", tmp_path / "plain")


def test_single_numbers_are_not_cut(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    model.scale = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(InputError, match="weights that are single numbers"):
        Shards(model, accelerator_for("fp32", (), tmp_path))
