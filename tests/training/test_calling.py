"""Several models in one forward: each sees its own rows through its own weights."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
import torch
from torch import Tensor, nn
from torch.func import functional_call

from calmix.models import encode, load_for_training
from calmix.training.branching import Branch
from calmix.training.calling import Calls

RUNS = 3


def called(model: nn.Module, weights: dict[str, Tensor], branch: Branch | None, *args: Tensor) -> Tensor:
    with Calls(len(args[0]), branch, Counter()):
        out: Tensor = functional_call(model, weights, args)
    return out


@pytest.mark.parametrize("branch", [None, Branch()])
@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(4, 5),
        nn.Linear(4, 5, bias=False),
        nn.LayerNorm(4),
        nn.LayerNorm(4, bias=False),
        nn.LayerNorm(4, elementwise_affine=False),
        nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4)),
    ],
    ids=str,
)
def test_values_and_gradients_are_those_of_each_model_alone(model: nn.Module, branch: Branch | None) -> None:
    torch.manual_seed(0)
    stacked = {n: torch.randn(RUNS, *p.shape, requires_grad=True) for n, p in model.named_parameters()}
    x = torch.randn(RUNS * 2, 3, 4, requires_grad=True)
    upstream = torch.randn(RUNS * 2, 3, 5 if isinstance(model, nn.Linear) else 4)
    together = called(model, stacked, branch, x)
    gradients = torch.autograd.grad(together, [x, *stacked.values()], upstream)
    for run in range(RUNS):
        rows = slice(2 * run, 2 * run + 2)
        own = {n: p[run].detach().requires_grad_() for n, p in stacked.items()}
        mine = x[rows].detach().requires_grad_()
        alone = functional_call(model, own, mine)
        torch.testing.assert_close(together[rows], alone)
        for_x, *for_weights = torch.autograd.grad(alone, [mine, *own.values()], upstream[rows])
        torch.testing.assert_close(gradients[0][rows], for_x)
        for all_runs, one in zip(gradients[1:], for_weights, strict=True):
            torch.testing.assert_close(all_runs[run], one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [RUNS * 2, 1])
def test_each_run_looks_up_its_own_embeddings_even_where_one_row_serves_all(rows: int) -> None:
    table = torch.randn(RUNS, 7, 4)
    ids = torch.randint(7, (rows, 5))
    with Calls(RUNS * 2, None, Counter()):
        found = nn.functional.embedding(ids, table, padding_idx=0)
    assert found.shape == (RUNS * 2, 5, 4)
    for row in range(RUNS * 2):
        assert torch.equal(found[row], table[row // 2][ids[row % rows]])


@pytest.mark.parametrize("architecture", ["bert", "roberta", "distilbert", "electra", "modernbert"])
@pytest.mark.parametrize("kind", ["text", "choices"])
def test_whole_classifiers_give_each_run_its_own_logits(
    architecture: str, kind: str, checkpoint: Callable[..., Path]
) -> None:
    data = tiny.examples(8, kind=kind, counts=(3,))
    models = []
    for seed in range(RUNS):
        torch.manual_seed(seed)
        folder = str(checkpoint(architecture))
        model, tokenizer = load_for_training(folder, label_names=data.label_names, choices=kind == "choices")
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.1 * torch.randn_like(weight))
        models.append(model.eval())
    packed = encode(data, tokenizer, max_length=32)
    width, choices = packed.width(packed.host_lengths.argsort()), 3 if kind == "choices" else None
    each = [packed.batch(torch.randperm(8)[:4], width=width, choices=choices) for _ in models]
    alone = torch.cat([model(**inputs).logits for model, inputs in zip(models, each, strict=True)])
    stacked = {n: torch.stack([m.get_parameter(n) for m in models]) for n, _ in models[0].named_parameters()}
    inputs = {name: torch.cat([part[name] for part in each]) for name in each[0]}
    with Calls(inputs["input_ids"].shape[:-1].numel(), None, Counter()):
        together = functional_call(models[0], stacked, kwargs=inputs).logits
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("branch", [None, Branch()])  # the first step has none, and decides
def test_uses_of_each_weight_are_counted(branch: Branch | None) -> None:
    table, layer, other, norm, uses = (
        nn.Embedding(5, 2),
        nn.Linear(2, 2),
        nn.Linear(2, 2),
        nn.LayerNorm(2),
        Counter[int](),
    )
    with Calls(1, branch, uses):
        norm(norm(other(layer(layer(table(torch.tensor([[3]])) + table(torch.tensor([[4]])))))))
    twice = {id(module.weight): 2 for module in (table, layer, norm)}
    assert uses == {**twice, id(other.weight): 1}


def test_weights_that_are_made_of_others_have_their_gradients_in_line() -> None:
    weight, x, ids = torch.randn(4, 4, requires_grad=True), torch.randn(1, 3, 4), torch.tensor([[0, 1]])
    with Calls(1, Branch(), Counter()):
        made = [
            nn.functional.linear(x, weight.t()),
            nn.functional.linear(x, torch.ones(4, 4), weight[0]),
            nn.functional.layer_norm(x, (4,), weight[0]),
            nn.functional.embedding(ids, weight[:2]),
        ]
        beside = nn.functional.linear(x, weight)
    from calmix.training import calling

    ours = tuple(of.__name__ + "Backward" for of in (calling._Linear, calling._LayerNorm, calling._Table))
    assert not [y for y in made if type(y.grad_fn).__name__ in ours]
    assert type(beside.grad_fn).__name__ in ours


@pytest.mark.parametrize("model", [nn.Linear(8, 8), nn.LayerNorm(8), nn.LayerNorm(8, bias=False)], ids=str)
def test_beside_the_backward_pass_one_model_has_the_gradients_of_autograd(model: nn.Module) -> None:
    torch.manual_seed(0)
    weights = {n: torch.randn_like(p).requires_grad_() for n, p in model.named_parameters()}
    x, upstream = torch.randn(4, 3, 8, requires_grad=True), torch.randn(4, 3, 8)
    plain = functional_call(model, weights, (x,))
    with Calls(4, Branch(), Counter()):
        ours = functional_call(model, weights, (x,))
    torch.testing.assert_close(ours, plain)
    found, wanted = (torch.autograd.grad(y, [x, *weights.values()], upstream) for y in (ours, plain))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("runs", [1, RUNS])
def test_the_gradient_of_a_small_table_is_that_of_looking_up(runs: int, padding: int | None) -> None:
    torch.manual_seed(0)
    table = torch.randn(*([runs] if runs > 1 else []), 7, 5, requires_grad=True)
    ids, upstream = torch.randint(7, (2 * runs, 4)), torch.randn(2 * runs, 4, 5)
    with Calls(2 * runs, Branch(), Counter()):
        beside = nn.functional.embedding(ids, table, padding)
    (found,) = torch.autograd.grad(beside, table, upstream)
    each = table if runs > 1 else table[None]
    for run in range(runs):
        rows = slice(2 * run, 2 * run + 2)
        alone = each[run].detach().requires_grad_()
        looked_up = nn.functional.embedding(ids[rows], alone, padding)
        assert torch.equal(beside[rows], looked_up)
        (wanted,) = torch.autograd.grad(looked_up, alone, upstream[rows])
        torch.testing.assert_close(found if runs == 1 else found[run], wanted)


def test_a_large_table_and_one_with_wishes_of_its_own_are_torchs() -> None:
    table, ids = torch.randn(2000, 3, requires_grad=True), torch.tensor([[5, 5, 7]])
    with Calls(1, Branch(), Counter()):
        found = nn.functional.embedding(ids, table)
        by_frequency = nn.functional.embedding(ids, table[:10], scale_grad_by_freq=True)
    assert "Embedding" in type(found.grad_fn).__name__
    (gradient,) = torch.autograd.grad(by_frequency.sum(), table)
    assert gradient[[5, 7], 0].tolist() == [1.0, 1.0]
