"""On- and off-manifold regularisation (Kong et al. 2020): two small moves of the input, two more terms."""

import torch
from torch import Tensor

from calmix.mixing.pairing import Pairing
from calmix.mixing.step import Step
from calmix.mixing.targets import cross_entropy, mix, smooth
from calmix.mixing.terms import Term
from calmix.models import head_input, pooled

__all__ = ["off_manifold", "on_manifold"]


def on_manifold(*, pairing: Pairing, size: float, share: float, smoothing: float = 0.0) -> Term:
    """Return cross-entropy after a move of length `size` towards the partner's features.

    The move follows the gradient that lowers the cosine distance between a sample's head input and its
    partner's; the target keeps 1 − `share` of the sample's own label and takes `share` of the partner's.
    """

    def term(step: Step) -> Tensor:
        partner = pairing(step)
        with torch.enable_grad():
            delta, features, _ = _probe(step)
            rows = features.reshape(len(step), -1)
            away = 1 - torch.cosine_similarity(rows, rows.detach()[partner], dim=-1)
            (gradient,) = torch.autograd.grad(away.sum(), delta)
        # Nobody moves towards himself: rounding alone would choose the direction.
        elsewhere = (partner != torch.arange(len(step), device=step.device)).to(gradient.dtype)
        per_sequence = elsewhere.repeat_interleave(len(gradient) // len(step)).view(-1, *[1] * (gradient.dim() - 1))
        logits = _moved(step, -size * per_sequence * _unit(gradient))
        weight = torch.full((len(step),), 1 - share, device=step.device)
        targets = mix(smooth(step.targets, smoothing), partner, weight)
        return cross_entropy(logits, targets, step.class_weights)

    return term


def off_manifold(*, size: float) -> Term:
    """Return cross-entropy to the uniform distribution after a move of length `size` that raises the loss."""

    def term(step: Step) -> Tensor:
        with torch.enable_grad():
            delta, _, logits = _probe(step)
            loss = cross_entropy(logits, step.targets)
            (gradient,) = torch.autograd.grad(loss.sum(), delta)
        moved = _moved(step, size * _unit(gradient))
        return cross_entropy(moved, torch.full_like(step.targets, 1 / step.targets.shape[-1]))

    return term


def _probe(step: Step) -> tuple[Tensor, Tensor, Tensor]:
    """Return a zero move of the embeddings (or pixels), and the features and logits that depend on it."""
    moves: list[Tensor] = []

    def edit(tensor: Tensor) -> Tensor:
        moves.append(torch.zeros_like(tensor, requires_grad=True))
        return tensor.detach() + moves[0]

    model = step.model
    with head_input(model, step.anatomy) as seen:
        logits = step.forward_edited(edit, exchange=False)
    return moves[0], pooled(seen[0], step.inputs, model.config).float(), logits


def _moved(step: Step, move: Tensor) -> Tensor:
    return step.forward_edited(lambda tensor: tensor + move)


def _unit(gradient: Tensor) -> Tensor:
    """Return the gradient at length 1 for each sequence; a zero gradient stays zero."""
    flat = gradient.detach().float()
    length: Tensor = flat.flatten(1).norm(dim=1).clamp_min(1e-12)
    return (flat / length.view(-1, *([1] * (flat.dim() - 1)))).to(gradient.dtype)
