"""What is remembered of every sample, and the partners found in it."""

from typing import Any

import pytest
import torch
from torch import Tensor

from calmix.dynamics import cosine, head_cosine, residual, saliency_map
from calmix.mixing.bank import Bank, Search, from_bank, partner_counts
from calmix.mixing.pairing import by_saliency

ROWS, SEEN = 12, 8


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bank_of(step: Any, rows: Tensor, *, similarity: Any = "auto", candidates: int = 0, counts: Any = None) -> Bank:
    """Return a bank of ROWS samples in which a step's rows are remembered in these places."""
    labels = torch.zeros(ROWS, dtype=torch.long)
    labels[rows] = step.targets.argmax(1)
    targets = torch.nn.functional.one_hot(labels, step.targets.shape[1]).float()
    features = step.model.get_submodule(step.anatomy.head).in_features
    bank = Bank(targets, counts, hard=True, features=features, search=Search(similarity, candidates))
    step.rows = rows
    bank.update(step)
    return bank


PLACES = torch.tensor([3, 0, 11, 5, 7, 1, 2, 9])
SIDE = torch.tensor([0, 1, 0, 1, -1, 0, 0, 1, 0, 1, 1, 0])


@pytest.mark.parametrize(
    ("kind", "of", "similarity"),
    [
        *(("text", 3, similarity) for similarity in ("auto", "head", "logits")),
        *(("choices", of, similarity) for of in (3, 4) for similarity in ("auto", "head", "logits")),
        # All saliency maps of two choices are parallel.
        *(("choices", 2, similarity) for similarity in ("auto", "head")),
    ],
)
def test_partners_over_the_set_are_those_of_one_big_batch(make_step: Any, kind: str, of: int, similarity: Any) -> None:
    """Whatever is compared: a set that is one batch has the partners of that batch."""
    step = make_step(kind=kind, of=of, rows=SEEN)
    counts = torch.full((ROWS,), of) if kind == "choices" else None
    bank = bank_of(step, PLACES, similarity=similarity, counts=counts)
    signals = bank.signals(SIDE, draws())
    near, far = by_saliency(step, SIDE[PLACES], similarity)
    assert signals["similar"][PLACES].tolist() == PLACES[near].tolist()
    assert signals["dissimilar"][PLACES].tolist() == PLACES[far].tolist()
    unseen = [row for row in range(ROWS) if row not in PLACES.tolist()]
    assert signals["similar"][unseen].tolist() == signals["dissimilar"][unseen].tolist() == unseen


def test_the_last_forward_of_a_sample_is_the_one_that_counts(make_step: Any) -> None:
    step, later = make_step(rows=SEEN), make_step(rows=SEEN, seed=1)
    bank = bank_of(step, PLACES)
    later.rows = PLACES.flip(0)
    bank.update(later)
    assert torch.equal(bank.logits[PLACES.flip(0)], later.logits.detach())


def test_a_sample_of_no_half_has_no_partner_and_is_nobodys(make_step: Any) -> None:
    side = SIDE.clone()
    side[[0, 7]] = -1
    signals = bank_of(make_step(rows=SEEN), PLACES).signals(side, draws())
    for kind in ("similar", "dissimilar"):
        assert signals[kind][[0, 7]].tolist() == [0, 7]
        assert not {0, 7} & set(signals[kind][[1, 2, 3, 5, 9, 11]].tolist())


