import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from calmix.data import read_table, write_table
from calmix.dynamics import Dynamics, History
from calmix.errors import InputError


@pytest.fixture
def logits():
    values = np.random.default_rng(0).normal(scale=2, size=(4, 6, 3))
    values[1, 2] = np.nan  # not seen in the second epoch
    values[:, 5] = np.nan  # never seen
    return values


@pytest.fixture
def dynamics(logits):
    ids = tuple("uvwxyz")
    return Dynamics.from_logits(logits, [0, 1, 2, 0, 1, 2], ids=ids, label_names=("no", "yes", "é, \n"))


def assert_equal(one, two):
    for field in dataclasses.fields(Dynamics):
        ours, theirs = getattr(one, field.name), getattr(two, field.name)
        if isinstance(ours, np.ndarray):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)
        elif isinstance(ours, History):
            assert ours.epochs == theirs.epochs
            np.testing.assert_array_equal(ours.codes, theirs.codes)
        else:
            assert ours == theirs


def test_from_logits_equals_the_loop(agrees, logits, dynamics):
    labels = [0, 1, 2, 0, 1, 2]
    agrees(dynamics, [[(e[i].tolist(), labels[i]) for e in logits if not np.isnan(e[i, 0])] for i in range(6)])
    assert dynamics.epochs == 4
    assert dynamics.labels.tolist() == labels


def test_ids_are_positions_unless_given(logits):
    assert Dynamics.from_logits(logits, [0] * 6).ids == ("0", "1", "2", "3", "4", "5")


def test_logits_and_labels_that_do_not_fit_are_refused(logits):
    with pytest.raises(ValueError, match="epochs, samples, classes"):
        Dynamics.from_logits(logits[0], [0] * 6)
    with pytest.raises(ValueError, match="epochs, samples, classes"):
        Dynamics.from_logits(logits, [0] * 5)
    with pytest.raises(ValueError, match="ids"):
        Dynamics.from_logits(logits, [0] * 6, ids=("a",))


@pytest.mark.parametrize("labels", [[0.9, 1.7, 0, 0, 0, 0], [0.0] * 6, ["no"] * 6, [None] * 6])
def test_labels_that_are_no_integers_are_refused(logits, labels):
    with pytest.raises(InputError, match=r"^labels has dtype .*; it must hold integers, the classes counted from 0$"):
        Dynamics.from_logits(logits, labels)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"ids": range(6)}, r"^ids\[0\] is 0; ids must be strings$"),
        ({"ids": "uvwxyz"}, r"^ids must be a list of strings, not one string: 'uvwxyz'$"),
        ({"label_names": ("no", 1, True)}, r"^label_names\[1\] is 1; label_names must be strings$"),
    ],
)
def test_names_that_are_not_strings_are_refused(logits, dynamics, names, message):
    with pytest.raises(InputError, match=message):
        Dynamics.from_logits(logits, [0, 1, 2, 0, 1, 2], **names)
    with pytest.raises(InputError, match=message):
        dataclasses.replace(dynamics, **names)


def test_samples_are_not_looked_for_by_numbers(dynamics):
    with pytest.raises(InputError, match=r"^ids\[1\] is 2; ids must be strings$"):
        dynamics.for_ids(["u", 2])


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("recorded_on", ["training pass", "evaluation pass"])
def test_saved_and_loaded_it_is_the_same(tmp_path, dynamics, named, recorded_on):
    dynamics = dataclasses.replace(dynamics, label_names=dynamics.label_names if named else (), recorded_on=recorded_on)
    dynamics.save(tmp_path / "map.parquet")
    assert_equal(Dynamics.load(tmp_path / "map.parquet"), dynamics)


def test_the_table_is_readable_by_anyone(tmp_path, dynamics):
    dynamics.save(tmp_path / "map.parquet")
    row = read_table(tmp_path / "map.parquet").to_pylist()
    assert row[2]["id"] == "w"
    assert row[2]["label"] == "é, \n"
    assert row[2]["observations"] == 3
    assert row[5].pop("history") == [255] * 4
    assert row[5] | {"id": None, "label": None, "observations": None} == dict.fromkeys(row[5])


def test_other_files_are_not_dynamics(tmp_path, dynamics):
    pa.parquet.write_table(pa.table({"id": ["a"]}), tmp_path / "other.parquet")
    with pytest.raises(InputError, match="not dynamics"):
        Dynamics.load(tmp_path / "other.parquet")
    with pytest.raises(InputError, match="no such file"):
        Dynamics.load(tmp_path / "absent.parquet")
    with pytest.raises(InputError, match=r"\.parquet"):
        dynamics.save(tmp_path / "map.csv")


@pytest.mark.parametrize("name", ["clean.csv", "clean.jsonl", "clean.parquet.gz"])
def test_a_table_that_is_not_parquet_is_named_as_no_dynamics(tmp_path, name):
    write_table(pa.table({"id": ["a"]}), tmp_path / name)
    with pytest.raises(InputError, match=rf"{name}: these are not dynamics that calmix recorded$"):
        Dynamics.load(tmp_path / name)


