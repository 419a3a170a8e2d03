"""The training methods, and the parts to make your own from: see docs/your-own-method.md."""

from calmix.mixing.bank import Search, from_bank
from calmix.mixing.choosing import choose
from calmix.mixing.distilling import distil, divergence, taught
from calmix.mixing.levels import mixed_logits
from calmix.mixing.loss import batch_loss
from calmix.mixing.pairing import Pairing, across, by_saliency, reversed_batch, shuffled, sides
from calmix.mixing.recipes import (
    RECIPES,
    Recipe,
    aum_saliency,
    back_translation,
    cls_mixup,
    erl,
    erm,
    feature_mixup,
    informed_mixup,
    input_mixup,
    label_smoothing,
    manifold_mixup,
    on_off_manifold,
    tdmixup,
)
from calmix.mixing.sampling import Pool, two_sided, uniform
from calmix.mixing.step import Step
from calmix.mixing.targets import cross_entropy, mix, smooth
from calmix.mixing.terms import Term, clean, mixed, negative_entropy, total

__all__ = [
    "RECIPES",
    "Pairing",
    "Pool",
    "Recipe",
    "Search",
    "Step",
    "Term",
    "across",
    "aum_saliency",
    "back_translation",
    "batch_loss",
    "by_saliency",
    "choose",
    "clean",
    "cls_mixup",
    "cross_entropy",
    "distil",
    "divergence",
    "erl",
    "erm",
    "feature_mixup",
    "from_bank",
    "informed_mixup",
    "input_mixup",
    "label_smoothing",
    "manifold_mixup",
    "mix",
    "mixed",
    "mixed_logits",
    "negative_entropy",
    "on_off_manifold",
    "reversed_batch",
    "shuffled",
    "sides",
    "smooth",
    "taught",
    "tdmixup",
    "total",
    "two_sided",
    "uniform",
]
