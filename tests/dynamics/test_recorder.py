import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calmix.dynamics import Recorder, row_lookup
from calmix.errors import InputError

STATISTICS = ("aum", "confidence", "variability", "correctness", "loss", "last_loss", "rival_confidence")
EXACT = ("forgetting", "learnt", "observations", "last_prediction", "labels")


def stream(rng, *, samples=6, classes=3, batches=8, size=5, scale=2.0):
    """Batches of (logits, labels, rows) in which a sample may come back, and may stand twice."""
    labels = rng.integers(classes, size=samples)
    for _ in range(batches):
        rows = rng.integers(samples, size=size)
        logits = rng.normal(scale=scale, size=(size, classes)).astype(np.float32)
        yield torch.tensor(logits), torch.tensor(labels[rows]), torch.tensor(rows)


def record(recorder, batches):
    for batch in batches:
        recorder.update(*batch)
    return recorder


def histories(batches, samples=6):
    seen = [[] for _ in range(samples)]
    for logits, labels, rows in batches:
        for values, label, row in zip(logits.tolist(), labels.tolist(), rows.tolist(), strict=True):
            seen[row].append((values, label))
    return seen


def assert_same(one, two, *, exactly=False):
    for name in STATISTICS:
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=0, atol=0 if exactly else 1e-12)
    for name in EXACT:
        assert getattr(one, name).tolist() == getattr(two, name).tolist(), name


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 9), st.integers(1, 7))
@settings(max_examples=60)
def test_every_statistic_equals_the_loop_over_each_history(agrees, seed, classes, batches, size):
    data = list(stream(np.random.default_rng(seed), classes=classes, batches=batches, size=size))
    agrees(record(Recorder(6), data).dynamics(), histories(data))


def test_copies_inside_a_batch_are_successive_observations(agrees):
    right, wrong = [1.0, 0.0], [0.0, 1.0]
    logits = torch.tensor([right, wrong, right, wrong, right, wrong])
    recorder = Recorder(2)
    recorder.update(logits, torch.zeros(6, dtype=torch.int64), torch.tensor([0, 0, 1, 0, 0, 1]))
    dynamics = recorder.dynamics()
    assert dynamics.forgetting.tolist() == [1, 1]
    assert dynamics.observations.tolist() == [4, 2]
    agrees(dynamics, [[(right, 0), (wrong, 0), (wrong, 0), (right, 0)], [(right, 0), (wrong, 0)]])


def test_forgetting_counts_steps_from_right_to_wrong_and_marks_what_was_never_learnt():
    patterns = ["1010", "0011", "0000", "1111", "1001"]
    recorder = Recorder(5)
    for epoch in range(4):
        logits = torch.tensor([[1.0, 0.0] if pattern[epoch] == "1" else [0.0, 1.0] for pattern in patterns])
        recorder.update(logits, torch.zeros(5, dtype=torch.int64), torch.arange(5))
    dynamics = recorder.dynamics()
    assert dynamics.forgetting.tolist() == [2, 0, 0, 0, 1]
    assert dynamics.learnt.tolist() == [True, True, False, True, True]


def test_a_sample_never_seen_has_no_observations_and_nan_measures():
    recorder = Recorder(2)
    recorder.update(torch.ones(1, 2), torch.tensor([1]), torch.tensor([1]))
    dynamics = recorder.dynamics()
    assert dynamics.observations.tolist() == [0, 1]
    assert all(np.isnan(getattr(dynamics, name)[0]) for name in STATISTICS)
    assert (dynamics.labels[0], dynamics.rival[0], dynamics.last_prediction[0]) == (-1, -1, -1)
    assert not dynamics.learnt[0]


def test_after_one_epoch_variability_is_zero_and_said_to_mean_nothing():
    recorder = Recorder(3)
    recorder.update(torch.randn(3, 2), torch.zeros(3, dtype=torch.int64), torch.arange(3))
    dynamics = recorder.dynamics()
    assert dynamics.variability.tolist() == [0, 0, 0]
    assert not dynamics.has_spread


def test_a_constant_probability_has_no_variability_at_all():
    recorder = Recorder(1)
    for _ in range(1000):
        recorder.update(torch.tensor([[0.3, 9.1, -1.7]]), torch.tensor([1]), torch.tensor([0]))
    assert recorder.dynamics().variability.tolist() == [0]


def test_a_tiny_spread_near_one_survives_a_long_run():
    margins = 20 + np.random.default_rng(0).normal(size=500)
    recorder = Recorder(1)
    for margin in margins:
        recorder.update(torch.tensor([[margin, 0.0]]), torch.tensor([0]), torch.tensor([0]))
    # 1 − p is computed without cancellation here; p itself has a spacing of 1e-16.
    assert recorder.dynamics().variability[0] == pytest.approx(np.std(1 / (1 + np.exp(margins))), rel=1e-5)


