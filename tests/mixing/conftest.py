"""A batch on its way through a tiny model."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from calmix.mixing import Step, fill_tokens
from calmix.models import encode, load_trained, pack_images

MakeStep = Callable[..., Step]


@pytest.fixture
def make_step(checkpoint: Any) -> MakeStep:
    """Return `make_step(architecture, kind=…, rows=…)`: uneven texts, a model in training mode, dropout at 0."""

    def make(
        architecture: str = "bert",
        *,
        kind: str = "text",
        rows: int = 5,
        seed: int = 0,
        width: int | None = None,
        of: int = 3,
    ) -> Step:
        choices = of if kind == "choices" else None
        model, tokenizer = load_trained(checkpoint(architecture, choices=kind == "choices"))
        examples = tiny.examples(rows, kind=kind, counts=(of,), seed=seed)
        packed = encode(examples, tokenizer, max_length=tiny.POSITIONS)
        every = torch.arange(rows)
        return Step(
            model=tiny.without_dropout(model).train(),
            inputs=packed.batch(every, width=width or packed.width(every.numpy()), choices=choices),
            targets=torch.nn.functional.one_hot(torch.from_numpy(examples.labels), choices or 3).float(),
            generator=torch.Generator().manual_seed(seed),
            fill=fill_tokens(tokenizer),
            rows=every,
            signals={"teacher": torch.randn(rows, choices or 3, generator=torch.Generator().manual_seed(seed + 1))},
        )

    return make


@pytest.fixture
def image_step(image_checkpoint: Any) -> MakeStep:
    """Return `image_step(architecture)`: five images and a model whose batch norm and dropout stand still."""

    def make(architecture: str = "convnet", *, seed: int = 0) -> Step:
        model, how = load_trained(image_checkpoint(architecture))
        examples, every = tiny.images(5, seed=seed), torch.arange(5)
        return Step(
            model=model,
            inputs=pack_images(examples, how).batch(every),
            targets=torch.nn.functional.one_hot(torch.from_numpy(examples.labels), 3).float(),
            generator=torch.Generator().manual_seed(seed),
            rows=every,
        )

    return make


@pytest.fixture
def gradients_of() -> Callable[[Step, torch.Tensor], dict[str, torch.Tensor]]:
    """Return `gradients_of(step, loss)`: the gradient of every parameter by name, zeros where there is none."""

    def gradients(step: Step, loss: torch.Tensor) -> dict[str, torch.Tensor]:
        step.model.zero_grad()
        loss.backward()
        return {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in step.model.named_parameters()
        }

    return gradients


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    """A process group of one: wrapping, hooks and gradient exchange are those of many."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
