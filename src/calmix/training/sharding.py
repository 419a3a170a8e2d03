"""Weights in shards: each process keeps a part of every weight, its gradient and its optimiser's slots."""

import atexit
import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from calmix.errors import InputError
from calmix.models import anatomy
from calmix.training.launching import placed, sharding_asked
from calmix.training.optimising import OptimizerName, optimizer_for

__all__ = ["Shards", "trainable"]


class Shards:
    """A copy of a model, `model`, whose weights are spread over all processes (torch's FSDP2): it is what trains.

    The weights are whole, one layer after the other, only while that layer computes. The plain model gives its own
    away: it has weights again inside of `put_together`, and after `leave`. It is what predicts, since processes
    predict other numbers of batches, and with shards every forward is a meeting of all.

    What the rest of the loop sees of this is plain tensors: `weights`, this process's part of each. They are what the
    optimiser updates, and what is kept by name; `whole` makes of kept parts what a run without shards would have kept,
    and `parts` undoes it, for any number of processes.
    """

    def __init__(self, model: nn.Module, accelerator: Accelerator) -> None:
        # Where loops import this, most runs have no use for the weight of it.
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        if any(parameter.dim() == 0 for parameter in model.parameters()):
            raise InputError("FSDP: this model has weights that are single numbers, which cannot be sharded")
        self.plain, self.accelerator = model, accelerator
        device = accelerator.device
        shared = {id(buffer): buffer for buffer in model.buffers()}
        self.model: Any = copy.deepcopy(model, shared)
        self._empty()
        lower = accelerator.mixed_precision == "bf16"
        # Batch norm must keep float32: autocast sees to it.
        self.autocast = lower and any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
        half = torch.bfloat16 if lower and not self.autocast else None
        mesh = init_device_mesh(device.type, (accelerator.num_processes,))
        # What torch remembers about shards keeps the mesh for good, and in newer versions that keeps the processes'
        # group, which could not end before Python does (see `processes`).
        atexit.register(vars(mesh).get("_pg_registry", {}).clear)
        settings: dict[str, Any] = {
            "mesh": mesh,
            "mp_policy": MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32 if half else None),
        }
        for path in dict.fromkeys(anatomy(self.model).layers):
            fully_shard(self.model.get_submodule(path), **settings)
        fully_shard(self.model, **settings)
        self.sharded: list[Any] = list(self.model.parameters())
        self.weights = [_local(p).requires_grad_(p.requires_grad) for p in self.sharded]
        self.owners: dict[str, Any] = dict(self.model.named_parameters(remove_duplicate=False))
        self.order: list[Any] = []

    def __call__(self, **inputs: Tensor) -> Any:
        """Return what the model returns."""
        with self.accelerator.autocast() if self.autocast else nullcontext():
            return self.model(**inputs)

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Learn in which order an optimiser of `weights` has them."""
        owners = {id(weight): owner for weight, owner in zip(self.weights, self.sharded, strict=True)}
        self.order = [owners[id(weight)] for group in optimizer.param_groups for weight in group["params"]]

    @torch.no_grad()
    def hand_over(self) -> None:
        """Give `weights` the gradients, the mean over all processes, and clear those of the model."""
        for weight, owner in zip(self.weights, self.sharded, strict=True):
            weight.grad = None if owner.grad is None else owner.grad.to_local()
            owner.grad = None

    def total(self, norms: Tensor) -> Tensor:
        """Return the norms over all processes, of those of the parts that each has."""
        squares: Any = self.accelerator.reduce(norms.square(), reduction="sum")
        return squares.sqrt()  # type: ignore[no-any-return]

    def named(self) -> dict[str, Tensor]:
        """Return what this process has of the model's weights, by name; and the buffers, of which each has all."""
        return {name: _local(tensor) for name, tensor in self.model.state_dict().items()}

    @torch.no_grad()
    def load(self, parts: Mapping[str, Tensor]) -> None:
        """Put kept parts back into the model."""
        for name, tensor in self.named().items():
            tensor.copy_(parts[name])

    @torch.no_grad()
    def whole(self, group: str, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what the parts of all processes make, on the main one; nothing on others, which must ask too.

        `group` says what they are: `weights` or `best`, or `optimizer`.
        """
        found: dict[str, Tensor] = {}
        for name, part in parts.items():
            owner = self._owner(group, name, part)
            tensor = part if owner is None else _joined(part, owner)
            if self.accelerator.is_main_process:
                found[name] = tensor.cpu()  # one after the other: a device may not have room for all
        return found

    def parts(self, group: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return this process's parts of whole tensors."""
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        return {
            name: tensor if self._owner(group, name, tensor) is None else _part(tensor, rank, world)
            for name, tensor in tensors.items()
        }

    @contextmanager
    def put_together(self) -> Iterator[None]:
        """Have the plain model whole on every process, for the time being."""
        self._fill()
        try:
            yield
        finally:
            self._empty()

    def leave(self) -> None:
        """Leave the plain model with its weights."""
        self._fill()

    @torch.no_grad()
    def _fill(self) -> None:
        for parameter, owner in zip(self.plain.parameters(), self.sharded, strict=True):
            parameter.data = owner.full_tensor()

    def _empty(self) -> None:
        for parameter in self.plain.parameters():
            parameter.data = torch.empty(0, dtype=parameter.dtype, device=self.accelerator.device)

    def _owner(self, group: str, name: str, tensor: Tensor) -> Any:
        """Return the sharded weight that a tensor is, or belongs to; None for those of which every process has all."""
        if tensor.dim() == 0:  # counters: no weight is a single number
            return None
        if group == "optimizer":
            return self.order[int(name.partition(".")[0])]
        return self.owners.get(name)


def trainable(
    model: nn.Module, accelerator: Accelerator, name: OptimizerName, *, lr: float, weight_decay: float
) -> tuple[nn.Module, torch.optim.Optimizer, Shards | None]:
    """Return the model to train, the optimiser of this name of its weights, and the shards, if it is in any.

    It is in shards if several processes were launched to have it so, and the model itself if not.
    """
    if not sharding_asked() or accelerator.num_processes == 1:
        weights = placed(model, accelerator).parameters()
        return model, optimizer_for(name, weights, lr=lr, weight_decay=weight_decay), None
    shards = Shards(model, accelerator)
    optimizer = optimizer_for(name, shards.weights, lr=lr, weight_decay=weight_decay)
    shards.follow(optimizer)
    return shards.model, optimizer, shards


def _local(tensor: Any) -> Tensor:
    """Return what this process has of a tensor: the same memory."""
    plain = tensor.detach()
    return plain._local_tensor if hasattr(plain, "_local_tensor") else plain  # type: ignore[no-any-return]


def _joined(part: Tensor, owner: Any) -> Tensor:
    from torch.distributed.tensor import DTensor

    spread = DTensor.from_local(
        part, owner.device_mesh, owner.placements, run_check=False, shape=owner.shape, stride=owner.stride()
    )
    return spread.full_tensor()


def _part(tensor: Tensor, rank: int, world: int) -> Tensor:
    """Return one of the parts torch's FSDP cuts a weight into; the last ones may have no rows."""
    chunks = tensor.chunk(world)
    return chunks[rank] if rank < len(chunks) else tensor[:0]
