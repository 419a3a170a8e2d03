"""A captured step does what the plain one does. Needs a GPU: skipped, by name, where there is none."""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import architectures
import numpy as np
import pytest
import tiny
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from calmix.dynamics import Dynamics
from calmix.mixing import RECIPES, choose, fill_tokens, fused
from calmix.models import encode, load_for_training
from calmix.training import train
from calmix.training.batches import Part, epoch_steps, training_set
from calmix.training.branching import Branch
from calmix.training.capturing import Captures
from calmix.training.guiding import Guidance
from calmix.training.halves import Run
from calmix.training.optimising import adamw
from calmix.training.stepping import Stepper
from calmix.training.together import train_together

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="captured steps need a CUDA device")

RECIPES_IN_THE_LOOP = [name for name in RECIPES if name != "back-translation"]


def stepping(
    folder: Path, recipe: str, *, capture: bool, precision: str, sides: bool = False
) -> tuple[Stepper, Callable[[int], Iterator[list[Part]]]]:
    """Return a stepper over a few texts, of which with `sides` every second is easy, and what lays out its epochs."""
    AcceleratorState._reset_state()
    accelerator = Accelerator(mixed_precision=precision)
    torch.manual_seed(0)
    examples = tiny.examples(96)
    model, tokenizer = load_for_training(str(folder), label_names=examples.label_names)
    model.to(accelerator.device).train()
    data = training_set(examples, encode(examples, tokenizer, max_length=32)).to(accelerator.device)
    method = choose(recipe)
    optimizer = adamw(model.parameters(), lr=1e-3, weight_decay=0.01)
    given = {}
    if method.taught:
        given["teacher"] = torch.randn(len(examples), 3, generator=torch.Generator().manual_seed(5))
    if sides:
        given["side"] = torch.arange(len(examples)) % 2
    given = {name: signal.to(accelerator.device) for name, signal in given.items()}
    guidance = Guidance(method, model, data, accelerator, given=given) if given else None
    stepper = Stepper(
        model,
        data,
        method,
        accelerator,
        optimizer,
        fill=fill_tokens(tokenizer),
        seed=1,
        clip=1.0,
        guidance=guidance,
        capture=capture,
    )
    return stepper, partial(epoch_steps, data, method, batch_size=16, accumulate=1, seed=1, rank=0, world=1)


Weights = dict[str, torch.Tensor]


def weights_of(stepper: Stepper) -> Weights:
    # A key's bias adds the same to all scores of a query: its gradient is rounding, which Adam makes steps of.
    named = stepper.model.named_parameters()
    return {name: weight.detach().clone() for name, weight in named if not name.endswith("key.bias")}


def run(
    folder: Path, recipe: str, *, capture: bool, precision: str = "no", steps: int = 40, sides: bool = False
) -> tuple[list[float], Weights, int]:
    """Return the loss of each step, by how much each weight has moved, and how many graphs were captured."""
    stepper, layout = stepping(folder, recipe, capture=capture, precision=precision, sides=sides)
    losses: list[float] = []
    before = weights_of(stepper)
    number = 0
    for epoch in range(1000):
        for parts in layout(epoch):
            stepper.step(parts, number, 1e-3 * (1 - number / steps))
            losses.append(stepper.read(None)[1])
            number += 1
            if number == steps:
                moved = {name: weight - before[name] for name, weight in weights_of(stepper).items()}
                return losses, moved, len(stepper.captures.graphs) if stepper.captures else 0
    raise AssertionError


def check_moves(found: Weights, wanted: Weights, near: float) -> None:
    """Check that every weight has moved as far, and where, as it should have."""
    assert found.keys() == wanted.keys()
    for name, move in wanted.items():
        far = float((found[name] - move).norm())
        assert far <= near * float(move.norm()), f"{name}: {far} apart, moved by {float(move.norm())}"


