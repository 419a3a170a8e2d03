"""One, two and three processes do the same: gradients, dynamics, figures, and every sample once."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny
import torch
from accelerate import Accelerator
from ranks import free_port, together
from runs import assert_same_dynamics, recorded, weights

import calmix
from calmix.data import write_table
from calmix.errors import InputError
from calmix.mixing import choose, fill_tokens
from calmix.models import encode, load_for_training
from calmix.training import loop, train
from calmix.training.batches import epoch_steps, training_set
from calmix.training.interrupting import Interrupted
from calmix.training.optimising import adamw
from calmix.training.stepping import Stepper

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def gradients(model: Path, rows: int, batch_size: int, accumulate: int, classes: Any) -> list[list[torch.Tensor]]:
    """Return the gradient of every step of an epoch, whose weights stay as they are."""
    from calmix.training.launching import processes
    from calmix.training.preparing import class_weights_of

    state = processes()
    data = tiny.examples(rows)
    torch.manual_seed(0)
    network, tokenizer = load_for_training(str(model), label_names=data.label_names)
    network.train()
    packed = training_set(data, encode(data, tokenizer, max_length=32), class_weights_of(data, classes))
    optimizer = adamw(network.parameters(), lr=0.0, weight_decay=0.0)
    kept: list[list[torch.Tensor]] = []
    optimizer.register_step_pre_hook(
        lambda o, *_: kept.append([p.grad.clone() for group in o.param_groups for p in group["params"]])
    )
    recipe = choose("erm")
    stepper = Stepper(
        network, packed, recipe, Accelerator(cpu=True), optimizer, fill=fill_tokens(tokenizer), seed=1, clip=0.0
    )
    share = {"rank": state.process_index, "world": state.num_processes}
    parts = epoch_steps(packed, recipe, 0, batch_size=batch_size, accumulate=accumulate, seed=1, **share)
    for number, each in enumerate(parts):
        stepper.step(each, number, 0.0)
    return kept


@pytest.mark.parametrize(
    ("rows", "batch_size", "accumulate", "classes"),
    [(23, 7, 1, None), (25, 8, 2, "balanced"), (5, 2, 1, None)],  # last batches of 2 and 1 rows, for 3 processes
)
def test_gradients_are_those_of_one_process_to_the_last_uneven_batch(
    calm: Path, rows: int, batch_size: int, accumulate: int, classes: Any
) -> None:
    work = partial(gradients, calm, rows, batch_size, accumulate, classes)
    (alone,) = together(1, work)
    for world in (2, 3):
        for shared in together(world, work):
            assert len(shared) == len(alone) == -(-rows // batch_size)
            for ours, theirs in zip(shared, alone, strict=True):
                for a, b in zip(ours, theirs, strict=True):
                    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def run(model: Path, out: Path, rows: int, **changes: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"epochs": 2, "lr": 1e-2, "select": "none", "seed": 3, "batch_size": 8}
    settings |= {"dev": tiny.examples(7, seed=1), "test": tiny.examples(4, seed=2)}
    return train(tiny.examples(rows), model=model, out=out, **settings | changes).metrics


@pytest.mark.parametrize("rows", [25, 10])
def test_a_run_of_several_processes_is_that_of_one(calm: Path, tmp_path: Path, rows: int) -> None:
    (alone,) = together(1, partial(run, calm, tmp_path / "1", rows))
    one = recorded(tmp_path / "1")
    assert one.observations.tolist() == [2] * rows
    for world in (2, 3):
        folder = tmp_path / str(world)
        told = together(world, partial(run, calm, folder, rows))
        assert all(metrics == told[0] for metrics in told)
        assert_same_dynamics(one, recorded(folder), rtol=1e-3, atol=1e-4)
        a, b = weights(tmp_path / "1"), weights(folder)
        for name in a:
            if not name.endswith("key.bias"):  # its gradient is rounding alone, which Adam blows up
                torch.testing.assert_close(a[name], b[name], rtol=1e-3, atol=1e-4)
        for split in ("dev", "test"):
            ours, theirs = (pq.read_table(tmp_path / n / f"predictions-{split}.parquet") for n in ("1", str(world)))
            assert ours["id"] == theirs["id"]
        assert told[0]["rows"] == alone["rows"]
        assert [entry["step"] for entry in told[0]["epochs"]] == [entry["step"] for entry in alone["epochs"]]


def test_several_processes_begin_with_the_head_of_one(calm_anew: Path, tmp_path: Path) -> None:
    (alone,) = together(1, partial(run, calm_anew, tmp_path / "1", 25, epochs=0))
    for world in (2, 3):
        told = together(world, partial(run, calm_anew, tmp_path / str(world), 25, epochs=0))
        assert all(metrics == told[0] for metrics in told)
        assert told[0]["epochs"][0]["dev"] == alone["epochs"][0]["dev"]
        assert told[0]["temperature"] == pytest.approx(alone["temperature"], rel=1e-4)
        a, b = weights(tmp_path / "1"), weights(tmp_path / str(world))
        for name in a:  # the temperature is inside of the last layer's
            near = {"rtol": 1e-4, "atol": 1e-6} if name.startswith("classifier") else {"rtol": 0, "atol": 0}
            torch.testing.assert_close(a[name], b[name], **near)


def test_several_processes_go_on_from_a_fitted_head_and_fold_as_one(calm_anew: Path, tmp_path: Path) -> None:
    folded = {"dev": None, "folds": 2, "epochs": 1, "checkpoint_minutes": 0}
    (alone,) = together(1, partial(run, calm_anew, tmp_path / "1", 25, **folded))
    told = together(2, partial(run, calm_anew, tmp_path / "2", 25, **folded))
    assert told[0] == told[1]
    assert [entry["epoch"] for entry in told[0]["epochs"]] == [0, 1]
    for ours, theirs in zip(told[0]["epochs"], alone["epochs"], strict=True):
        assert ours["dev"]["nll"] == pytest.approx(theirs["dev"]["nll"], rel=1e-3)
    a, b = weights(tmp_path / "1"), weights(tmp_path / "2")
    for name in a:
        if not name.endswith("key.bias"):
            torch.testing.assert_close(a[name], b[name], rtol=1e-3, atol=1e-4)


def same_logits(model: Path, out: Path) -> dict[str, Any]:
    """Train with logits that depend on the row alone: what differs then between processes is not arithmetic."""

    def told(_model: Any, packed: Any, *, rows: Any = None, **_: Any) -> Any:
        chosen = np.arange(len(packed)) if rows is None else np.asarray(rows)
        lengths = packed.host_lengths[chosen]
        return np.stack([np.sin(lengths + k + chosen / 7) for k in range(3)], 1).astype(np.float32)

    loop.predict_logits = told
    return run(model, out, 25, lr=0.0, schedule="constant")


def test_figures_are_the_same_to_the_last_digit_given_the_same_logits(calm: Path, tmp_path: Path) -> None:
    (alone,) = together(1, partial(same_logits, calm, tmp_path / "1"))
    for world in (2, 3):
        for found in together(world, partial(same_logits, calm, tmp_path / str(world))):
            assert found["temperature"] == pytest.approx(alone["temperature"], abs=1e-12)
            for split in ("dev", "test"):
                for stage in ("before", "after"):
                    ours, theirs = found["splits"][split][stage], alone["splits"][split][stage]
                    assert ours.keys() == theirs.keys()
                    for name, value in theirs.items():
                        assert ours[name] == (pytest.approx(value, abs=1e-12) if isinstance(value, float) else value)
        predictions = [pq.read_table(tmp_path / n / "predictions-dev.parquet") for n in ("1", str(world))]
        assert predictions[0].equals(predictions[1])


def test_what_the_main_process_cannot_do_ends_all(calm: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")

    def refused() -> str:
        try:
            run(calm, tmp_path / "full", 10)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "nothing was wrong"

    found = together(3, refused)
    assert len(set(found)) == 1
    assert "is not empty and holds no run of ours" in found[0]


def test_a_finished_run_is_returned_by_every_process_and_told_by_one(calm: Path, tmp_path: Path) -> None:
    def twice() -> tuple[bool, int]:
        told: list[str] = []
        first = run(calm, tmp_path / "run", 10)
        return run(calm, tmp_path / "run", 10, on_note=told.append) == first, len(told)

    assert together(2, twice) == [(True, 1), (True, 0)]
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["rows"]["train"] == 10


def disturbed(happens: Callable[[], object], number: int, *args: Any, **changes: Any) -> str:
    """Train in three epochs of three steps, something happening in the given step; return what became of it."""
    step, taken = Stepper.step, []

    def counted(self: Stepper, *told: Any) -> None:
        taken.append(1)
        if len(taken) == number:
            happens()
        step(self, *told)

    Stepper.step = counted  # type: ignore[method-assign]  # in a process of its own
    loop._ASK = 1
    try:
        run(*args, epochs=3, **changes)
    except (Interrupted, ZeroDivisionError) as stop:
        return str(stop)
    return "done"


def nothing() -> None:
    pass


def press() -> None:
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGINT)


def same(one: Path, other: Path) -> bool:
    """Return whether two runs came to the same weights, predictions, and records of every sample."""
    names = ("model/model.safetensors", "predictions-dev.parquet", "datamap.parquet")
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


@pytest.mark.parametrize("recipe", ["erm", "aum-saliency"])
@pytest.mark.parametrize("after", [2, 3])
def test_a_ctrl_c_in_one_process_stops_all_at_the_same_step_and_any_number_goes_on(
    calm: Path, tmp_path: Path, recipe: str, after: int
) -> None:
    more: dict[str, Any] = {"recipe": recipe, "online": recipe == "aum-saliency"}
    said = "stopped at step 5 of 9, saved; the same command goes on from there"
    out, whole = tmp_path / "run", tmp_path / "whole"
    assert together(2, lambda: disturbed(press, 5, calm, out, 24, **more)) == [said] * 2
    assert together(after, lambda: disturbed(nothing, 0, calm, out, 24, **more)) == ["done"] * after
    if after == 2:
        assert together(2, lambda: disturbed(nothing, 0, calm, whole, 24, **more)) == ["done"] * 2
        assert same(out, whole)
    first, *losses = [json.loads(line)["loss"] for line in (out / "log.jsonl").read_text().splitlines()]
    assert first is None
    assert len(losses) == 3
    assert losses[2] < losses[0]
    assert recorded(out).observations.tolist() == [3] * 24


def test_a_ctrl_c_while_one_process_measures_the_last_epoch_stops_all(calm: Path, tmp_path: Path) -> None:
    def pressed() -> str:
        entry, measured = loop.epoch_entry, []

        def counted(*args: Any, **told: Any) -> Any:
            measured.append(1)
            if len(measured) == 3:
                press()
            return entry(*args, **told)

        loop.epoch_entry = counted  # in a process of its own
        return disturbed(nothing, 0, calm, tmp_path / "run", 24)

    assert together(2, pressed) == ["stopped at step 9 of 9, saved; the same command goes on from there"] * 2
    assert together(2, lambda: disturbed(nothing, 0, calm, tmp_path / "run", 24)) == ["done"] * 2
    assert together(2, lambda: disturbed(nothing, 0, calm, tmp_path / "whole", 24)) == ["done"] * 2
    assert same(tmp_path / "run", tmp_path / "whole")


def test_checkpoints_in_the_middle_of_an_epoch_are_gone_on_from(calm: Path, tmp_path: Path) -> None:
    def die() -> None:
        raise ZeroDivisionError("died")

    out, whole = tmp_path / "run", tmp_path / "whole"
    assert together(2, lambda: disturbed(die, 6, calm, out, 24, checkpoint_minutes=0)) == ["died"] * 2
    assert (out / "checkpoints" / "step-00000005").is_dir()
    assert together(2, lambda: disturbed(nothing, 0, calm, out, 24)) == ["done"] * 2
    assert together(2, lambda: disturbed(nothing, 0, calm, whole, 24)) == ["done"] * 2
    assert same(out, whole)


# One process dies once, in the middle of the second epoch, as a machine would that loses its power.
DYING = """
import os, signal
from pathlib import Path
from calmix.recipes import Recipe, clean