def test_padding_and_spoilt_rows_are_not_recorded():
    recorder = Recorder(2)
    logits = torch.tensor([[1.0, 0.0], [5.0, 0.0], [float("nan"), 0.0], [2.0, 0.0]])
    recorder.update(logits, torch.tensor([0, 0, 0, -100]), torch.tensor([0, -1, 1, 1]))
    dynamics = recorder.dynamics()
    assert dynamics.observations.tolist() == [1, 0]
    assert dynamics.aum[0] == 1.0


def test_an_empty_batch_changes_nothing():
    recorder = Recorder(2)
    recorder.update(torch.empty(0, 3), torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    assert recorder.dynamics().observations.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("shapes", "error"),
    [(((2, 3), 2, [0, 2]), IndexError), (((2, 3), 1, [0, 1]), ValueError), (((6,), 2, [0, 1]), ValueError)],
)
def test_rows_and_shapes_that_do_not_fit_are_refused(shapes, error):
    logits, labels, rows = shapes
    with pytest.raises(error):
        Recorder(2).update(torch.zeros(logits), torch.zeros(labels, dtype=torch.int64), torch.tensor(rows))


def test_numpy_arrays_and_lists_are_recorded_like_tensors():
    logits, labels, rows = next(stream(np.random.default_rng(0)))
    expected = record(Recorder(6), [(logits, labels, rows)]).dynamics()
    for batch in ((logits.numpy(), labels.numpy(), rows.numpy()), (logits.tolist(), labels.tolist(), rows.tolist())):
        assert_same(record(Recorder(6), [batch]).dynamics(), expected, exactly=True)


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ((torch.zeros(2, 3), torch.tensor([0, 7]), [0, 1]), "^label 7, but the logits have 3 classes, counted from 0$"),
        ((torch.zeros(2, 3), torch.tensor([0.0, 1.0]), [0, 1]), r"^labels has dtype torch.float32; it must hold int"),
        ((torch.zeros(2, 3), torch.tensor([0, 1]), [0.0, 1.0]), r"^rows has dtype torch.float32; it must hold int"),
        ((torch.zeros(2, 3), ["cat", "dog"], [0, 1]), "^labels must be a tensor or an array of numbers, not list$"),
        (([[0.0, 1.0], [2.0]], [0, 1], [0, 1]), "^logits must be a tensor or an array of numbers, not list$"),
        ((torch.zeros(2, 3), None, [0, 1]), "^labels must be a tensor or an array of numbers, not NoneType$"),
        ((torch.zeros(2, 0), [0, 1], [0, 1]), r"^update wants logits \[b, classes\].* not \[2, 0\]"),
    ],
)
def test_what_cannot_be_recorded_is_refused_in_one_line_and_leaves_the_record_as_it_was(batch, says):
    recorder = Recorder(2)
    with pytest.raises(InputError, match=says):
        recorder.update(*batch)
    assert recorder.dynamics().observations.tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool])
def test_labels_of_any_integer_type_are_recorded(dtype):
    recorder = Recorder(2)
    recorder.update(torch.eye(2), torch.tensor([0, 1]).to(dtype), torch.arange(2))
    assert recorder.dynamics().labels.tolist() == [0, 1]


@pytest.mark.parametrize("label", [0, 1])
def test_fewer_names_than_recorded_classes_are_refused_while_the_record_stays(tmp_path, label):
    recorder = Recorder(1)
    recorder.update(torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([label]), torch.tensor([0]))
    with pytest.raises(InputError, match=r"^2 label_names, but class 2 was recorded$"):
        recorder.dynamics(label_names=("a", "b"))
    recorder.dynamics(label_names=("a", "b", "c")).save(tmp_path / "map.parquet")


def test_ids_that_occur_twice_are_refused():
    with pytest.raises(InputError, match=r"^2 of 3 ids occur more than once$"):
        Recorder(3).dynamics(ids=["x"] * 3)


@pytest.mark.parametrize("ids", [[7, 8, 9], ["7", "8", None], np.arange(3), torch.arange(3)])
def test_ids_that_are_not_strings_are_refused_before_anything_is_looked_up_or_saved(ids):
    wrong = r"^ids\[\d\] is .*; ids must be strings$"
    with pytest.raises(InputError, match=wrong):
        Recorder(3).dynamics(ids=ids)
    with pytest.raises(InputError, match=wrong):
        row_lookup(ids)


