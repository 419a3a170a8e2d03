"""Few rows: each is predicted by networks that have not learnt from it, which choose the epoch and the temperature."""

import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tiny
import torch
from numpy.typing import NDArray
from runs import recorded, weights
from safetensors.torch import load_file

import calmix
from calmix.data import Examples
from calmix.errors import InputError
from calmix.models import FittedHead
from calmix.recalibration import Temperature
from calmix.training import Progress
from calmix.training.cross_fitting import FoldLogits, FoldTraining, cross_fit, folds_of_head
from calmix.training.cutting import Cuts
from calmix.training.interrupting import Interrupted
from calmix.training.keeping import Fit
from calmix.training.preparing import Sets
from calmix.training.selecting import Selection, dev_figures

Told = dict[int, NDArray[np.float32]]


def sure(labels: NDArray[np.int64], share: float, classes: int = 3) -> NDArray[np.float32]:
    """Return logits that are right about so many of the rows, and as sure as that."""
    right = np.arange(len(labels)) < round(share * len(labels))
    said = np.where(right, labels, (labels + 1) % classes)
    return (np.eye(classes) * np.log(1 + 9 * share)).astype(np.float32)[said]


# ---- what is put together


def test_each_row_has_what_was_said_without_it_in_its_own_place() -> None:
    examples, folds = tiny.examples(7), np.array([1, 0, -1, 1, 2, 0, 2])
    asked: list[tuple[list[str], list[str], int]] = []

    def train_fold(learn: Examples, judge: Examples, fold: int) -> Told:
        asked.append((learn.ids, judge.ids, fold))
        marks = np.array([examples.ids.index(i) for i in judge.ids], dtype=np.float32)
        return {epoch: np.stack([marks, np.full(len(marks), epoch), marks * 0], axis=1) for epoch in (0, 1)}

    found = cross_fit(examples, folds, train_fold)
    assert [fold for *_, fold in asked] == [0, 1, 2]
    for learn, judge, fold in asked:
        assert judge == [i for i, f in zip(examples.ids, folds, strict=True) if f == fold]
        assert learn == [i for i in examples.ids if i not in judge]
    for epoch in (0, 1):
        assert found.by_epoch[epoch].tolist() == [[row, epoch, 0] for row in (0, 1, 3, 4, 5, 6)]
    assert found.labels.tolist() == examples.labels[folds >= 0].tolist()


def test_choices_that_a_row_does_not_have_are_ruled_out_whichever_fold_has_the_most() -> None:
    examples, folds = tiny.examples(6, kind="choices", counts=(2, 4, 3)), np.array([0, 1, 2, 0, 1, 2])

    def train_fold(learn: Examples, judge: Examples, fold: int) -> Told:
        return {1: np.ones((len(judge), (2, 4, 3)[fold]), dtype=np.float32)}

    found = cross_fit(examples, folds, train_fold).by_epoch[1]
    assert np.isfinite(found).sum(axis=1).tolist() == [2, 4, 3, 2, 4, 3]
    assert (found[~np.isfinite(found)] == -np.inf).all()


@pytest.mark.parametrize("select", ["nll-ts", "nll", "accuracy", "mcc"])
def test_the_last_epoch_is_kept_though_one_in_between_was_better(select: Selection) -> None:
    labels = tiny.examples(60).labels
    by_epoch = {epoch: sure(labels, share) for epoch, share in enumerate([0.5, 1.0, 0.9])}
    assert FoldLogits(by_epoch, labels).best_epoch(select) == 2


@pytest.mark.parametrize("select", ["nll-ts", "nll", "accuracy", "mcc"])
def test_a_head_that_was_clearly_better_alone_is_kept_unless_the_last_is_asked_for(select: Selection) -> None:
    labels = tiny.examples(60).labels
    found = FoldLogits({epoch: sure(labels, share) for epoch, share in enumerate([0.9, 1.0, 0.5])}, labels)
    assert found.best_epoch(select) == 0
    assert found.best_epoch("none") == 2