taken = []

def recipe() -> Recipe:
    term, died = clean(), Path(__file__).with_name("died")
    def loss(step):
        taken.append(1)
        if len(taken) == 6 and os.environ.get("RANK") == "1" and not died.exists():
            died.write_text("once")
            os.kill(os.getpid(), signal.SIGKILL)
        return term(step)
    return Recipe(loss)
"""


def launched(*words: str, folder: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    """Start a launcher; where its words say PORT, a free one is put."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(calmix.__file__).parents[1]),
        "ACCELERATE_USE_CPU": "true",
        **more,
    }
    return subprocess.run(
        [sys.executable, "-m", *(word.replace("PORT", str(free_port())) for word in words)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        cwd=folder,
        check=False,
    )


@pytest.fixture
def command(calm: Path, tmp_path: Path) -> list[str]:
    """The words of a training command, its table and recipe written to the folder."""
    for name, seed in (("train", 0), ("dev", 1)):
        examples = tiny.examples(24, seed=seed)
        labels = pa.array([examples.label_names[k] for k in examples.labels])
        write_table(examples.table.append_column("label", labels), tmp_path / f"{name}.csv")
    (tmp_path / "mine.py").write_text(DYING)
    words = ["calmix", "train", "train.csv", "--dev", "dev.csv", "--model", str(calm), "--recipe", "mine.py:recipe"]
    return [*words, "--batch-size", "8", "--lr", "1e-2", "--checkpoint-epochs", "1", "--no-report", "--out"]


@pytest.mark.slow
def test_a_lost_process_is_started_again_and_the_run_goes_on_to_the_same_result(
    command: list[str], tmp_path: Path
) -> None:
    # With a fixed port, torchrun's store lives on and still has the addresses of the first attempt.
    launcher = ["torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1", "--master-port", "PORT", "-m"]
    done = launched(*launcher, *command, "lost", folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "died").exists()
    done = launched(*launcher, *command, "whole", folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    for name in ("model/model.safetensors", "predictions-dev.parquet", "datamap.parquet"):
        assert (tmp_path / "lost" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("way", "sharded"), [("--multi_gpu", "false"), ("--use_fsdp", "true")])
def test_accelerate_starts_processes_that_come_to_the_result_of_torchruns(
    command: list[str], tmp_path: Path, way: str, sharded: str
) -> None:
    (tmp_path / "died").write_text("")
    launcher = ["accelerate.commands.launch", way, "--num_processes", "2", "--num_machines", "1"]
    launcher += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "PORT"]
    done = launched(*launcher, "-m", *command, "accelerate", folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    torchrun = ["torch.distributed.run", "--nproc-per-node", "2", "--master-port", "PORT", "-m"]
    done = launched(*torchrun, *command, "torchrun", folder=tmp_path, ACCELERATE_USE_FSDP=sharded)
    assert done.returncode == 0, done.stderr[-3000:]
    for name in ("model/model.safetensors", "predictions-dev.parquet", "datamap.parquet"):
        assert (tmp_path / "accelerate" / name).read_bytes() == (tmp_path / "torchrun" / name).read_bytes()


@pytest.mark.slow
def test_accelerate_starts_processes_that_train_on_images(tmp_path: Path) -> None:
    tiny.build_image("convnet", tmp_path / "net")
    for split, rows in (("train", 27), ("dev", 11)):
        tiny.image_folder(tmp_path / "images" / split, rows, seed=rows)
    words = ["calmix", "train", "images/train", "--dev", "images/dev", "--model", "net", "--recipe", "input-mixup"]
    words += ["--batch-size", "8", "--epochs", "2", "--optimizer", "sgd", "--lr", "1e-2", "--no-report", "--out"]
    launcher = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    launcher += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "PORT"]
    torchrun = ["torch.distributed.run", "--nproc-per-node", "2", "--master-port", "PORT"]
    for out, way in (("accelerate", launcher), ("torchrun", torchrun)):
        done = launched(*way, "-m", *words, out, folder=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
    for name in ("model/model.safetensors", "predictions-dev.parquet"):
        assert (tmp_path / "accelerate" / name).read_bytes() == (tmp_path / "torchrun" / name).read_bytes()
    assert pq.read_table(tmp_path / "accelerate" / "predictions-dev.parquet").num_rows == 11
    # Both took part: what one process alone makes, whose mixes are of whole batches, is something else.
    alone = launched(*words, "alone", folder=tmp_path)
    assert alone.returncode == 0, alone.stderr[-3000:]
    two, one = (weights(tmp_path / out) for out in ("accelerate", "alone"))
    assert any(not torch.equal(two[name], one[name]) for name in two)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("ACCELERATE_USE_DEEPSPEED", "told to spread the model by DEEPSPEED, which is not done here: launch with"),
        ("ACCELERATE_USE_TP", "told to spread the model by TP"),
        ("FSDP_OFFLOAD_PARAMS", "told FSDP_OFFLOAD_PARAMS, which is not done here: launch without; --accumulate"),
        ("FSDP_ACTIVATION_CHECKPOINTING", "launch without; --gradient-checkpointing does it"),
    ],
)
def test_what_is_not_done_with_shards_is_refused_in_one_line(
    calm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, said: str
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv(told, "true")
    with pytest.raises(InputError, match=said):
        run(calm, tmp_path / "run", 10)
    assert not (tmp_path / "run").exists()


def refusal(model: Path, out: Path) -> str:
    """Return what a run of input mixup is refused with."""
    with pytest.raises(InputError) as caught:
        train(tiny.examples(8), dev=tiny.examples(4, seed=1), model=model, recipe="input-mixup", out=out)
    return str(caught.value)


def test_a_network_that_cannot_be_mixed_is_refused_by_every_process(checkpoint_of: Any, tmp_path: Path) -> None:
    one, two = together(2, partial(refusal, checkpoint_of("bart"), tmp_path / "run"))
    assert one == two
    assert "cannot be mixed at the input" in one
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_in_shards_is_loaded_trained_and_saved_whole(calm: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(calm)
    model.save_pretrained(tmp_path / "shards", max_shard_size="10KB")
    AutoTokenizer.from_pretrained(calm).save_pretrained(tmp_path / "shards")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    run(tmp_path / "shards", tmp_path / "run", 10)
    run(calm, tmp_path / "whole", 10)
    a, b = weights(tmp_path / "run"), weights(tmp_path / "whole")
    assert all(torch.equal(a[name], b[name]) for name in a)
