"""The memory of a run's own predictions: means over epochs, whoever saw them."""

import torch

from calmix.mixing.remembering import LOOKS, OWN, Memory


def memory(samples: int = 4) -> Memory:
    return Memory(samples, 3, torch.device("cpu"))


def test_the_mean_is_over_all_epochs_and_looks() -> None:
    kept, logits = memory(), torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    kept.update(logits[:2], torch.tensor([2, 0]))
    kept.end_epoch()
    kept.update(logits[2:], torch.tensor([2]))
    kept.end_epoch()
    found = kept.signals()
    p = logits.softmax(-1)
    torch.testing.assert_close(found[OWN][2], (p[0] + p[2]) / 2)
    torch.testing.assert_close(found[OWN][0], p[1])
    assert found[LOOKS].tolist() == [1, 0, 2, 0]
    assert found[OWN][1].tolist() == [0, 0, 0]


def test_what_an_epoch_sees_is_known_after_it() -> None:
    kept = memory()
    kept.update(torch.zeros(1, 3), torch.tensor([1]))
    assert kept.signals()[LOOKS].sum() == 0


def test_rows_of_minus_one_and_choices_that_are_not_there_are_left_out() -> None:
    kept = memory()
    kept.update(torch.zeros(2, 2), torch.tensor([-1, 3]))
    kept.end_epoch()
    assert kept.signals()[LOOKS].tolist() == [0, 0, 0, 1]
    assert kept.signals()[OWN][3].tolist() == [0.5, 0.5, 0]


def test_several_processes_add_up() -> None:
    one, other, whole = memory(), memory(), memory()
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    one.update(logits[:2], torch.tensor([0, 1]))
    other.update(logits[2:], torch.tensor([2, 3]))
    whole.update(logits, torch.arange(4))
    theirs = other.fresh
    one.end_epoch(lambda mine: mine + theirs)
    whole.end_epoch()
    torch.testing.assert_close(one.signals()[OWN], whole.signals()[OWN])


def test_it_goes_on_from_its_state_in_the_same_tensors() -> None:
    kept, later = memory(), memory()
    place = later.total.data_ptr()
    kept.update(torch.randn(2, 3), torch.tensor([0, 1]))
    kept.end_epoch()
    kept.update(torch.randn(2, 3), torch.tensor([1, 2]))
    later.load_state_dict(kept.state_dict())
    for each in (kept, later):
        each.end_epoch()
    torch.testing.assert_close(later.signals()[OWN], kept.signals()[OWN])
    assert later.total.data_ptr() == place