def test_a_head_that_was_hardly_better_alone_is_not_kept() -> None:
    labels = tiny.examples(60).labels
    right = sure(labels, 0.9)
    found = FoldLogits({0: right, 3: np.concatenate([right[:1, ::-1], right[1:]])}, labels)
    assert found.best_epoch("accuracy") == 3
    assert FoldLogits({0: right}, labels).best_epoch("nll-ts") == 0


def test_the_history_tells_of_the_folds_what_it_would_tell_of_a_dev_set() -> None:
    labels = tiny.examples(60).labels
    told = FoldLogits({0: sure(labels, 0.5), 1: sure(labels, 0.9)}, labels)
    done = Fit(history=[{"epoch": 0, "loss": None}, {"epoch": 1, "loss": 0.3}], step=7)
    found = told.told_in(done)
    assert [entry["dev"]["accuracy"] for entry in found.history] == [0.5, 0.9]
    assert [entry["loss"] for entry in found.history] == [None, 0.3]
    assert all(len(entry["joint"]) == 3 for entry in found.history)
    assert "dev" not in done.history[0]
    assert found.step == 7


def test_a_head_alone_is_judged_by_the_rows_that_are_in_a_fold() -> None:
    examples, said = tiny.examples(4), np.arange(12, dtype=np.float32).reshape(4, 3)
    folds = np.array([0, -1, 1, 0])
    sets = Sets(examples, examples.take([0, 2, 3]), folds=folds)
    found = folds_of_head(Fit(fold_logits=said), sets)
    assert found is not None
    np.testing.assert_array_equal(found.by_epoch[0], said[[0, 2, 3]])
    assert found.labels.tolist() == examples.labels[[0, 2, 3]].tolist()
    assert folds_of_head(Fit(), sets) is None
    assert folds_of_head(Fit(fold_logits=said), replace(sets, folds=None)) is None


# ---- whole runs

Watched = list[tuple[Examples, Examples, Told]]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """What each network of a fold learnt from, what it predicted, and what it said."""
    found: Watched = []
    trained = FoldTraining._trained

    def watch(self: FoldTraining, learn: Examples, judge: Examples) -> Told:
        told = trained(self, learn, judge)
        found.append((learn, judge, told))
        return told

    monkeypatch.setattr(FoldTraining, "_trained", watch)
    return found


@pytest.fixture
def told_best(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, range], None]:
    """Return `told_best(epoch, epochs)`: folds are not trained, but say that this one of the epochs is the best."""

    def tell(best: int, epochs: range) -> None:
        def say(self: FoldTraining, learn: Examples, judge: Examples) -> Told:
            return {epoch: sure(judge.labels, 0.9 if epoch == best else 0.4) for epoch in epochs}

        monkeypatch.setattr(FoldTraining, "_trained", say)

    return tell


FOLDS: dict[str, Any] = {"dev": None, "folds": 3}


@pytest.mark.parametrize("folds", [2, 3])
@pytest.mark.parametrize("head", ["fitted", "random"])
def test_every_row_is_predicted_by_a_network_that_has_not_seen_it(
    anew: Any, watched: Watched, head: str, folds: int
) -> None:
    run = anew(dev=None, folds=folds, head=head)
    ids = tiny.examples(24).ids
    assert len(watched) == folds
    for learn, judge, told in watched:
        assert sorted([*learn.ids, *judge.ids]) == sorted(ids)
        assert len(learn) + len(judge) == len(ids)
        assert list(told) == ([0, 1, 2] if head == "fitted" else [1, 2])
    said = {
        i: row for _, judge, told in watched for i, row in zip(judge.ids, told[run.metrics["best_epoch"]], strict=True)
    }
    table = pq.read_table(run.folder / "predictions-dev.parquet")
    assert table["id"].to_pylist() == ids
    np.testing.assert_array_equal(np.array(table["logits"].to_pylist(), np.float32), [said[i] for i in ids])
    assert run.metrics["rows"] == {"train": 24, "dev": 24}