def test_strings_of_numpy_are_ids(tmp_path):
    dynamics = Recorder(2).dynamics(ids=np.array(["a", "b"]))
    dynamics.save(tmp_path / "map.parquet")
    assert row_lookup(np.array(["a", "b"]))(["b"]).tolist() == [1]


def test_logits_may_carry_a_graph_and_keep_it():
    logits = torch.randn(2, 3, requires_grad=True)
    recorder = Recorder(2)
    recorder.update(logits, torch.tensor([0, 1]), torch.arange(2))
    logits.sum().backward()
    assert logits.grad is not None
    assert not any(values.requires_grad for values in recorder.state_dict().values())


@given(st.integers(0, 10_000), st.integers(0, 8))
@settings(max_examples=30)
def test_two_stretches_merged_in_order_equal_one(seed, cut):
    data = list(stream(np.random.default_rng(seed)))
    whole = record(Recorder(6), data).dynamics()
    merged = record(Recorder(6), data[:cut]).merge(record(Recorder(6), data[cut:])).dynamics()
    assert_same(merged, whole)


def test_recorders_of_different_samples_merge_to_the_last_bit():
    data = list(stream(np.random.default_rng(0), samples=6, batches=40))
    low = [(a[r < 3], b[r < 3], r[r < 3]) for a, b, r in data]
    high = [(a[r >= 3], b[r >= 3], r[r >= 3]) for a, b, r in data]
    whole = record(Recorder(6), data).dynamics()
    merged = record(Recorder(6), low).merge(record(Recorder(6), high)).dynamics()
    assert_same(merged, whole, exactly=True)
    assert merged.rival.tolist() == whole.rival.tolist()


def test_ranks_merged_at_each_epochs_end_equal_one_process():
    rng = np.random.default_rng(3)
    labels = torch.tensor(rng.integers(3, size=8))
    one, total, ranks = Recorder(8), Recorder(8), [Recorder(8), Recorder(8)]
    for _ in range(5):
        order, logits = rng.permutation(8), torch.tensor(rng.normal(size=(8, 3)))
        for rank, rows in zip(ranks, (order[:4], order[4:]), strict=True):
            rank.reset()
            rank.update(logits[rows], labels[rows], torch.tensor(rows))
            total.merge(rank)
        total.end_epoch()
        one.update(logits[order], labels[order], torch.tensor(order))
        one.end_epoch()
    assert_same(total.dynamics(), one.dynamics())
    assert total.dynamics().rival.tolist() == one.dynamics().rival.tolist()
    assert total.history().codes.tolist() == one.history().codes.tolist()
    assert total.epochs == one.epochs == 5


def test_recorders_of_different_sizes_do_not_merge():
    with pytest.raises(ValueError, match="2 and 3 samples"):
        Recorder(2).merge(Recorder(3))


@pytest.mark.parametrize("keep_logits", [False, True])
def test_resuming_from_a_saved_state_is_exact(tmp_path, keep_logits):
    from safetensors.torch import load_file, save_file

    data = list(stream(np.random.default_rng(1), batches=9))
    straight = Recorder(6, keep_logits=keep_logits)
    broken = Recorder(6, keep_logits=keep_logits)
    for step, batch in enumerate(data):
        if step == 5:  # in the middle of an epoch
            save_file(broken.state_dict(), tmp_path / "dynamics.safetensors")
            broken = Recorder(6, keep_logits=keep_logits)
            broken.load_state_dict(load_file(tmp_path / "dynamics.safetensors"))
        for recorder in (straight, broken):
            recorder.update(*batch)
            if step % 3 == 2:
                recorder.end_epoch()
    assert straight.epochs == broken.epochs == 3
    ours, theirs = straight.state_dict(), broken.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name].nan_to_num(), theirs[name].nan_to_num()) for name in ours)


def test_loading_leaves_the_buffers_where_they_are():
    recorder = Recorder(4)
    before = recorder._sums.data_ptr(), recorder._notes.data_ptr()
    recorder.load_state_dict(Recorder(4).state_dict())
    recorder.reset()
    recorder.merge(Recorder(4))
    assert (recorder._sums.data_ptr(), recorder._notes.data_ptr()) == before


def test_memory_depends_on_the_samples_alone():
    recorder = Recorder(1000)
    most = 0
    for _ in range(200):
        recorder.update(torch.randn(50, 77), torch.zeros(50, dtype=torch.int64), torch.arange(50))
        recorder.end_epoch()
        most = max(most, sum(values.nbytes for values in recorder.state_dict().values()))
    assert most == (128 + 24 + 64) * 1000 + 8 + 64 * 8