@pytest.mark.parametrize(("precision", "near"), [("no", 1e-3), ("bf16", 2e-2)])
@pytest.mark.parametrize("recipe", RECIPES_IN_THE_LOOP)
def test_captured_steps_give_the_losses_and_weights_of_plain_ones(
    recipe: str, precision: str, near: float, checkpoint: Callable[..., Path]
) -> None:
    losses, moves, none = run(checkpoint("bert", heads=1), recipe, capture=False, precision=precision)
    captured_losses, captured_moves, graphs = run(
        checkpoint("bert", heads=1), recipe, capture=True, precision=precision
    )
    assert none == 0
    assert graphs > 0
    torch.testing.assert_close(torch.tensor(captured_losses), torch.tensor(losses), rtol=near, atol=near)
    # AdamW makes a step of the same size of a gradient however small it is: some are nothing but rounding.
    check_moves(captured_moves, moves, 0.1 if precision == "no" else 0.5)


@pytest.mark.parametrize("recipe", ["erm", "input-mixup", "aum-saliency"])
def test_the_fused_update_trains_as_torchs_own_does(
    recipe: str, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    losses, moves, _ = run(checkpoint("bert", heads=1), recipe, capture=True, precision="bf16")
    monkeypatch.setattr("calmix.training.stepping.Fused.serves", lambda *_: False)
    plain_losses, plain_moves, _ = run(checkpoint("bert", heads=1), recipe, capture=True, precision="bf16")
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(plain_losses), rtol=2e-2, atol=2e-2)
    check_moves(moves, plain_moves, 0.5)


@pytest.mark.parametrize("recipe", ["erm", "cls-mixup", "tdmixup", "informed-mixup", "aum-saliency"])
def test_losses_and_partners_by_kernels_train_as_torchs_own_do(
    recipe: str, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []
    for name in ("losses", "partners"):
        ours = getattr(fused, name)
        monkeypatch.setattr(fused, name, lambda *told, n=name, f=ours: used.append(n) or f(*told))
    losses, moves, graphs = run(checkpoint("bert"), recipe, capture=True, sides=True)
    assert graphs > 0
    assert set(used) == ({"losses", "partners"} if recipe == "aum-saliency" else {"losses"})
    used.clear()
    monkeypatch.setattr(fused, "_serves", lambda *_: False)
    plain_losses, plain_moves, _ = run(checkpoint("bert"), recipe, capture=True, sides=True)
    assert not used
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(plain_losses), rtol=1e-3, atol=1e-3)
    check_moves(moves, plain_moves, 0.1)


@pytest.mark.parametrize("recipe", RECIPES_IN_THE_LOOP)
def test_the_host_waits_for_nothing_in_an_epoch_of_captured_steps(recipe: str, checkpoint: Callable[..., Path]) -> None:
    stepper, layout = stepping(checkpoint("bert", heads=1), recipe, capture=True, precision="bf16")
    number = 0
    for epoch in range(6):  # until every kind and shape has been captured
        for parts in layout(epoch):
            stepper.step(parts, number, 1e-3)
            number += 1
    assert stepper.captures is not None
    graphs = len(stepper.captures.graphs)
    batches = list(layout(0))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for parts in batches:
            stepper.step(parts, number, 1e-3)
            number += 1
    finally:
        torch.cuda.set_sync_debug_mode("default")
    stepper.read(None)
    if stepper.variants == 1:  # others may still meet a layer and a length for the first time
        assert len(stepper.captures.graphs) == graphs