def test_the_temperature_is_that_of_the_folds_and_the_model_has_it(anew: Any) -> None:
    run = anew(**FOLDS, select="none")
    said = np.array(pq.read_table(run.folder / "predictions-dev.parquet")["logits"].to_pylist())
    temperature = Temperature.fit(said, tiny.examples(24).labels, expected=2.0).temperature
    assert run.metrics["temperature"] == pytest.approx(temperature)
    assert [json.loads(line) for line in (run.folder / "log.jsonl").read_text().splitlines()] == run.metrics["epochs"]
    dev = run.metrics["epochs"][-1]["dev"]
    assert dev["temperature"] == pytest.approx(temperature)
    assert run.metrics["splits"]["dev"]["before"]["nll"] == pytest.approx(dev["nll"])
    assert calmix.load(run.folder).model.config.calmix_temperature == pytest.approx(temperature)


@pytest.mark.parametrize("best", [1, 2, 3])
def test_the_run_goes_on_to_its_last_epoch_whichever_of_the_folds_was_the_best(
    quick: Any, told_best: Any, best: int
) -> None:
    told_best(best, range(1, 4))
    run = quick(**FOLDS, epochs=3)
    assert run.metrics["best_epoch"] == 3
    assert [(entry["epoch"], entry["step"]) for entry in run.metrics["epochs"]] == [(1, 3), (2, 6), (3, 9)]
    assert run.metrics["epochs"][best - 1]["dev"]["accuracy"] == pytest.approx(0.9, abs=0.05)
    a, b = weights(run.folder), weights(quick("whole", epochs=3, select="none").folder)
    assert all(torch.equal(a[name], b[name]) for name in a if not name.startswith("classifier"))