def test_a_map_that_lost_a_column_or_got_an_unknown_class_is_named(tmp_path, dynamics):
    table = dynamics.to_table()
    label = pa.array(["maybe"] * 6)
    for changed in (table.drop_columns(["aum"]), table.set_column(1, "label", label)):
        pa.parquet.write_table(changed, tmp_path / "map.parquet")
        with pytest.raises(InputError, match=r"map.parquet: these dynamics were changed since calmix recorded them$"):
            Dynamics.load(tmp_path / "map.parquet")


def test_a_last_look_at_other_samples_or_fewer_classes_is_refused(dynamics):
    for shape in ((6, 2), (5, 3), (6,)):
        with pytest.raises(InputError, match=r"^with_last_look wants logits \[6 samples, 3 or more classes\], not \["):
            dynamics.with_last_look(np.zeros(shape))


def test_rows_are_taken_in_the_order_asked_for(dynamics):
    part = dynamics.take([4, 0])
    assert part.ids == ("y", "u")
    assert part.aum.tolist() == dynamics.aum[[4, 0]].tolist()
    with pytest.raises(TypeError, match="mask"):
        dynamics.take(dynamics.aum > 0)


def test_a_map_is_aligned_with_another_order_by_ids(dynamics):
    assert dynamics.for_ids(["x", "u"]).aum.tolist() == dynamics.aum[[3, 0]].tolist()
    with pytest.raises(InputError, match="1 of 2 samples"):
        dynamics.for_ids(["u", "nobody"])


def test_classes_are_counted_from_names_labels_and_predictions(dynamics):
    assert dynamics.n_classes == 3
    assert dataclasses.replace(dynamics, label_names=()).n_classes == 3


def test_a_last_look_replaces_loss_and_prediction_of_those_it_could_judge():
    logits = np.array([[[2.0, 0.0], [0.0, 1.0], [0.0, 3.0], [np.nan, np.nan]]])
    before = Dynamics.from_logits(logits, [0, 0, 0, 1])
    after = before.with_last_look([[0.0, 1.0], [3.0, 0.0], [np.nan, 0.0], [1.0, 2.0]])
    assert after.last_prediction.tolist() == [1, 0, 1, -1]
    expected = [np.log1p(np.exp(1.0)), np.log1p(np.exp(-3.0)), before.last_loss[2], np.nan]
    np.testing.assert_allclose(after.last_loss, expected)
    assert after.loss is before.loss


def test_a_last_look_that_gave_the_label_probability_0_is_one():
    before = Dynamics.from_logits(np.zeros((1, 2, 2)), [0, 0])
    after = before.with_last_look([[-np.inf, 0.0], [0.0, -np.inf]])
    assert after.last_loss[0] > 700
    assert after.last_prediction.tolist() == [1, 0]


def test_the_history_travels_with_its_samples(tmp_path):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4, 6, 3))
    logits[1, 2] = np.nan
    dynamics = Dynamics.from_logits(logits, rng.integers(3, size=6))
    dynamics.save(tmp_path / "map.parquet")
    again = Dynamics.load(tmp_path / "map.parquet")
    assert again.history.epochs == (1, 2, 3, 4)
    np.testing.assert_array_equal(again.history.codes, dynamics.history.codes)
    assert np.isnan(again.history.probability[2, 1])
    np.testing.assert_array_equal(again.take([5, 2]).history.codes, dynamics.history.codes[[5, 2]])
    with pytest.raises(ValueError, match="a history of 6"):
        dataclasses.replace(dynamics.take([0]), history=dynamics.history)


def test_a_map_without_a_history_is_read_as_before(tmp_path):
    dynamics = dataclasses.replace(Dynamics.from_logits(np.zeros((2, 3, 2)), [0, 1, 0]), history=None)
    dynamics.save(tmp_path / "map.parquet")
    assert Dynamics.load(tmp_path / "map.parquet").history is None
    assert dynamics.take([1]).history is None


def test_what_fitted_heads_lost_on_samples_they_had_not_seen_is_kept(tmp_path):
    before = Dynamics.from_logits(np.zeros((2, 4, 2)), [0, 1, 0, 1], ids=("a", "b", "c", "d"))
    after = before.with_head([[1.0, 0.0], [3.0, 0.0], [np.nan, np.nan], [0.0, -np.inf]])
    expected = [np.log1p(np.exp(-1.0)), np.log1p(np.exp(3.0)), np.nan]
    np.testing.assert_allclose(after.head_loss[:3], expected)
    assert after.head_loss[3] > 700  # the label was given probability 0
    assert before.head_loss is None
    assert after.loss is before.loss
    assert after.last_loss is before.last_loss
    after.save(tmp_path / "map.parquet")
    again = Dynamics.load(tmp_path / "map.parquet")
    np.testing.assert_array_equal(again.head_loss, after.head_loss)
    np.testing.assert_array_equal(again.take([1, 0]).head_loss, after.head_loss[[1, 0]])
    before.save(tmp_path / "plain.parquet")
    assert Dynamics.load(tmp_path / "plain.parquet").head_loss is None


def test_heads_of_other_samples_are_refused(dynamics):
    with pytest.raises(InputError, match=r"^with_head wants logits \[6 samples, 3 or more classes\], not \[5, 3\]"):
        dynamics.with_head(np.zeros((5, 3)))
