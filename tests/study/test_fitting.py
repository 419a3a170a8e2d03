"""How much GPU memory runs need."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BertConfig, BertForSequenceClassification, PreTrainedConfig

from calmix.dynamics import Dynamics
from calmix.mixing import RECIPES, choose
from calmix.mixing.loss import batch_loss
from calmix.models import encode
from calmix.models.loading import tokenizer_of
from calmix.study import fitting
from calmix.study.fitting import Size, bytes_needed, needed_by, share_of, workers_for

GIB = 2**30
MINILM, GTE_SMALL = Size(22_713_986, 6, 384), Size(33_360_768, 12, 384)

sizes = st.builds(Size, st.integers(0, 10**11), st.integers(0, 200), st.integers(0, 20_000))
shapes = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 4096),
        "length": st.integers(1, 8192),
        "seeds": st.integers(1, 50),
        "passes": st.integers(1, 5),
        "variants": st.integers(1, 100),
        "rows": st.integers(0, 10**8),
    }
)


@given(sizes, shapes, st.booleans(), st.integers(1, 10**6))
def test_more_of_anything_never_needs_less(size: Size, shape: dict[str, int], half: bool, more: int) -> None:
    least = bytes_needed(size, half=half, **shape)
    assert least > 0
    for name in ("parameters", "layers", "hidden"):
        larger = replace(size, **{name: getattr(size, name) + more})
        assert bytes_needed(larger, half=half, **shape) >= least
    for name, value in shape.items():
        assert bytes_needed(size, half=half, **{**shape, name: value + more}) >= least


@given(st.none() | st.integers(0, 2**50), st.none() | st.integers(0, 2**45), st.integers(0, 2**50))
def test_a_share_is_a_number_of_eighths_that_covers_the_need(needed: Any, memory: Any, more: int) -> None:
    share = share_of(needed, memory)
    assert share in [k / 8 for k in range(1, 9)]
    if needed is None or not memory:
        assert share == 1
    else:
        assert share == 1 or share * memory >= needed
        assert share_of(needed + more, memory) >= share
        assert share_of(needed, memory + more) <= share


def test_known_runs_get_what_is_known_of_them() -> None:
    # Training one MiniLM on 32 pairs of some 32 tokens was seen to take at most 1.7 GiB, the context included.
    one = bytes_needed(MINILM, batch=32, length=32)
    assert 1.7 * GIB < one < 4 * GIB
    assert share_of(one, 139 * GIB) == 1 / 8
    # Six processes with gte-small were seen to fit on 139 GiB, and ten, beside some others, not to.
    three = bytes_needed(GTE_SMALL, batch=32, length=256, seeds=3, rows=5000)
    assert share_of(three, 139 * GIB) == 1 / 4
    seven_billion = Size(7_000_000_000, 32, 4096)
    assert share_of(bytes_needed(seven_billion, batch=8, length=256), 80 * GIB) == 1


def _saved(recipe: str, model: torch.nn.Module, tokenizer: Any, rows: int, length: int) -> int:
    """Return the bytes that torch keeps of a batch for the backward pass."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, int] = {}
    alive = []  # so that no place is used twice

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        alive.append(tensor)
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    batch = {"input_ids": torch.randint(10, 90, (rows, length)), "labels": torch.arange(rows) % 3}
    method, more = choose(recipe, {}), {}
    if method.taught:
        more["teacher"] = torch.randn(rows, 3)
    if method.guide is not None:
        logits = np.random.default_rng(0).normal(size=(2, rows, 3))
        more |= {"dynamics": Dynamics.from_logits(logits, np.arange(rows) % 3), "rows": torch.arange(rows)}
    generator = torch.Generator().manual_seed(0)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        batch_loss(method, model, batch, generator=generator, tokenizer=tokenizer, **more)
    return sum(kept.values())


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_what_torch_keeps_for_the_backward_pass_is_covered(recipe: str) -> None:
    # The proportions of MiniLM, a sixth as wide.
    config = BertConfig(
        vocab_size=100, hidden_size=64, num_attention_heads=2, num_hidden_layers=6, intermediate_size=256, num_labels=3
    )
    model, tokenizer = BertForSequenceClassification(config).train(), tiny.tokenizer()
    size, passes = Size(0, 6, 64), fitting._PASSES.get(recipe, 1)
    for length in (16, 64, 256):
        shape = {"batch": 8, "half": False, "passes": passes}
        others = bytes_needed(size, length=length, **{**shape, "batch": 0})
        counted = (bytes_needed(size, length=length, **shape) - others) / fitting._MARGIN
        assert _saved(recipe, model, tokenizer, 8, length) <= counted  # the margin is for what is not counted


