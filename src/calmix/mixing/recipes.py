"""The named training methods. Each is a few lines: samples in a batch × pairs × level × terms of the loss."""

from collections.abc import Callable
from typing import Literal

from calmix.data import Examples
from calmix.errors import InputError
from calmix.mixing import manifold, paraphrasing, terms
from calmix.mixing.checking import check_positive, check_range, check_word
from calmix.mixing.distilling import distil
from calmix.mixing.guided import aum_saliency, informed_mixup, tdmixup
from calmix.mixing.levels import Level, Mask, Padding
from calmix.mixing.pairing import reversed_batch, shuffled
from calmix.mixing.recipe import Recipe
from calmix.mixing.step import Step
from calmix.models import Anatomy, anatomy

__all__ = [
    "RECIPES",
    "Recipe",
    "aum_saliency",
    "back_translation",
    "cls_mixup",
    "distil",
    "erl",
    "erm",
    "feature_mixup",
    "informed_mixup",
    "input_mixup",
    "label_smoothing",
    "manifold_mixup",
    "on_off_manifold",
    "tdmixup",
]


def erm(*, smoothing: float = 0.0) -> Recipe:
    """Plain fine-tuning: cross-entropy, nothing mixed.

    Args:
        smoothing: label smoothing σ.
    """
    return Recipe(terms.clean(smoothing=smoothing), levels=())


def label_smoothing(*, smoothing: float = 0.1) -> Recipe:
    """Cross-entropy to 1−σ on the gold class and σ/(K−1) on each other one.

    Paper: Park & Caragea, ACL 2022; Hosseini & Caragea.

    Args:
        smoothing: σ. The papers use 0.003 to 0.3, and 0.1 most.
    """
    return erm(smoothing=smoothing)


def erl(*, beta: float = 0.1, smoothing: float = 0.0) -> Recipe:
    """Entropy-regularised loss: cross-entropy − β·H(p), which rewards unsure predictions.

    Paper: Pereyra et al. 2017, as compared in Thulasidasan et al., NeurIPS 2019.

    Args:
        beta: weight of the entropy.
        smoothing: label smoothing σ.
    """
    check_range("beta", beta)
    term = terms.total((1.0, terms.clean(smoothing=smoothing)), (beta, terms.negative_entropy()))
    return Recipe(term, levels=())


def input_mixup(
    *,
    alpha: float = 0.4,
    per_sample: bool = False,
    padding: Padding = "sep",
    mask: Mask = "union",
    smoothing: float = 0.0,
) -> Recipe:
    """Mixup of input embeddings, token by token, and of labels.

    Paper: Thulasidasan et al., NeurIPS 2019; Zhang & Vaidya 2021 for the padding.

    Args:
        alpha: λ ~ Beta(α, α). 0.4 in most papers, 1.0 in Zhang & Vaidya.
        per_sample: draw a λ for each sample instead of one for the batch.
        padding: what the shorter text of a pair is filled with.
        mask: whose tokens the mixed text attends to.
        smoothing: label smoothing σ.
    """
    term = terms.mixed(0, alpha=alpha, per_sample=per_sample, padding=padding, mask=mask, smoothing=smoothing)
    return Recipe(term, levels=(0,))


def manifold_mixup(
    *,
    alpha: float = 1.0,
    layers: tuple[int, ...] = (),
    per_sample: bool = False,
    padding: Padding = "sep",
    mask: Mask = "union",
    smoothing: float = 0.0,
) -> Recipe:
    """Mixup after a layer that is drawn anew for each step.

    Paper: Verma et al. 2019; Zhang & Vaidya 2021.

    Args:
        alpha: λ ~ Beta(α, α).
        layers: the layers to draw from: 0 is the input, n the last layer, n+1 the head; -1 is the head too,
            -2 the last layer, whatever n is. None given: all.
        per_sample: draw a λ for each sample instead of one for the batch.
        padding: what the shorter text of a pair is filled with.
        mask: whose tokens the mixed text attends to.
        smoothing: label smoothing σ.
    """

    def drawn_from(depth: int) -> tuple[int, ...]:
        bad = [layer for layer in layers if not -depth - 2 <= layer <= depth + 1]
        if bad:
            raise InputError(f"layers: this model has levels 0 to {depth + 1}, there is no {bad[0]}")
        return tuple(layer % (depth + 2) for layer in layers) or tuple(range(depth + 2))

    def levels(parts: Anatomy) -> tuple[Level, ...]:
        depth = len(parts.layers)
        return tuple("head" if layer == depth + 1 else layer for layer in drawn_from(depth))

    def level(step: Step) -> Level:
        return levels(step.anatomy)[step.variant]

    term = terms.mixed(level, alpha=alpha, per_sample=per_sample, padding=padding, mask=mask, smoothing=smoothing)
    return Recipe(term, variants=lambda model: len(levels(anatomy(model))), levels=levels)