def test_choices_are_paired_with_those_of_as_many(make_step: Any) -> None:
    counts = torch.tensor([2, 3] * 6)
    targets = torch.nn.functional.one_hot(torch.zeros(ROWS, dtype=torch.long), 3).float()
    bank = Bank(targets, counts, hard=True, features=16, search=Search())
    for of, rows in ((2, torch.arange(0, ROWS, 2)), (3, torch.arange(1, ROWS, 2))):
        step = make_step(kind="choices", of=of, rows=6)
        step.rows = rows
        bank.update(step)
    signals = bank.signals(torch.arange(ROWS) // 2 % 2, draws())
    for kind in ("similar", "dissimilar"):
        assert counts[signals[kind]].tolist() == counts.tolist()
        assert (signals[kind] // 2 % 2 != torch.arange(ROWS) // 2 % 2).all()


@pytest.mark.parametrize("classes", [2, 4])
def test_soft_targets_and_any_number_of_classes_equal_brute_force(classes: int) -> None:
    generator = draws(3)
    targets = torch.randn(30, classes, generator=generator).softmax(1)
    bank = Bank(targets, None, hard=False, features=5, search=Search(candidates=0))
    bank.logits.copy_(torch.randn(30, classes, generator=generator))
    if bank.hidden is not None:
        bank.hidden.copy_(torch.randn(30, 5, generator=generator))
    assert (bank.hidden is not None) == (classes == 2)
    side = torch.arange(30) % 2
    signals = bank.signals(side, draws())
    if bank.hidden is None:
        alike = cosine(saliency_map(bank.logits, targets))
    else:
        alike = head_cosine(residual(bank.logits, targets), bank.hidden)
    same = side[:, None] == side
    assert signals["similar"].tolist() == alike.masked_fill(same, -9).argmax(1).tolist()
    assert signals["dissimilar"].tolist() == alike.masked_fill(same, 9).argmin(1).tolist()


def test_without_halves_or_similarity_partners_are_drawn_anew_from_the_other_half() -> None:
    bank = Bank(torch.eye(3).repeat(40, 1), None, hard=True, features=4, search=Search(None))
    bank.logits.zero_()
    one, again, other = (bank.signals(None, draws(seed)) for seed in (0, 0, 1))
    assert one["similar"].tolist() == again["similar"].tolist() != other["similar"].tolist()
    assert one["similar"].tolist() != one["dissimilar"].tolist()
    assert (one["similar"] != torch.arange(120)).all()
    side = torch.arange(120) % 3 % 2
    told = bank.signals(side, draws())
    assert (side[told["similar"]] != side).all()


def test_a_partner_from_the_bank_lends_its_logits_and_targets_and_takes_no_gradient(make_step: Any) -> None:
    step = make_step(rows=SEEN)
    bank = bank_of(step, PLACES)
    signals = {name: values.clone() for name, values in bank.signals(SIDE, draws()).items()}
    later = make_step(rows=SEEN, seed=1)
    later.rows, later.signals = torch.tensor([3, 0, 4, 5, 10, 1, 2, 9]), signals
    found, logits, targets = from_bank(later, "similar")
    assert found.tolist() == [True, True, False, True, False, True, True, True]
    partner = signals["similar"][later.rows]
    assert torch.equal(logits[found], bank.logits[partner[found]])
    assert torch.equal(targets, bank.targets[partner])
    assert torch.equal(logits[~found], later.logits[~found])
    assert not logits.requires_grad


def test_what_was_found_is_counted(make_step: Any) -> None:
    assert partner_counts({}) == {}
    signals = bank_of(make_step(rows=SEEN), PLACES).signals(SIDE, draws())
    counts = partner_counts(signals)
    assert counts["samples"] == SEEN
    for kind in ("similar", "dissimilar"):
        assert counts[kind] == len({int(signals[kind][row]) for row in PLACES})


def test_what_several_processes_saw_is_put_together(make_step: Any) -> None:
    step = make_step(rows=SEEN)
    whole = bank_of(step, PLACES, similarity="head")
    halves = []
    for part in (slice(None, 5), slice(5, None)):
        bank = Bank(whole.targets, None, hard=True, features=16, search=whole.search)
        other = make_step(rows=SEEN)
        bank.logits[PLACES[part]] = other.logits[part].detach()
        assert bank.hidden is not None
        bank.hidden[PLACES[part]] = other.hidden[part].detach()
        bank.fresh[PLACES[part]] = True
        halves.append(bank)
    shares = [
        [b.fresh.float(), *(torch.where(b.fresh[:, None], v, 0) for v in (b.logits, b.hidden) if v is not None)]
        for b in halves
    ]
    for bank in halves:
        sums = iter([sum(parts) for parts in zip(*shares, strict=True)])
        bank.merge(lambda _, sums=sums: next(sums))
        torch.testing.assert_close(bank.logits, whole.logits, equal_nan=True)
        torch.testing.assert_close(bank.hidden, whole.hidden)


def test_what_is_remembered_survives_saving(make_step: Any) -> None:
    bank = bank_of(make_step(rows=SEEN), PLACES, similarity="head")
    other = Bank(bank.targets, None, hard=True, features=16, search=bank.search)
    place = other.logits
    other.load_state_dict({name: values.clone() for name, values in bank.state_dict().items()})
    assert other.logits is place
    assert other.signals(SIDE, draws())["similar"].tolist() == bank.signals(SIDE, draws())["similar"].tolist()
