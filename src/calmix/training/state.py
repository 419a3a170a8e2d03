"""Saved state of an unfinished run: weights and optimiser in safetensors, the rest in JSON, with checksums."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from calmix.data import write_text
from calmix.data.files import naming, sync
from calmix.training.folder import file_hash

__all__ = ["latest", "load_optimizer", "optimizer_tensors", "save_state"]

_KEEP = 2


def save_state(folder: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]) -> None:
    """Write one checkpoint under `folder`, complete or not at all, and drop those before the last two.

    `tensors` holds groups by name (weights, optimizer, …): a file each.
    """
    final = folder / f"step-{step:08d}"
    scratch = folder / f".{final.name}"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        _write(scratch, step, tensors, facts)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)  # half of it would only fill the disk
        raise
    shutil.rmtree(final, ignore_errors=True)
    os.rename(scratch, final)
    sync(folder)
    for old in sorted(folder.glob("step-*"))[:-_KEEP]:
        shutil.rmtree(old, ignore_errors=True)


def _write(scratch: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]) -> None:
    scratch.mkdir(parents=True)
    sums = {}
    for name, group in tensors.items():
        file = scratch / f"{name}.safetensors"
        with naming(file):
            save_file(_apart(group), file)
        sync(file)
        sums[file.name] = file_hash(file)
    write_text(scratch / "state.json", json.dumps({"step": step, "sha256": sums, "facts": facts}, allow_nan=False))


def latest(folder: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]] | None:
    """Return the tensors and facts of the newest checkpoint whose checksums hold, or None."""
    for candidate in sorted(folder.glob("step-*"), reverse=True):
        try:
            state = json.loads((candidate / "state.json").read_text(encoding="utf-8"))
            for name, checksum in state["sha256"].items():
                if file_hash(candidate / name) != checksum:
                    raise ValueError(name)
            tensors = {Path(name).stem: load_file(candidate / name) for name in state["sha256"]}
            facts = dict(state["facts"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        return tensors, facts
    return None


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimiser's state as named tensors."""
    state = optimizer.state_dict()["state"]
    return {f"{i}.{name}": value for i, slots in state.items() for name, value in slots.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put the named tensors back into the optimiser."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, _, slot = name.partition(".")
        state.setdefault(int(index), {})[slot] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    for parameter, slots in optimizer.state.items():
        for slot, value in slots.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                # Fused kernels go through memory in the order of the weights, which may have their channels last.
                slots[slot] = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def _apart(group: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors on the host, none sharing memory with another: safetensors refuses tied weights."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in group.items():
        host = tensor.detach().contiguous().cpu()
        where = host.untyped_storage().data_ptr()
        found[name] = host.clone() if where in seen else host
        seen.add(where)
    return found
