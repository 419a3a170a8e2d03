"""Two small moves of the embeddings: towards another sample, and off the data."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from calmix.mixing import Step
from calmix.mixing.manifold import off_manifold, on_manifold
from calmix.mixing.pairing import reversed_batch
from calmix.mixing.targets import cross_entropy, smooth
from calmix.models import head_input, pooled


class _Watch:
    """What each forward through a model was: embeddings the layers read, features the head read, logits."""

    def __init__(self, step: Step) -> None:
        self.embeddings: list[Tensor] = []
        self.features: list[Tensor] = []
        self.logits: list[Tensor] = []
        self.step = step
        # In DeBERTa-v3 and Llama nothing is added to the embeddings before their first reader.
        reader = {"deberta-v2": "deberta.embeddings.LayerNorm", "llama": "model.layers.0"}[step.model.config.model_type]
        step.model.get_submodule(reader).register_forward_pre_hook(self._read, with_kwargs=True)
        step.model.register_forward_hook(lambda _m, _a, out: self.logits.append(out.logits.detach()))

    def _read(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.embeddings.append((args[0] if args else kwargs["hidden_states"]).detach())

    def run(self, term: Any) -> Tensor:
        with head_input(self.step.model, self.step.anatomy) as seen:
            losses = term(self.step)
        config = self.step.model.config
        self.features = [pooled(each, self.step.inputs, config).reshape(len(self.step), -1).detach() for each in seen]
        return losses


def _distance(features: Tensor, other: Tensor) -> Tensor:
    return 1 - torch.cosine_similarity(features, other, dim=-1)


CASES = [("deberta-v2", "text"), ("deberta-v2", "choices"), ("llama", "text")]


@pytest.mark.parametrize(("architecture", "kind"), CASES)
@pytest.mark.parametrize("term", [on_manifold(pairing=reversed_batch, size=0.05, share=0.1), off_manifold(size=0.05)])
def test_a_move_has_the_length_it_is_given(make_step: Any, architecture: str, kind: str, term: Any) -> None:
    watch = _Watch(make_step(architecture, kind=kind, rows=4))
    watch.run(term)
    before, after = watch.embeddings
    lengths = (after - before).flatten(1).norm(dim=1)
    torch.testing.assert_close(lengths, torch.full_like(lengths, 0.05), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("architecture", "kind"), CASES)
def test_the_move_along_the_data_brings_a_sample_nearer_to_its_partner(
    make_step: Any, architecture: str, kind: str
) -> None:
    watch = _Watch(make_step(architecture, kind=kind, rows=4))
    watch.run(on_manifold(pairing=reversed_batch, size=0.02, share=0.1))
    before, after = watch.features
    partner = before[[3, 2, 1, 0]]
    assert (_distance(after, partner) < _distance(before, partner)).all()


@pytest.mark.parametrize(("architecture", "kind"), CASES)
def test_the_move_off_the_data_raises_the_loss(make_step: Any, architecture: str, kind: str) -> None:
    step = make_step(architecture, kind=kind, rows=4)
    watch = _Watch(step)
    watch.run(off_manifold(size=0.02))
    before, after = watch.logits
    assert (cross_entropy(after, step.targets) > cross_entropy(before, step.targets)).all()


@pytest.mark.parametrize(("architecture", "kind"), CASES)
def test_the_losses_are_those_of_the_moved_samples(make_step: Any, architecture: str, kind: str) -> None:
    step = make_step(architecture, kind=kind, rows=4)
    watch = _Watch(step)
    on = watch.run(on_manifold(pairing=reversed_batch, size=0.05, share=0.2, smoothing=0.1))
    own = smooth(step.targets, 0.1)
    torch.testing.assert_close(on, cross_entropy(watch.logits[1], 0.8 * own + 0.2 * own[[3, 2, 1, 0]]))
    off = watch.run(off_manifold(size=0.05))
    torch.testing.assert_close(off, -torch.log_softmax(watch.logits[3], -1).mean(-1))


def test_moves_of_length_0_leave_the_clean_logits(make_step: Any) -> None:
    step = make_step("llama")
    watch = _Watch(step)
    watch.run(on_manifold(pairing=reversed_batch, size=0.0, share=0.1))
    torch.testing.assert_close(watch.logits[1], watch.logits[0])


@pytest.mark.parametrize(("rows", "alone"), [(1, 0), (5, 2)])
def test_a_sample_that_is_its_own_partner_stays_where_it_is(make_step: Any, rows: int, alone: int) -> None:
    watch = _Watch(make_step("llama", rows=rows))
    watch.run(on_manifold(pairing=reversed_batch, size=0.05, share=0.1))
    moves = (watch.embeddings[1] - watch.embeddings[0]).flatten(1).norm(dim=1)
    assert moves[alone] == 0
    assert (moves > 0).sum() == rows - 1


@pytest.mark.parametrize("term", [on_manifold(pairing=reversed_batch, size=0.05, share=0.1), off_manifold(size=0.05)])
def test_the_move_is_taken_for_granted_and_no_gradient_is_left_by_finding_it(
    make_step: Any, gradients_of: Any, architecture: str, term: Any
) -> None:
    step = make_step(architecture, rows=3)
    losses = term(step)
    assert all(parameter.grad is None for parameter in step.model.parameters())
    assert any(gradient.any() for gradient in gradients_of(step, losses.sum()).values())


def test_in_bf16_arithmetic_losses_are_float32_and_finite(make_step: Any, architecture: str) -> None:
    step = make_step(architecture)
    with torch.autocast("cpu", torch.bfloat16):
        for term in (on_manifold(pairing=reversed_batch, size=0.05, share=0.1), off_manifold(size=0.05)):
            losses = term(step)
            assert losses.dtype == torch.float32
            assert losses.isfinite().all()


def test_the_directions_are_found_also_where_gradients_are_off(make_step: Any) -> None:
    step = make_step("llama")
    with torch.no_grad():
        assert off_manifold(size=0.05)(step).isfinite().all()