def recorded(folder: Path, out: Path, *, capture: bool, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Dynamics:
    """Return the dynamics of a run of four epochs whose steps are captured, or not."""
    told = {"dev": tiny.examples(12, seed=1), "epochs": 4, "batch_size": 16, "lr": 1e-3, "precision": "fp32"} | options
    examples = told.pop("examples", None) or tiny.examples(96)
    with monkeypatch.context() as patch:
        if not capture:
            patch.setattr("calmix.training.stepping.Captures", lambda *_, **__: None)
        train(examples, model=folder, out=out, **told)
    return Dynamics.load(out / "datamap.parquet")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_images_are_trained_with_sgd_by_captured_steps(
    precision: str, image_checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"examples": tiny.images(96), "dev": tiny.images(12, seed=1), "precision": precision, "lr": 0.02}
    plain, captured = (
        recorded(image_checkpoint("convnet"), tmp_path / str(c), capture=c, monkeypatch=monkeypatch, **told)
        for c in (False, True)
    )
    np.testing.assert_allclose(captured.confidence, plain.confidence, atol=0.05)
    assert captured.confidence.mean() > 0.5  # a third would be guessing


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_choices_are_trained_by_captured_steps(
    precision: str, checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = [tiny.examples(n, kind="choices", counts=(2, 3), seed=s) for n, s in ((96, 0), (12, 1))]
    told = {"examples": choices[0], "dev": choices[1], "precision": precision}
    plain, captured = (
        recorded(
            checkpoint("bert", choices=True, heads=1), tmp_path / str(c), capture=c, monkeypatch=monkeypatch, **told
        )
        for c in (False, True)
    )
    np.testing.assert_allclose(captured.confidence, plain.confidence, atol=0.05)


def test_seeds_side_by_side_are_what_they_would_be_alone(
    calm: Path, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """In bf16, by kernels, where nothing is dropped."""
    folder = shutil.copytree(checkpoint("bert", heads=1), tmp_path / "bert")
    shutil.copy(calm / "config.json", folder)
    config = json.loads((folder / "config.json").read_text()) | {"num_attention_heads": 1}
    (folder / "config.json").write_text(json.dumps(config))
    told = {"train": tiny.examples(96), "dev": tiny.examples(24, seed=1), "model": folder, "precision": "bf16"}
    told |= {"epochs": 4, "batch_size": 16, "lr": 1e-3}
    beside = train_together([told | {"seed": seed, "out": tmp_path / f"beside-{seed}"} for seed in range(3)])
    for seed, run in enumerate(beside):
        assert isinstance(run, Run)
        alone = train(**told, seed=seed, out=tmp_path / f"alone-{seed}")
        assert (alone.metrics["trained_beside"], run.metrics["trained_beside"]) == (None, 2)
        one, other = (Dynamics.load(made.folder / "datamap.parquet") for made in (alone, run))
        np.testing.assert_allclose(other.confidence, one.confidence, atol=0.05)
        assert one.confidence.std() > 0.02  # else this would say nothing


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"recipe": "tdmixup", "online": True},
        {"recipe": "aum-saliency"},
        {"recipe": "aum-saliency", "options": {"search": "set"}},
        {"recipe": "aum-saliency", "options": {"search": "set", "similarity": "head"}, "online": True},
        {"record": "evaluation"},
    ],
)
def test_captured_steps_record_what_plain_ones_do(
    options: dict[str, Any], checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, captured = (
        recorded(checkpoint("bert", heads=1), tmp_path / str(c), capture=c, monkeypatch=monkeypatch, **options)
        for c in (False, True)
    )
    if "online" not in options:  # renewed regions may differ by a sample at the edge
        assert captured.observations.tolist() == plain.observations.tolist()
        np.testing.assert_allclose(captured.confidence, plain.confidence, atol=1e-2)
        np.testing.assert_allclose(captured.aum, plain.aum, atol=5e-2)
    assert captured.epochs == 4
    assert (captured.observations >= 1).all()
    assert captured.labels.tolist() == tiny.examples(96).labels.tolist()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_activations_are_recomputed_on_a_gpu(precision: Any, checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    told = {"model": checkpoint("bert", heads=1), "epochs": 2, "batch_size": 16, "precision": precision}
    run = train(tiny.examples(96), dev=tiny.examples(12, seed=1), out=tmp_path, gradient_checkpointing=True, **told)
    assert run.metrics["epochs"][-1]["step"] == 12


@pytest.mark.parametrize("cache", [True, False])
def test_captured_steps_ask_a_teacher_of_another_architecture(
    cache: bool, checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught = {"recipe": "distil", "teacher": checkpoint("roberta"), "cache_teacher": cache}
    plain, captured = (
        recorded(checkpoint("bert", heads=1), tmp_path / str(c), capture=c, monkeypatch=monkeypatch, **taught)
        for c in (False, True)
    )
    np.testing.assert_allclose(captured.confidence, plain.confidence, atol=1e-2)


def test_what_goes_wrong_in_a_capture_is_what_is_told_though_other_streams_are_left_open() -> None:
    captures, branch, rows = Captures(torch.Generator("cuda")), Branch(), torch.arange(4, device="cuda")
    made: list[int] = []

    def step(given: torch.Tensor) -> None:
        made.append(len(made))
        with branch.forked(given):
            given + 1
        if len(made) == 2:
            raise torch.OutOfMemoryError("nothing is left")
        branch.join()

    captures.run("kind", "shape", rows, step)
    with pytest.raises(torch.OutOfMemoryError, match="nothing is left"):
        captures.run("kind", "shape", rows, step)
    assert (rows + 1).tolist() == [1, 2, 3, 4]  # the device goes on


@pytest.mark.parametrize("by", ["torch", "CUDA"])
def test_after_a_capture_that_fails_the_process_goes_on_as_if_it_had_not_begun(
    by: str, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused by torch, which leaves the capture as it is, or by CUDA, which gives the capture up."""
    wanted, moves, _ = run(checkpoint("bert", heads=1), "input-mixup", capture=True)
    plain, _, _ = run(checkpoint("bert", heads=1), "input-mixup", capture=False)
    forward = torch.nn.Linear.forward

    def refused(self: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            torch.ones(1).to(x.device) if by == "torch" else x.sum().item()
        return forward(self, x)

    torch.cuda.synchronize()
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.Linear, "forward", refused)
        losses, _, graphs = run(checkpoint("bert", heads=1), "input-mixup", capture=True)
    assert graphs == 0
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(plain), rtol=1e-4, atol=1e-4)
    again, moves_again, graphs = run(checkpoint("bert", heads=1), "input-mixup", capture=True)
    assert graphs > 0
    torch.testing.assert_close(torch.tensor(again), torch.tensor(wanted), rtol=1e-4, atol=1e-4)
    check_moves(moves_again, moves, 1e-2)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("recipe", ["erm", "input-mixup"])
def test_every_architecture_trains_on_a_gpu(
    architecture: str, recipe: str, precision: Any, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    options = {"model": checkpoint(architecture), "epochs": 3, "batch_size": 16, "lr": 1e-3, "precision": precision}
    run = train(tiny.examples(96), dev=tiny.examples(24, seed=1), out=tmp_path, recipe=recipe, **options)
    losses = trained_losses(run.metrics)
    assert losses[-1] < losses[0]


def trained_losses(metrics: dict[str, Any]) -> list[float]:
    """Return the loss of each epoch of training; epoch 0, before it, has none."""
    return [entry["loss"] for entry in metrics["epochs"] if entry["epoch"] > 0]


# Without those that are not trained at all, and MobileBERT: this tiny, its gradients are NaN on a GPU in plain
# transformers, too.
TRAINED = sorted(set(architectures.types()) - {"layoutlmv2", "perceiver", "reformer"} - {"mobilebert"})


@pytest.mark.slow
@pytest.mark.parametrize("kind", TRAINED)
def test_every_text_classifier_of_transformers_trains_on_a_gpu_captured_or_with_a_note(
    kind: str, checkpoint_of: Callable[[str], Path], tmp_path: Path
) -> None:
    captured: list[int] = []
    plain = Captures.run

    def counted(self: Captures, *args: Any) -> None:
        plain(self, *args)
        captured.append(len(self.graphs))

    options = {"model": checkpoint_of(kind), "epochs": 2, "batch_size": 16, "precision": "fp32", "lean": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Captures, "run", counted)
        run = train(tiny.examples(64), dev=tiny.examples(12, seed=1), out=tmp_path, **options)
    assert run.metrics["epochs"][-1]["step"] == 8
    assert np.isfinite(trained_losses(run.metrics)).all()
    told = any(note.startswith("speed: ") for note in run.metrics["notes"])
    assert told == (captured[-1] == 0)