def cls_mixup(
    *,
    alpha: float = 0.4,
    at: Literal["head", "inner"] = "head",
    per_sample: bool = False,
    smoothing: float = 0.0,
) -> Recipe:
    """Mixup of the vector the classifier head reads, and of labels.

    Paper: Zhang & Vaidya 2021 (α = 1.0 there).

    Args:
        alpha: λ ~ Beta(α, α).
        at: mix what the head reads, or what the dense layer before it reads.
        per_sample: draw a λ for each sample instead of one for the batch.
        smoothing: label smoothing σ.
    """
    check_word("at", at, ("head", "inner"))
    return Recipe(terms.mixed(at, alpha=alpha, per_sample=per_sample, smoothing=smoothing), levels=(at,))


def feature_mixup(
    *,
    alpha: float = 0.4,
    per_sample: bool = False,
    padding: Padding = "sep",
    mask: Mask = "union",
    smoothing: float = 0.0,
) -> Recipe:
    """Mixup of inputs only: the label is that of the nearer sample. A control: it does not calibrate.

    Paper: Thulasidasan et al., NeurIPS 2019, section 5.

    Args:
        alpha: λ ~ Beta(α, α).
        per_sample: draw a λ for each sample instead of one for the batch.
        padding: what the shorter text of a pair is filled with.
        mask: whose tokens the mixed text attends to.
        smoothing: label smoothing σ.
    """
    return Recipe(
        terms.mixed(
            0,
            alpha=alpha,
            per_sample=per_sample,
            padding=padding,
            mask=mask,
            smoothing=smoothing,
            hard=True,
        ),
        levels=(0,),
    )


def on_off_manifold(
    *,
    on_size: float = 1e-4,
    off_size: float = 1e-3,
    share: float = 0.1,
    pairs: Literal["reversed", "shuffled"] = "reversed",
    smoothing: float = 0.0,
) -> Recipe:
    """Cross-entropy, plus the same a small step towards another sample, plus doubt a small step off the data.

    Paper: Kong et al. 2020, a baseline of Park & Caragea, NAACL 2022. Five forwards a step.

    Args:
        on_size: length of the step towards the partner's features.
        off_size: length of the step that raises the loss.
        share: how much of the partner's label the first step's target takes.
        pairs: the batch back to front, or in random order.
        smoothing: label smoothing σ.
    """
    check_range("on_size", on_size)
    check_range("off_size", off_size)
    check_range("share", share, high=1)
    pairings = {"reversed": reversed_batch, "shuffled": shuffled}
    check_word("pairs", pairs, list(pairings))
    return Recipe(
        terms.total(
            (1.0, terms.clean(smoothing=smoothing)),
            (1.0, manifold.on_manifold(pairing=pairings[pairs], size=on_size, share=share, smoothing=smoothing)),
            (1.0, manifold.off_manifold(size=off_size)),
        ),
        levels=(0, "head"),
    )


def back_translation(
    *,
    column: str = "paraphrase",
    column_b: str = "paraphrase_b",
    column_choices: str = "paraphrase_choices",
    there: str = "",
    back: str = "",
    temperature: float = 0.9,
    seed: int = 0,
    smoothing: float = 0.0,
) -> Recipe:
    """Cross-entropy on the texts and on a paraphrase of each: of pairs, both texts; of choices, text and choices.

    Paper: a baseline of Park & Caragea, NAACL 2022 (English→German→English, sampling temperature 0.9).

    Args:
        column: the column that holds the paraphrases of the texts, where they are supplied.
        column_b: likewise of the second texts of pairs.
        column_choices: likewise of choices: lists, one paraphrase for each.
        there: a translation model (folder or hub name), to make the paraphrases instead.
        back: the model that translates back.
        temperature: of the translations' sampling.
        seed: of the translations' sampling.
        smoothing: label smoothing σ.
    """
    if bool(there) != bool(back):
        raise InputError("back-translation needs both models, `there` and `back`, or neither")
    check_positive("temperature", temperature)

    def prepare(examples: Examples) -> Examples:
        if examples.kind == "image":
            raise InputError(f"{examples.source}: holds images, and only texts can be translated")
        if there:
            found = paraphrasing.translated(examples, there=there, back=back, temperature=temperature, seed=seed)
        else:
            columns = {"text": column, "text_b": column_b, "choices": column_choices}
            found = paraphrasing.supplied(examples, columns)
        return paraphrasing.with_paraphrases(examples, found)

    return Recipe(terms.clean(smoothing=smoothing), prepare=prepare, levels=())


RECIPES: dict[str, Callable[..., Recipe]] = {
    "erm": erm,
    "label-smoothing": label_smoothing,
    "erl": erl,
    "input-mixup": input_mixup,
    "manifold-mixup": manifold_mixup,
    "cls-mixup": cls_mixup,
    "feature-mixup": feature_mixup,
    "aum-saliency": aum_saliency,
    "tdmixup": tdmixup,
    "informed-mixup": informed_mixup,
    "on-off-manifold": on_off_manifold,
    "back-translation": back_translation,
    "distil": distil,
}
"""The methods by name. `mixup` in the papers is `input-mixup` here."""