def test_the_history_is_what_each_epoch_said():
    labels = torch.tensor([0, 1, 0])
    recorder = Recorder(3)
    assert recorder.history() is None
    shares = [[0.1, 0.25, 0.5], [0.9, 0.6, np.nan], [0.2, 1.0, 0.7]]
    for epoch in shares:
        p = torch.tensor(epoch, dtype=torch.float64)
        gold = torch.where(labels == 0, p, 1 - p)
        recorder.update(torch.stack([gold, 1 - gold], 1).log(), labels, torch.arange(3))
        recorder.end_epoch()
    history = recorder.history()
    assert history.epochs == (1, 2, 3)
    np.testing.assert_allclose(history.probability.T, shares, atol=0.005)
    assert history.right.T.tolist() == [[False, False, True], [True, True, False], [False, True, True]]


def test_the_history_is_the_mean_over_copies_in_an_epoch():
    recorder = Recorder(1)
    logits = torch.tensor([[0.2, 0.8], [0.6, 0.4], [0.7, 0.3]]).log()
    recorder.update(logits, torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64))
    recorder.end_epoch()
    assert recorder.history().probability.tolist() == [[0.5]]
    assert recorder.history().right.tolist() == [[True]]


def test_the_history_of_many_epochs_is_thinned_evenly():
    recorder = Recorder(1)
    for epoch in range(1, 151):
        gold = torch.tensor([[epoch / 200, 1 - epoch / 200]]).log()
        recorder.update(gold, torch.tensor([0]), torch.tensor([0]))
        recorder.end_epoch()
    history = recorder.history()
    assert history.epochs == tuple(range(4, 151, 4))
    np.testing.assert_allclose(history.probability[0], np.array(history.epochs) / 200, atol=0.005)


def test_histories_of_disjoint_samples_are_put_together():
    one, two = Recorder(2), Recorder(2)
    for recorder, row in ((one, 0), (two, 1)):
        for _ in range(2):
            recorder.update(torch.tensor([[1.0, 1.0]]), torch.tensor([0]), torch.tensor([row]))
            recorder.end_epoch()
    assert one.merge(two).history().codes.tolist() == [[178, 178]] * 2


@pytest.mark.parametrize(("votes", "winner"), [("1121", 1), ("2211222", 2), ("1", 1)])
def test_the_rival_is_the_class_most_of_the_history_leant_to(votes, winner):
    recorder = Recorder(1)
    for vote in votes:
        logits = torch.zeros(1, 3)
        logits[0, int(vote)] = 2.0
        recorder.update(logits, torch.tensor([0]), torch.tensor([0]))
    assert recorder.dynamics().rival.tolist() == [winner]


def test_the_rival_is_found_however_small_its_probability():
    recorder = Recorder(1)
    recorder.update(torch.tensor([[2000.0, 0.0, 1.0]]), torch.tensor([0]), torch.tensor([0]))
    assert recorder.dynamics().rival.tolist() == [2]


def test_ids_are_looked_up():
    rows = row_lookup(["a", "b", "c"])
    assert rows(["c", "a"]).tolist() == [2, 0]
    with pytest.raises(InputError, match="no such id: 'x'"):
        rows(["a", "x"])
    with pytest.raises(ValueError, match="more than once"):
        row_lookup(["a", "a"])


def test_aum_equals_that_of_its_authors_package(tmp_path):
    pytest.importorskip("pandas")
    aum = pytest.importorskip("aum")
    data = list(stream(np.random.default_rng(2), batches=30))
    theirs = aum.AUMCalculator(str(tmp_path), compressed=True)
    for logits, labels, rows in data:
        theirs.update(logits, labels, rows.tolist())
    ours = record(Recorder(6), data).dynamics().aum
    for row, total in theirs.sums.items():
        assert ours[row] == pytest.approx(total / theirs.counts[row], abs=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_update_records_like_a_plain_one():
    data = [tuple(part.cuda() for part in batch) for batch in stream(np.random.default_rng(4), batches=12)]
    plain, captured = (Recorder(6, device="cuda", keep_logits=True) for _ in range(2))
    static = tuple(part.clone() for part in data[0])
    warm = torch.cuda.Stream()
    with torch.cuda.stream(warm):
        captured.update(static[0], static[1], torch.full_like(static[2], -1))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.update(*static)
    for batch in data:
        torch.cuda.set_sync_debug_mode("error")
        plain.update(*batch)
        torch.cuda.set_sync_debug_mode("default")
        for place, part in zip(static, batch, strict=True):
            place.copy_(part)
        graph.replay()
    for recorder in (plain, captured):
        recorder.end_epoch()
    assert_same(captured.dynamics(), plain.dynamics())
    assert torch.equal(captured.logits().nan_to_num(), plain.logits().nan_to_num())
