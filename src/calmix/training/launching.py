"""One process or several: how each is set up and ends, and what the main one decides for all."""

import atexit
import gc
import importlib
import math
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import (
    DistributedDataParallelKwargs,
    broadcast_object_list,
    gather_object,
    parse_flag_from_env,
    patch_environment,
)
from torch import nn

from calmix.errors import InputError, TrainingError
from calmix.models import reads_pixels
from calmix.processors import limit_threads

__all__ = [
    "Precision",
    "accelerator_for",
    "from_main",
    "is_lowered",
    "named_trackers",
    "over_all",
    "placed",
    "precision_for",
    "processes",
    "sharding_asked",
    "share_statistics",
    "start_trackers",
    "threads_here",
    "unwrap",
    "wrap",
]

Precision = Literal["auto", "fp32", "bf16"]
T = TypeVar("T")

# Ways of accelerate to have each process hold a part of the model that are not here, as its environment names them.
_REFUSED = ("DEEPSPEED", "MEGATRON_LM", "TP")

# What accelerate may be told about sharding that would silently be missed here, and what there is instead.
_NOT_SHARDED = {
    "FSDP_OFFLOAD_PARAMS": "--accumulate and --gradient-checkpointing save memory",
    "FSDP_ACTIVATION_CHECKPOINTING": "--gradient-checkpointing does it",
}

# What a training step gains is less than what its matrix products gain.
_WORTH_IT = 1.5


def processes() -> PartialState:
    """Return where this process stands among those started with it.

    A group of them that is made here ends with the process; one that was there before is for others to end.
    """
    # transformers would otherwise load weights in the main process alone, as accelerate's own FSDP wants it.
    os.environ.pop("FSDP_CPU_RAM_EFFICIENT_LOADING", None)
    alone = torch.distributed.is_available() and not torch.distributed.is_initialized()
    if alone:
        # Functions there have the group of their import for a default. DDP imports them late: they would keep it.
        importlib.import_module("torch.distributed.nn.functional")
    state = PartialState(cpu=_on_cpu(), **_meeting())
    if alone and torch.distributed.is_initialized():
        atexit.register(_leave)
    return state


def _leave() -> None:
    """End the group while Python is whole: gloo's threads then let go of what they hold, and end.

    They may hold the tensors of an exchange for a moment longer than those who waited for it. A thread that lets go of
    them when Python is being taken down aborts the process, after all its work is done.
    """
    if torch.distributed.is_initialized() and torch.distributed.get_backend() == "gloo":
        torch.distributed.destroy_process_group()
        gc.collect()  # models in shards are cycles, and hold it too


def threads_here() -> int:
    """Return how many threads torch computes with, from now on no more than there are processors for this process.

    To be asked before `processes`: where nobody chose a number, accelerate would choose one by the whole machine.
    """
    limit_threads()
    return torch.get_num_threads()