def test_where_no_epoch_beats_the_head_no_step_is_taken_and_the_head_has_its_full_size(
    anew: Any, told_best: Any, checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads: list[FittedHead] = []
    put_into = FittedHead.put_into
    monkeypatch.setattr(FittedHead, "put_into", lambda self, *args: (heads.append(self), put_into(self, *args))[1])
    told_best(0, range(3))
    run = anew(**FOLDS)
    assert run.metrics["best_epoch"] == 0
    assert [(entry["epoch"], entry["step"], entry["loss"]) for entry in run.metrics["epochs"]] == [(0, 0, None)]
    assert not (run.folder / "datamap.parquet").exists()
    found, before = weights(run.folder), load_file(checkpoint("bert", classes=4) / "model.safetensors")
    (head,) = heads
    torch.testing.assert_close(
        found["classifier.weight"] * run.metrics["temperature"], head.weights["classifier.weight"], rtol=1e-5, atol=1e-6
    )
    assert all(torch.equal(found[name], before[name]) for name in before if ".layer." in name or "embeddings" in name)


def test_the_only_text_of_a_label_is_learnt_from_in_every_fold_and_not_judged(anew: Any, watched: Watched) -> None:
    labels = ["animal"] * 12 + ["weather"] + ["food"] * 11
    data = Examples.from_texts(tiny.texts(24)[0], labels)
    run = anew(**FOLDS, train=data, epochs=1)
    lone = data.ids[12]
    assert all(lone in learn.ids and lone not in judge.ids for learn, judge, _ in watched)
    assert run.metrics["rows"] == {"train": 24, "dev": 23}
    assert lone not in pq.read_table(run.folder / "predictions-dev.parquet")["id"].to_pylist()
    assert calmix.load(run.folder).label_names == ("animal", "food", "weather")


def test_few_rows_are_folded_unless_something_else_was_asked_for(anew: Any) -> None:
    heard: list[str] = []
    run = anew("few", dev=None, epochs=1, on_note=heard.append)
    assert tomllib.loads((run.folder / "run.toml").read_text())["config"]["folds"] == 3
    assert [note for note in heard if note.startswith("fold ")] == [
        f"fold {k}: 16 rows to learn from, 8 to predict" for k in (1, 2, 3)
    ]
    assert any("none is split off so few rows" in note for note in run.metrics["notes"])
    split = anew("split", dev=None, folds=0, epochs=1)
    assert "folds" not in tomllib.loads((split.folder / "run.toml").read_text())["config"]
    assert split.metrics["rows"] == {"train": 21, "dev": 3}


def test_choices_and_images_are_folded_too(anew: Any, checkpoint: Any, image_checkpoint: Any) -> None:
    data = tiny.examples(24, kind="choices", counts=(2, 4, 3))
    run = anew("choices", **FOLDS, train=data, epochs=1)
    rows = pq.read_table(run.folder / "predictions-dev.parquet")["probs"].to_pylist()
    assert [len(row) for row in rows] == [2, 4, 3] * 8
    net = image_checkpoint("convnet", classes=4)
    run = anew("images", dev=None, folds=2, train=tiny.images(24), model=net, optimizer="sgd", lr=0.05, epochs=1)
    assert run.metrics["rows"] == {"train": 24, "dev": 24}
    assert run.metrics["epochs"][0]["epoch"] == 0


def test_a_head_alone_has_its_temperature_from_parts_of_the_rows_it_was_fitted_without(
    anew: Any, watched: Watched
) -> None:
    run = anew(**FOLDS, epochs=0)
    assert not watched
    said = np.array(pq.read_table(run.folder / "predictions-dev.parquet")["logits"].to_pylist())
    labels = tiny.examples(24).labels
    assert run.metrics["temperature"] == pytest.approx(Temperature.fit(said, labels, expected=1.0).temperature)
    assert run.metrics["epochs"][0]["dev"]["nll"] == pytest.approx(run.metrics["splits"]["dev"]["before"]["nll"])
    # The finished head has seen all rows, and says something else of them.
    own = calmix.load(run.folder).logits(tiny.examples(24)) * run.metrics["temperature"]
    assert np.abs(own - said).max() > 1e-2


@pytest.mark.parametrize("epochs", [0, 1])
def test_a_head_that_was_trained_elsewhere_has_seen_no_row_of_any_fold(
    quick: Any, checkpoint: Any, epochs: int, watched: Watched
) -> None:
    data = tiny.examples(24)
    run = quick(**FOLDS, head="fitted", epochs=epochs)
    own = calmix.load(checkpoint("bert")).logits(data)
    figures = dev_figures(own, data.labels, expected=1.0)
    assert run.metrics["epochs"][0]["dev"] == pytest.approx(figures, rel=1e-4)
    assert len(watched) == 3 * epochs


# ---- guided, and with other means


@pytest.mark.parametrize("recipe", ["tdmixup", "aum-saliency"])
def test_without_dev_data_the_dynamics_that_guide_are_those_of_a_map_of_all_rows(anew: Any, recipe: str) -> None:
    run = anew(**FOLDS, recipe=recipe)
    dynamics = recorded(run.folder / "dynamics")
    assert list(dynamics.ids) == tiny.examples(24).ids
    assert dynamics.observations.tolist() == [2] * 24
    made = tomllib.loads((run.folder / "dynamics" / "run.toml").read_text())["config"]
    assert (made["command"], made["head"], made["epochs"]) == ("map", "fitted", 2)
    assert "predictions-dev.parquet" not in {path.name for path in (run.folder / "dynamics").iterdir()}


def test_a_fold_makes_as_many_updates_as_the_run_in_smaller_batches(anew: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from calmix.training import cross_fitting

    sizes: list[int] = []
    steps: list[int] = []
    train = cross_fitting.fit

    def counted(*args: Any, **settings: Any) -> Fit:
        done = train(*args, **settings)
        sizes.append(settings["batch_size"])
        steps.append(done.step)
        return done

    monkeypatch.setattr(cross_fitting, "fit", counted)
    run = anew(**FOLDS)
    assert sizes == [6, 6, 6]  # of 16 rows, where the run has three batches of 8
    assert steps == [run.metrics["epochs"][-1]["step"]] * 3


def test_a_dry_run_counts_the_steps_of_the_folds(anew: Any, tmp_path: Path) -> None:
    plain, folded = anew(dry_run=True), anew(**FOLDS, dry_run=True)
    assert folded.metrics["steps"] == 4 * plain.metrics["steps"] == 24
    assert list(tmp_path.iterdir()) == []
    assert anew(**FOLDS, dry_run=True, epochs=0).metrics["steps"] == 0


def test_a_batch_of_a_fold_that_memory_does_not_hold_is_cut_as_those_of_the_run(
    anew: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from calmix.training.stepping import Stepper

    gradient = Stepper._gradient

    def limited(self: Stepper, rows: Any, *args: Any, **kwargs: Any) -> None:
        if len(rows) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        gradient(self, rows, *args, **kwargs)

    monkeypatch.setattr(Stepper, "_gradient", limited)
    run = anew(**FOLDS, epochs=1)
    assert tomllib.loads((run.folder / "run.toml").read_text())["decided"]["parts"] == [[0, 2]]
    assert Cuts(run.folder, 1, 8, ((0, 2),)).parts(1) == 2
    assert sum(note.startswith("memory:") for note in run.metrics["notes"]) == 1


# ---- stopped, and gone on with


class Killed(Exception):
    pass


def dying_after(calls: int, how: type[BaseException] = Killed) -> Callable[[Progress], None]:
    """Return what kills a run when it is told of its progress for the so many-th time."""
    told: list[Progress] = []

    def die(progress: Progress) -> None:
        told.append(progress)
        if len(told) == calls:
            raise how

    return die


# A fold has two epochs of three steps, as the run itself: each step is told, and each epoch: eight calls.
@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(("calls", "anew_in"), [(2, 3), (18, 1), (22, 1), (26, 0), (31, 0)])
def test_a_folded_run_that_was_killed_ends_as_if_it_had_not_been(
    anew: Any, outcome: Any, watched: Watched, calls: int, anew_in: int
) -> None:
    settings = {**FOLDS, "select": "none", "checkpoint_minutes": 0}
    whole = outcome(anew("whole", **settings).folder)
    with pytest.raises(Killed):
        anew(**settings, on_progress=dying_after(calls))
    watched.clear()
    assert outcome(anew(**settings).folder) == whole
    assert len(watched) == anew_in


@pytest.mark.usefixtures("often")
def test_ctrl_c_in_the_first_fold_leaves_nothing_behind_and_later_what_is_done(
    anew: Any, outcome: Any, tmp_path: Path
) -> None:
    whole = outcome(anew("whole", **FOLDS).folder)
    with pytest.raises(Interrupted, match="stopped at step 2 of 6, not saved"):
        anew(**FOLDS, on_progress=dying_after(2, KeyboardInterrupt))
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]
    with pytest.raises(Interrupted, match="stopped at step 2 of 6, not saved"):
        anew(**FOLDS, on_progress=dying_after(10, KeyboardInterrupt))
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["fold-1"]
    assert outcome(anew(**FOLDS).folder) == whole


@pytest.mark.usefixtures("often")
def test_what_was_kept_of_a_fold_and_is_damaged_is_made_again(
    anew: Any, outcome: Any, watched: Watched, tmp_path: Path
) -> None:
    settings = {**FOLDS, "select": "none"}
    whole = outcome(anew("whole", **settings).folder)
    with pytest.raises(Killed):
        anew(**settings, on_progress=dying_after(26))
    (file,) = (tmp_path / "run" / "checkpoints" / "fold-2").rglob("logits.safetensors")
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    watched.clear()
    assert outcome(anew(**settings).folder) == whole
    assert len(watched) == 1


def test_a_folded_run_of_other_rows_is_another_run(anew: Any, tmp_path: Path) -> None:
    anew(**FOLDS, epochs=1)
    with pytest.raises(InputError, match="holds a different run"):
        anew(**FOLDS, epochs=1, train=tiny.examples(24, seed=5))
    with pytest.raises(InputError, match="folds was 3, is 2"):
        anew(dev=None, folds=2, epochs=1)