def test_a_group_is_measured_by_its_model_its_settings_and_its_seeds(ready: Any) -> None:
    def needs(methods: str, **kwargs: Any) -> list[int]:
        prepared = ready(methods, **kwargs)
        return [needed_by(group, prepared.library) for group in prepared.plan.groups]

    plain = '[[method]]\nrecipe = "erm"\n'
    [usual] = needs(plain, head="seeds = 1")
    assert usual > GIB
    [more_seeds] = needs(plain, head="seeds = 5")
    assert more_seeds > usual
    [wider] = needs(plain + "training = { batch_size = 64 }\n", head="seeds = 1")
    [in_parts] = needs(plain + "training = { batch_size = 64, accumulate = 8 }\n", head="seeds = 1")
    assert wider > usual == in_parts
    # No text is as long as it may be; all are longer than this.
    [longer] = needs(plain + "training = { max_length = 512 }\n", head="seeds = 1")
    [shorter] = needs(plain + "training = { max_length = 4 }\n", head="seeds = 1")
    assert longer == usual > shorter
    [exact] = needs(plain + 'training = { precision = "fp32" }\n', head="seeds = 1")
    assert exact > usual
    drawn = needs('[[method]]\nrecipe = "manifold-mixup"\n', head="seeds = 1")
    assert drawn[0] > usual
    guided = needs(plain + '[[method]]\nrecipe = "on-off-manifold"\n', head="seeds = 1")
    assert guided[1] > guided[0] == usual
    taught = needs(plain + '[[method]]\nrecipe = "distil"\nteacher = "erm"\n', head="seeds = 1")
    assert taught[1] > taught[0] == usual


@pytest.mark.parametrize("kind", ["text", "pair", "choices"])
def test_a_batch_is_as_long_as_the_longest_texts(kind: str, checkpoint: Any) -> None:
    train, tokenizer = tiny.examples(300, kind=kind), tokenizer_of(str(checkpoint("bert")))
    lengths = encode(train, tokenizer, max_length=64).host_lengths
    config = PreTrainedConfig(max_position_embeddings=64)
    # Those with most characters need not have most tokens.
    assert 0.8 * lengths.max() <= fitting._longest(train, tokenizer, config, 512) <= lengths.max()
    assert fitting._longest(train, tokenizer, config, 6) == 6


def test_of_multiple_choice_every_choice_is_counted(ready: Any) -> None:
    plain = '[[method]]\nrecipe = "erm"\n'
    texts, choices = ready(plain), ready(plain, choices=True, task=CHOICES)
    one, several = (needed_by(each.plan.groups[0], each.library) for each in (texts, choices))
    assert several > one


CHOICES = """
[task.tiny]
train = "choices/train"
dev = "choices/dev"
test = "choices/test"
"""


def test_what_cannot_be_told_is_none_and_gets_a_gpu_of_its_own(ready: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = ready()
    group = prepared.plan.groups[0]
    images = SimpleNamespace(train=SimpleNamespace(kind="image"))
    monkeypatch.setattr(prepared.library, "sets", lambda *_: images)
    assert needed_by(group, prepared.library) is None
    monkeypatch.undo()
    monkeypatch.setattr(prepared.library, "model", lambda _: "resnet18")
    assert needed_by(group, prepared.library) is None
    assert share_of(None, 80 * GIB) == 1
    assert workers_for([group], prepared.library, 80 * GIB) == 1
    monkeypatch.setattr(prepared.library, "model", lambda _: "sentence-cnn")
    assert needed_by(group, prepared.library) > 2 * GIB


def test_runs_that_are_known_to_fail_stop_nobody(ready: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = ready()
    spec = prepared.plan.groups[0][0]
    missing_layer = replace(spec, recipe="manifold-mixup", options={"layers": (50,)})
    assert needed_by([missing_layer], prepared.library) == needed_by([spec], prepared.library)
    monkeypatch.setattr(prepared.library, "model", lambda _: "/nowhere/at/all")
    assert needed_by([spec], prepared.library) is None


def test_as_many_workers_as_fit_and_no_more_than_there_is_work_for(ready: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    library, groups = ready().library, [["a"], ["b"], ["c"], ["d"]]
    needs = {"a": 3 * GIB, "b": 2 * GIB, "c": GIB, "d": GIB}
    monkeypatch.setattr(fitting, "needed_by", lambda group, _: needs[group[0]])
    assert workers_for(groups, library, 10 * GIB) == 3
    assert workers_for(groups, library, 100 * GIB) == 4
    assert workers_for(groups, library, GIB) == 1
    assert workers_for(groups, library, None) == 1
    assert workers_for([], library, GIB) == 1