def _meeting() -> dict[str, Any]:
    """Return where processes that torchrun has started again find each other; empty: where torch would have them.

    torchrun's store outlives a restart (unless its rendezvous is c10d) and still has the addresses of those who died:
    whoever reads them before they are written anew calls where nobody is. So every attempt has keys of its own.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if attempt == "0" or not shared or torch.distributed.is_initialized():
        return {}
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, is_master=False)
    return {"store": PrefixStore(f"calmix-{attempt}", store), "rank": rank, "world_size": world}


def _on_cpu() -> bool:
    # Unless it is told, accelerate takes several processes without a GPU for as many runs of their own.
    return parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()


def from_main(make: Callable[[], T]) -> T:
    """Return on every process what the main one makes; what fails there fails everywhere, so that nobody waits."""
    state = processes()
    if state.num_processes == 1:
        return make()
    held: list[Any] = [None, None]
    if state.is_main_process:
        try:
            held[0] = make()
        except Exception as error:
            known = isinstance(error, InputError | TrainingError)
            held[1] = error if known else TrainingError(f"the main process failed: {type(error).__name__}: {error}")
            _tell(held, state)
            raise
    _tell(held, state)
    if held[1] is not None:
        raise held[1]
    made: T = held[0]
    return made


def _tell(held: list[Any], state: PartialState) -> None:
    broadcast_object_list(held)
    # The main process may end right after: not before everybody has heard.
    state.wait_for_everyone()


def accelerator_for(precision: str, track: Sequence[str], folder: Path) -> Accelerator:
    """Return an accelerator of this precision, whatever ran before in this process."""
    _check_launch()
    # Its state is global and keeps the precision of the run before.
    AcceleratorState._reset_state()
    # Weights are sharded here (see `Shards`), not by accelerate, which would wrap the optimiser too.
    with patch_environment(ACCELERATE_USE_FSDP="false"):
        return Accelerator(
            cpu=_on_cpu(),
            mixed_precision="bf16" if precision == "bf16" else "no",
            log_with=list(track) or None,
            project_dir=folder,
            kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)],
        )


def sharding_asked() -> bool:
    """Return whether accelerate was told to have each process hold a part of the weights."""
    return bool(parse_flag_from_env("ACCELERATE_USE_FSDP"))


def _check_launch() -> None:
    """Refuse what accelerate was told to do with the model and is not done here."""
    other = next((name for name in _REFUSED if parse_flag_from_env(f"ACCELERATE_USE_{name}")), None)
    if other is not None:
        raise InputError(
            f"accelerate was told to spread the model by {other}, which is not done here: launch with --use_fsdp, "
            "or without; --accumulate and --gradient-checkpointing save memory"
        )
    if sharding_asked():
        for name, instead in _NOT_SHARDED.items():
            if parse_flag_from_env(name):
                raise InputError(f"accelerate was told {name}, which is not done here: launch without; {instead}")


def precision_for(asked: Precision) -> str:
    """Return the arithmetic to use here: what was asked for, or what `accelerate` was told, or the faster one.

    On GPUs that is bf16 wherever they have it. Processors are timed: some multiply matrices in bf16 twice as fast
    as in float32, others fifteen times slower.
    """
    told = os.environ.get("ACCELERATE_MIXED_PRECISION")
    if asked != "auto":
        return asked
    if told in ("no", "bf16"):
        return "bf16" if told == "bf16" else "fp32"
    if torch.cuda.is_available() and not _on_cpu():
        # Not as torch means it, which emulates bf16 on older ones, many times slower.
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return "bf16" if _on_cpu() and _gain_of_bf16() > _WORTH_IT else "fp32"


@cache
def _gain_of_bf16() -> float:
    """Return how many times faster than in float32 this processor multiplies a layer's weights in bf16."""
    weight, tokens = torch.ones(1536, 384), torch.ones(768, 384)
    pairs = [(weight.to(dtype), tokens.to(dtype)) for dtype in (torch.float32, torch.bfloat16)]
    best = [math.inf, math.inf]
    for _ in range(9):
        for kind, (matrix, rows) in enumerate(pairs):
            began = time.perf_counter()
            torch.nn.functional.linear(rows, matrix)
            best[kind] = min(best[kind], time.perf_counter() - began)
    return best[0] / best[1]


def placed(model: nn.Module, accelerator: Accelerator) -> nn.Module:
    """Return the model on the accelerator's device, in the layout that is faster there."""
    if reads_pixels(model):
        # Channels last, as the pixels are.
        return model.to(accelerator.device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
    return model.to(accelerator.device)


def over_all(rows: int, loss: float) -> tuple[int, float]:
    """Return rows and loss summed over all processes."""
    shares = gather_object([(rows, loss)])
    return sum(share[0] for share in shares), math.fsum(share[1] for share in shares)


def share_statistics(model: nn.Module, accelerator: Accelerator) -> None:
    """Give every process the mean of what each has seen: the running statistics of batch norm."""
    if accelerator.num_processes > 1:
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.copy_(accelerator.reduce(buffer, reduction="mean"))


def wrap(model: nn.Module, accelerator: Accelerator) -> nn.Module:
    """Return the model as it is to be called: in lower precision, and with others, as the accelerator has it."""
    with warnings.catch_warnings():
        # Newer versions of torch have another name for this option, which those we support do not all know.
        warnings.filterwarnings("ignore", message=".*broadcast_buffers", category=FutureWarning)
        wrapped: nn.Module = accelerator.prepare_model(model)
    return wrapped


def is_lowered(model: nn.Module) -> bool:
    """Return whether the accelerator computes a model's forward in lower precision."""
    return "_original_forward" in vars(model)


def unwrap(model: nn.Module) -> None:
    """Take the accelerator's lower-precision forward off a model: its class's own is underneath. And its layout.

    `Accelerator.unwrap_model` would strip the forward of transformers' own decorators, too.
    """
    for name in ("forward", "_original_forward"):
        model.__dict__.pop(name, None)
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


def named_trackers(track: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of trackers; refuse those that accelerate does not know or that are not installed."""
    from accelerate.tracking import LoggerType, get_available_trackers

    known = [str(name) for name in LoggerType if str(name) != "all"]
    installed = {str(name) for name in get_available_trackers()}
    names = (track,) if isinstance(track, str) else tuple(track)
    for name in names:
        if name not in known:
            raise InputError(f"--track {name}: there is no such tracker (there are: {', '.join(known)})")
        if name not in installed:
            raise InputError(f"--track {name}: it is not installed; pip install {name}")
    return names


def start_trackers(accelerator: Accelerator, track: Sequence[str], config: Mapping[str, Any]) -> None:
    """Begin to track a run, with its settings."""
    if track:
        plain = {name: value for name, value in config.items() if isinstance(value, int | float | str)}
        accelerator.init_trackers("calmix", config=plain)
