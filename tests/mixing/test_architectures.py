"""Every architecture of transformers' text classifiers: whether it trains, where it can be mixed, what docs say."""

import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import architectures
import numpy as np
import pytest
import tiny
import torch
from torch import Tensor, nn

from calmix.data import Examples
from calmix.errors import InputError
from calmix.mixing import RECIPES, Step, batch_loss, fill_tokens, verify_mixing
from calmix.mixing.levels import Level, mixed_logits
from calmix.mixing.recipe import Recipe
from calmix.models import anatomy, depends_on_padding, encode, head_of, load_for_training, predict_logits

DOCS = Path(__file__).parents[2] / "docs" / "architectures.md"
ALIKE = ("cat dog horse cow sheep", "rain snow wind storm cloud")
UNLIKE = ("cat dog horse cow sheep", "rain snow wind storm cloud sun fog hail frost")

pytestmark = pytest.mark.slow


def _section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", DOCS.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def _documented(kind: str) -> str:
    """Return where docs say that an architecture can be mixed: `everywhere`, names of levels, or `not trained`."""
    if f"`{kind}`" in _section("Mixed at every level"):
        return "everywhere"
    if f"`{kind}`" in _section("Not trained"):
        return "not trained"
    row = re.search(rf"^\|[^|]*`{kind}`[^|]*\| ([^|]*) \|", _section("Mixed at some levels"), re.MULTILINE)
    assert row is not None, f"docs say nothing of {kind}"
    return row[1]


def _step(model: nn.Module, tokenizer: Any, texts: tuple[str, str]) -> Step:
    packed, rows = encode(Examples.from_texts(list(texts), list(tiny.LABELS[:2])), tokenizer, max_length=64), range(2)
    inputs = packed.batch(torch.tensor(rows), width=packed.width(np.array(rows)))
    return Step(model, inputs, torch.eye(3)[:2], torch.Generator().manual_seed(0), fill=fill_tokens(tokenizer))


def _is_a_mix(step: Step, level: Level, *, unlike: bool) -> bool:
    """Return whether λ = 1 gives each text's own logits, and λ = 0 its partner's."""
    clean = step.forward(step.inputs)
    near = 1e-3 * float((clean[0] - clean[1]).abs().max())

    def mixed(weight: float, mask: Any) -> Tensor:
        weights = torch.full((2,), weight)
        return mixed_logits(step, torch.tensor([1, 0]), weights, level=level, padding="none", mask=mask)

    try:
        if level == "head":
            return torch.allclose(head_of(step.model)(step.hidden), clean, atol=near)
        own = torch.allclose(mixed(1.0, "own"), clean, atol=near)
        # A forward has one mask: below a hidden layer, texts of other lengths are read as their partner's.
        if unlike and level not in (0, "inner"):
            return own
        return own and torch.allclose(mixed(0.0, "partner"), clean.flip(0), atol=near)
    except (InputError, RuntimeError, AttributeError):
        return False


def _names(levels: list[Level], depth: int) -> str:
    hidden = [level for level in levels if level not in (0, "inner", "head")]
    assert hidden in ([], [depth], list(range(1, depth + 1)))
    names = ["input"] * (0 in levels) + ["the last layer" if hidden == [depth] else "hidden layers"] * bool(hidden)
    return ", ".join([*names, *(str(level) for level in ("inner", "head") if level in levels)])


@pytest.mark.parametrize("kind", architectures.types())
def test_an_architecture_trains_predicts_and_is_mixed_where_docs_say(kind: str, tmp_path: Path) -> None:
    said = _documented(kind)
    if kind == "layoutlmv2":  # whose network needs a library of its own
        assert said == "not trained"
        return
    folder = architectures.build(kind, tmp_path / "model")
    pairs = tiny.examples(6, kind="pair")
    recipe = RECIPES["erm"]()
    with pytest.raises(InputError) if said == "not trained" else nullcontext():
        model, tokenizer = load_for_training(str(folder), label_names=pairs.label_names)
        packed = encode(pairs, tokenizer, max_length=64)
        verify_mixing(model, packed, recipe, tokenizer)
    if said == "not trained":
        return
    rows = torch.arange(6)
    batch = packed.batch(rows, width=packed.width(rows.numpy())) | {"labels": torch.from_numpy(pairs.labels)}
    model.train()
    batch_loss(recipe, model, batch, generator=torch.Generator(), tokenizer=tokenizer).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    model.zero_grad()
    model.eval()

    # Who shares the batch does not matter.
    together = predict_logits(model, packed)
    alone = np.concatenate([predict_logits(model, packed, rows=np.array([row])) for row in range(6)])
    np.testing.assert_allclose(together, alone, rtol=1e-3, atol=1e-3 * float(np.ptp(together)))

    with torch.no_grad():
        parts = anatomy(model)
        known: list[Level] = [*range(len(parts.layers) + 1), *(["inner"] if parts.inner else []), "head"]
        alike, unlike = _step(model, tokenizer, ALIKE), _step(model, tokenizer, UNLIKE)
        works = [
            level
            for level in known
            if _is_a_mix(alike, level, unlike=False)
            and (depends_on_padding(model.config) or _is_a_mix(unlike, level, unlike=True))
        ]
    everywhere = works == known and bool(parts.layers)
    assert said == ("everywhere" if everywhere else _names(works, len(parts.layers)))
    # A run finds out the same by itself.
    for level in known:
        one = Recipe(recipe.loss, levels=(level,))
        if level in works:
            assert verify_mixing(model, packed, one, tokenizer) == []
        else:
            with pytest.raises(InputError, match=r"cannot be mixed at .*: it can at .*head"):
                verify_mixing(model, packed, one, tokenizer)


def test_docs_name_every_architecture_that_depends_on_padding() -> None:
    depending = {kind for kind in architectures.types() if depends_on_padding(SimpleNamespace(model_type=kind))}
    assert set(re.findall(r"`([\w-]+)`", _section("Predicted in batches of one length"))) == depending
