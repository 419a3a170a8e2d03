"""Rivals meet on the same rows, are fitted as they should be, and their tables say what the runs came to."""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


@pytest.fixture
def linear() -> Any:
    import rival_linear

    return rival_linear


@pytest.fixture
def tasks() -> Any:
    import rival_tasks

    return rival_tasks


@pytest.fixture
def tables() -> Any:
    import rival_tables

    return rival_tables


@pytest.fixture
def rivals() -> Any:
    import rivals

    return rivals


def rows(text: list[str], label: list[int], **more: Any) -> Any:
    from rival_worker import Rows

    return Rows(text, np.array(label), **more)


VECTORS = {"a": [1.0, 0.0], "b": [0.5, 2.0], "c": [0.0, -1.0]}


def dense(texts: list[str]) -> NDArray[np.float64]:
    return np.array([VECTORS[text] for text in texts])


def test_a_pair_is_both_texts_their_distance_and_their_product(linear: Any) -> None:
    from scipy import sparse

    pair = rows(["a"], [0], text_b=["b"])
    read = linear.features(pair, dense)
    assert read.tolist() == [[1, 0, 0.5, 2, 0.5, 2, 0.5, 0]]
    thin = linear.features(pair, lambda texts: sparse.csr_matrix(dense(texts)))
    assert thin.toarray().tolist() == read.tolist()


def test_choices_are_read_one_after_the_other_each_beside_its_text(linear: Any) -> None:
    read = linear.features(rows(["a", "b"], [0, 0], choices=[["b", "c"], ["a"]]), dense)
    assert read.tolist() == [[0.5, 2, 0.5, 2, 0.5, 0], [0, -1, 1, 1, 0, 0], [1, 0, 0.5, 2, 0.5, 0]]


def test_two_choices_are_a_logistic_regression_on_their_difference(linear: Any) -> None:
    from sklearn.linear_model import LogisticRegression

    generator = np.random.default_rng(0)
    read, right = generator.normal(size=(200, 2, 3)), generator.integers(0, 2, 200)
    found = linear.conditional_logit(read.reshape(400, 3), np.full(200, 2), right, 0.7)
    known = LogisticRegression(C=0.7, fit_intercept=False, tol=1e-8).fit(read[:, 1] - read[:, 0], right)
    np.testing.assert_allclose(found.weights, known.coef_[0], atol=1e-4)


def test_rows_may_have_any_number_of_choices(linear: Any) -> None:
    generator = np.random.default_rng(1)
    counts = np.array([2, 4, 3] * 100)
    read = generator.normal(size=(counts.sum(), 2))
    scores = read @ [3.0, -2.0] + generator.gumbel(size=len(read))
    right = np.array([part.argmax() for part in np.split(scores, np.cumsum(counts)[:-1])])
    found = linear.conditional_logit(read, counts, right, 1e6)
    np.testing.assert_allclose(found.weights, [3, -2], atol=0.6)
    logits = found.logits(read, counts)
    assert np.isneginf(logits).sum(axis=1).tolist() == (4 - counts).tolist()
    np.testing.assert_allclose(logits[1], read[2:6] @ found.weights)


@pytest.mark.parametrize("classes", [2, 3])
def test_logits_of_classes_are_those_of_scikit_learn(linear: Any, classes: int) -> None:
    from sklearn.linear_model import LogisticRegression

    generator = np.random.default_rng(2)
    read, labels = generator.normal(size=(60, 4)), np.arange(60) % classes
    probs = np.exp(linear.logistic(read, labels, 1.0).logits(read, None))
    known = LogisticRegression(max_iter=linear.ITERATIONS).fit(read, labels).predict_proba(read)
    np.testing.assert_allclose(probs / probs.sum(axis=1, keepdims=True), known, atol=1e-12)


def test_four_rows_of_each_class_leave_three_to_learn_from_in_every_fold(linear: Any) -> None:
    labels = np.repeat(np.arange(7), 4)
    folds = linear.folds_of(labels, 0)
    assert all(np.bincount(labels[folds != fold]).min() == 3 for fold in range(5))
    assert np.ptp(np.bincount(folds)) <= 1
    assert (folds != linear.folds_of(labels, 1)).any()


def test_what_folds_say_of_a_row_comes_from_a_model_that_has_not_seen_it(linear: Any) -> None:
    words = [f"word{i}" for i in range(60)]  # each row its own: learnt by heart, and worth nothing
    train = rows(words, list(np.random.default_rng(0).integers(0, 2, 60)))
    _, logits = linear.chosen_by_folds(train, linear.tfidf, 0)
    assert logits.shape == (60, 2)
    # A row that was not seen has no feature: all that a fold says is what its model says of nothing.
    assert all(len(np.unique(logits[linear.folds_of(train.label, 0) == fold, 1])) == 1 for fold in range(5))


def test_c_is_the_one_with_the_lowest_dev_nll_after_a_temperature(linear: Any) -> None:
    sentences, labels = tiny.texts(90)
    names = sorted(set(labels))
    places = [names.index(label) for label in labels]
    train, dev = rows(sentences[:60], places[:60]), rows(sentences[60:], places[60:])
    vectors = linear.tfidf(train)
    read, asked = linear.features(train, vectors), linear.features(dev, vectors)
    best, model, logits = linear.chosen_by_dev(read, train, asked, dev)
    values = {
        c: linear.after_temperature(linear.logistic(read, train.label, c).logits(asked, None), dev.label)
        for c in linear.STRENGTHS
    }
    assert best == min(values, key=lambda c: values[c])
    np.testing.assert_array_equal(model.logits(asked, None), logits)


def test_no_more_c_is_tried_once_one_is_plainly_worse(linear: Any) -> None:
    labels = np.array([0, 1] * 20)
    right = 4.0 * np.eye(2)[labels]
    wrong = {0.1: 9, 1.0: 8, 10.0: 2, 100.0: 12, 1000.0: 0}
    """How many rows each C has wrong."""
    tried = []

    def logits_at(strength: float) -> NDArray[np.float64]:
        tried.append(strength)
        return np.where(np.arange(40)[:, None] < wrong[strength], right[:, ::-1], right)

    best, logits = linear.chosen(logits_at, labels)
    assert (best, tried) == (10.0, [0.1, 1.0, 10.0, 100.0])
    np.testing.assert_array_equal(logits, logits_at(10.0))


@pytest.mark.parametrize("kind", ["text", "choices"])
def test_a_model_that_goes_on_from_another_ends_where_a_fresh_one_does(linear: Any, kind: str) -> None:
    examples = tiny.examples(60, kind=kind)
    choices = examples.column("choices") if kind == "choices" else None
    train = rows(examples.column("text"), examples.labels.tolist(), choices=choices)
    read = linear.features(train, linear.tfidf(train))
    learner = linear.Learner(read, train)
    early, later = learner.at(0.1), learner.at(10.0)
    for found, strength in ((early, 0.1), (later, 10.0)):
        fresh = linear.Learner(read, train).at(strength)
        np.testing.assert_allclose(
            found.logits(read, train.counts), fresh.logits(read, train.counts), atol=0.02, equal_nan=True
        )


def test_an_embedding_is_the_normalised_mean_of_a_text_whoever_shares_its_batch(
    linear: Any, checkpoint: Callable[..., Path]
) -> None:
    import torch

    embeddings = linear.Embeddings(str(checkpoint("bert")), 64)
    both = embeddings(["the cat", "a small dog near the far old cow"])
    inputs = embeddings.tokenizer(["the cat"], return_tensors="pt")
    with torch.no_grad():
        mean = embeddings.network(**inputs).last_hidden_state[0].mean(0).numpy()
    np.testing.assert_allclose(both[0], mean / np.linalg.norm(mean), atol=1e-5)


def test_a_text_that_is_known_is_charged_once_to_each_job(linear: Any, checkpoint: Callable[..., Path]) -> None:
    embeddings = linear.Embeddings(str(checkpoint("bert")), 64)
    embeddings(["the cat", "a dog", "the cat"])
    assert embeddings.repaid() == 0, "this job has computed it"
    embeddings(["the cat"])
    assert embeddings.repaid() == 0
    embeddings.next_job()(["the cat", "a dog"])
    assert embeddings.repaid() == pytest.approx(sum(cost for _, cost in embeddings.known.values()))
    embeddings(["the cat"])
    assert embeddings.repaid() == 0


def test_few_rows_are_as_many_of_each_class_and_fewer_are_among_more(tasks: Any) -> None:
    labels = np.random.default_rng(0).integers(0, 5, 500)
    four, eight = (tasks.some_of_each_class(labels, rows, 1) for rows in (4, 8))
    assert np.bincount(labels[four]).tolist() == [4] * 5
    assert set(four) < set(eight)
    assert (np.diff(eight) > 0).all()
    assert set(four) != set(tasks.some_of_each_class(labels, 4, 2))
    with pytest.raises(SystemExit, match="class 2 has fewer than 8 rows"):
        tasks.some_of_each_class(np.repeat([0, 1, 2], [9, 9, 7]), 8, 0)


def test_a_part_of_the_rows_keeps_each_class_at_its_share(tasks: Any) -> None:
    labels = np.repeat([0, 1, 2], [700, 290, 10])
    chosen = tasks.stratified(labels, 100, 0)
    assert np.bincount(labels[chosen]).tolist() == [70, 29, 1]
    assert (np.diff(chosen) > 0).all()
    assert (chosen != tasks.stratified(labels, 100, 1)).any()
    assert tasks.stratified(labels, 5000, 0).tolist() == list(range(1000))


def test_the_sizes_of_clinc150_count_as_one_of_twelve_tasks(tasks: Any) -> None:
    assert sum(tasks.IN_DOMAIN.values()) == 12
    assert sum(weight for name, weight in tasks.IN_DOMAIN.items() if name.startswith("clinc150")) == 1


def test_tasks_are_picked_by_patterns(tasks: Any) -> None:
    assert [task.name for task in tasks.tasks_like("few-sst2-*,rte")] == [
        "rte",
        *(f"few-sst2-{rows}" for rows in (4, 8, 16, 32)),
    ]
    with pytest.raises(SystemExit, match="no task is called 'rtf'"):
        tasks.tasks_like("rtf")


def test_without_dev_rows_few_rows_are_all_that_there_is(tasks: Any) -> None:
    task = tasks.Task("few-desk-8", "desk", 8, few=True)
    sets = tasks.sets_of(task, None, seed=0, rows=7500, dev_rows=1000, test_rows=50)
    assert (len(sets.train), sets.dev, list(sets.judged), len(sets.judged["test"])) == (56, None, ["test"], 50)
    whole = tasks.sets_of(tasks.TASKS["desk"], None, seed=0, rows=100, dev_rows=60, test_rows=50)
    assert (len(whole.train), len(whole.dev), list(whole.judged)) == (100, 60, ["test", "ood-colloquial"])
    other = tasks.sets_of(tasks.TASKS["desk"], None, seed=1, rows=100, dev_rows=60, test_rows=50)
    assert whole.judged["test"].ids == other.judged["test"].ids, "everybody is judged on the same rows"
    assert whole.dev.ids == other.dev.ids
    assert whole.train.ids != other.train.ids


def test_rows_come_to_rivals_as_they_are(rivals: Any, tmp_path: Path) -> None:
    from rival_tasks import Sets
    from rival_worker import read_rows

    for kind in ("text", "pair", "choices"):
        examples = tiny.examples(9, kind=kind)
        assert rivals.write_sets(Sets(examples, None, {"test": examples}), tmp_path) == ["train", "test"]
        read = read_rows(tmp_path / "test.jsonl", list(examples.label_names))
        assert read.text == examples.column("text")
        assert read.label.tolist() == examples.labels.tolist()
        assert read.text_b == (examples.column("text_b") if kind == "pair" else None)
        assert read.choices == (examples.column("choices") if kind == "choices" else None)


def answered(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "answer.npz", **{name.replace("__", "/"): values for name, values in arrays.items()})
    return folder / "answer.npz"


def test_a_temperature_is_fitted_on_what_was_held_out(rivals: Any, tmp_path: Path) -> None:
    from calmix.calibration import Temperature

    examples = tiny.examples(30)
    logits = np.random.default_rng(0).normal(size=(30, 3))
    held_out = {"held_out__logits": logits * 3, "held_out__labels": examples.labels}
    path = answered(tmp_path, logits__test=logits, **held_out)
    said, temperature = rivals.read_answer(path, {"test": examples})
    assert temperature == pytest.approx(Temperature.fit(logits * 3, examples.labels).temperature)
    np.testing.assert_allclose(said["test"].calibrated, logits / temperature)
    np.testing.assert_array_equal(said["test"].raw, logits)


def test_who_calibrates_itself_is_believed_and_who_cannot_stays_raw(rivals: Any, tmp_path: Path) -> None:
    examples = tiny.examples(6)
    logits = np.random.default_rng(0).normal(size=(6, 3))
    said, temperature = rivals.read_answer(
        answered(tmp_path, logits__test=logits, calibrated__test=logits / 7), {"test": examples}
    )
    assert temperature is None
    np.testing.assert_array_equal(said["test"].calibrated, logits / 7)
    said, temperature = rivals.read_answer(answered(tmp_path, logits__test=logits), {"test": examples})
    assert temperature is None
    np.testing.assert_array_equal(said["test"].calibrated, logits)


def test_predictions_that_are_kept_give_the_figures_again(rivals: Any, tables: Any, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    raw, labels = generator.normal(size=(500, 4)) * 4, generator.integers(0, 4, 500)
    raw[::3, 3], labels[::3] = -np.inf, 0  # rows with three choices
    said = rivals.Said(raw, raw / 2.5, labels)
    run = made("desk", "calmix", 0, said)
    keep(rivals, tables, tmp_path, run, {"ood-other": rivals.Said(raw[:5], raw[:5], labels[:5]), "test": said})
    read = tables.read_predictions(tmp_path, run, "test")
    found = tables.figures_of(np.full((1, 500), 1 / 500, dtype=np.float32) @ tables.per_row(read))
    for figure, value in said.figures()["calibrated"].items():
        assert found[figure][0] == pytest.approx(value, abs=2e-3)


def made(task: str, rival: str, seed: int, said: Any = None, **more: Any) -> dict[str, Any]:
    """Return the record of a run; with figures of its predictions, or those that are given for its test set."""
    figures = {"n": 100, "raw": more.pop("raw", {}), "calibrated": more.pop("calibrated", {})}
    key = {"task": task, "rival": rival, "seed": seed, "model": "minilm", "device": more.pop("device", "cpu")}
    sizes = {"rows": 7500, "dev_rows": 1000, "test_rows": 3000, "n_train": 1200}
    costs = {"cpu_seconds": {"fit": 10.0 + seed, "predict": 0.5}, "machine": "a processor", "chosen": {}}
    return {**key, **sizes, **costs, **more, "figures": {"test": figures if said is None else said.figures()}}


def keep(rivals: Any, tables: Any, folder: Path, run: dict[str, Any], said: dict[str, Any]) -> None:
    rivals.write_predictions(said, folder / ("--".join(str(run[part]) for part in tables.KEY) + ".parquet"))


def figures(accuracy: float, nll: float, ece: float) -> dict[str, float]:
    return {"accuracy": accuracy, "nll": nll, "ece": ece}


def test_averages_are_over_tasks_and_ratios_are_geometric(tables: Any, tasks: Any) -> None:
    runs = []
    for task in tasks.IN_DOMAIN:
        many = task.startswith("clinc150")
        runs.append(made(task, "frozen", 0, calibrated=figures(0.5, 1.0, 0.1), raw=figures(0.5, 2.0, 0.2)))
        mine = figures(1.0 if many else 0.5, 0.25 if many else 1.0, 0.1)
        runs += [made(task, "calmix", seed, calibrated=mine, raw=mine) for seed in (0, 1)]
    results = tables.Results.of(runs)
    everything = next(group for group in tables.groups(results) if group.name == "all")
    assert tables.average(results, everything, "calmix", "accuracy") == pytest.approx((11 * 0.5 + 1.0) / 12)
    assert tables.nll_ratio(results, everything, "calmix", "frozen") == pytest.approx(0.25 ** (1 / 12))
    assert tables.nll_ratio(results, everything, "frozen", "frozen", "raw") == pytest.approx(2.0)
    assert "| all | calmix | 54.2 | 0.891 | 10.0 |" in "\n".join(tables.averages(results, "frozen"))


def test_who_has_not_met_a_whole_group_has_no_average(tables: Any) -> None:
    same = {"calibrated": figures(0.5, 1.0, 0.1), "raw": figures(0.5, 1.0, 0.1)}
    runs = [made(task, "frozen", 0, **same) for task in ("few-trec6-8", "few-sst2-8", "few-ag_news-8")]
    results = tables.Results.of(runs)
    group = next(group for group in tables.groups(results) if group.name == "8 a class")
    assert len(group.weights) == 4
    assert tables.average(results, group, "frozen", "ece") is None
    assert "8 a class" not in "\n".join(tables.averages(results, "frozen"))


def test_means_are_over_seeds_and_a_gpus_run_counts_before_a_processors(tables: Any) -> None:
    runs = [
        made("rte", "calmix", 0, calibrated=figures(0.6, 0.5, 0.1), device="cuda"),
        made("rte", "calmix", 0, calibrated=figures(0.1, 9.0, 0.9)),
        made("rte", "calmix", 1, calibrated=figures(0.7, 0.7, 0.2)),
    ]
    assert tables.triple(tables.Results.of(runs), ("rte", "test"), "calmix") == "65.0 · 0.600 · 15.0"
    assert tables.triple(tables.Results.of(runs), ("rte", "test"), "frozen") == "–"


@pytest.fixture
def met(rivals: Any, tables: Any, tmp_path: Path) -> Any:
    """Three rivals on one task, three seeds: a good one, a bad one, and the good one under another name."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 400)
    runs = []
    for seed in range(3):
        noise = generator.normal(size=(400, 3))
        good = rivals.Said(noise + 3 * np.eye(3)[labels], noise + 3 * np.eye(3)[labels], labels)
        bad = rivals.Said(noise + np.eye(3)[labels], noise + np.eye(3)[labels], labels)
        for rival, said in (("calmix", good), ("frozen", bad), ("twin", good)):
            runs.append(made("rte", rival, seed, said))
            keep(rivals, tables, tmp_path / "predictions", runs[-1], {"test": said})
    return tables.Results.of(runs, tmp_path / "predictions")


def test_an_interval_tells_the_better_from_the_worse_and_nothing_from_its_twin(tables: Any, met: Any) -> None:
    group, resampled = tables.Group("rte", {("rte", "test"): 1.0}), tables.Resampled(met)
    found = tables.differences(resampled, group, "calmix", "frozen")
    means = {rival: met.mean(("rte", "test"), rival, "accuracy") for rival in ("calmix", "frozen")}
    assert found["accuracy"].value == pytest.approx(means["calmix"] - means["frozen"])
    assert 0 < found["accuracy"].low < found["accuracy"].value < found["accuracy"].high
    assert found["nll"].high < 1
    twin = tables.differences(resampled, group, "calmix", "twin")
    assert (twin["accuracy"].value, twin["accuracy"].low, twin["accuracy"].high) == (0, 0, 0)
    assert (twin["nll"].value, twin["nll"].low, twin["nll"].high) == (1, 1, 1)


def test_an_interval_is_as_wide_as_that_of_resampled_rows_and_seeds(tables: Any, met: Any) -> None:
    place = ("rte", "test")
    found = tables.differences(tables.Resampled(met), tables.Group("rte", {place: 1.0}), "calmix", "frozen")
    hits = []
    for rival in ("calmix", "frozen"):
        read = [tables.read_predictions(met.predictions, run, "test") for run in met.runs["rte", rival].values()]
        hits.append(np.array([one["label"] == one["winner"] for one in read], dtype=float))
    gap, generator = hits[0] - hits[1], np.random.default_rng(9)
    values = [gap[generator.integers(0, 3, 3)][:, generator.integers(0, 400, 400)].mean() for _ in range(4000)]
    low, high = np.quantile(values, [0.025, 0.975])
    assert (found["accuracy"].low, found["accuracy"].high) == pytest.approx((low, high), abs=0.006)


def test_predictions_that_are_not_there_leave_a_dash(tables: Any, met: Any, tmp_path: Path) -> None:
    group = tables.Group("rte", {("rte", "test"): 1.0})
    empty = tables.Resampled(tables.Results(met.runs, tmp_path))
    assert tables.differences(empty, group, "calmix", "frozen") is None


def test_the_page_is_written_from_the_runs_of_every_file(rivals: Any, tables: Any, met: Any, tmp_path: Path) -> None:
    out = tmp_path / "rivals"
    out.mkdir()
    runs = [run for some in met.runs.values() for run in some.values()]
    for name, part in (("runs.jsonl", runs[:4]), ("runs-2.jsonl", runs[4:])):
        (out / name).write_text("".join(json.dumps(run) + "\n" for run in part), encoding="utf-8")
    asked = {"out": out, "predictions": met.predictions, "model": "minilm", "of": "calmix", "against": "frozen"}
    tables.written(argparse.Namespace(**asked))
    page = (out / "README.md").read_text(encoding="utf-8")
    assert "| task | frozen | calmix | twin |" in page
    assert "| fewer than 1,000 test rows | calmix |" in page
    assert "| all |" not in page, "the other tasks were not met"
    assert "| rte | " in page.split("Each task:")[1]
    assert str(tmp_path) not in page


def test_who_was_run_with_fewer_seeds_is_named(tables: Any) -> None:
    runs = {("rte", "calmix"): {0: {}, 1: {}}, ("rte", "trainer"): {0: {}}, ("cola", "trainer"): {1: {}}}
    found = tables.missing(tables.Results(runs), 2)
    assert found == ["Not all have 2 seeds: trainer has 1 on 2 tasks.", ""]
    assert tables.missing(tables.Results({("rte", "calmix"): {0: {}}}), 1) == []


def test_seconds_are_of_processors_alone(tables: Any) -> None:
    same = {"calibrated": figures(0.5, 1.0, 0.1), "raw": {}}
    runs = [made("desk", "frozen", seed, **same) for seed in (0, 1)]
    runs.append(made("desk", "calmix", 0, **same, device="cuda"))
    table = "\n".join(tables.costs(runs))
    assert "| desk | 1,200 | frozen | 10.5 | 5.00 |" in table
    assert "calmix" not in table


def test_runs_that_are_there_are_not_made_again(rivals: Any, tables: Any, tmp_path: Path) -> None:
    from rival_tasks import TASKS

    sizes = {"rows": 7500, "dev_rows": 1000, "test_rows": 3000}
    where = rivals.Field(argparse.Namespace(out=tmp_path, file="runs.jsonl", model="minilm", **sizes))
    where.device = "cpu"
    (tmp_path / "runs-1.jsonl").write_text(json.dumps(made("rte", "tfidf", 1)) + "\n", encoding="utf-8")
    asked = [rivals.Rival("tfidf", "rival_linear"), rivals.Rival("calmix", "rival_calmix")]
    jobs = rivals.runs_to_make(where, asked, [TASKS["rte"]], [0, 1])
    assert [(job.rival.name, job.seed) for job in jobs] == [("tfidf", 0), ("calmix", 0), ("calmix", 1)]


def test_a_variant_is_calmix_with_options(rivals: Any) -> None:
    found = rivals.variant("longer:epochs=6,head=random,lean=true")
    assert (found.name, found.script) == ("longer", "rival_calmix")
    assert found.options == {"epochs": 6, "head": "random", "lean": True}
    for wrong in ("longer", "longer:epochs", ":epochs=6", "frozen:epochs=6"):
        with pytest.raises(SystemExit, match="--variant"):
            rivals.variant(wrong)


def test_setfit_is_asked_about_single_texts_on_few_rows_and_two_tasks_more(rivals: Any, tasks: Any) -> None:
    setfit, texts, pairs = rivals.Rival("setfit", "rival_setfit"), tiny.examples(6), tiny.examples(6, kind="pair")
    sets = {kind: tasks.Sets(examples, None, {}) for kind, examples in (("text", texts), ("pair", pairs))}
    asked = {name for name, task in tasks.TASKS.items() if setfit.takes(task, sets["text"])}
    assert {name for name in asked if not name.startswith("few-")} == {"desk", "trec6"}
    assert len(asked) == 18
    assert not setfit.takes(tasks.TASKS["few-sst2-4"], sets["pair"])
    assert rivals.Rival("frozen", "rival_linear").takes(tasks.TASKS["qqp"], sets["pair"])


@pytest.mark.slow
def test_rivals_meet_and_the_page_is_written(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    words = ["--tasks", "few-trec6-4,swag", "--rivals", "tfidf,frozen,trainer,calmix", "--variant", "one:epochs=1"]
    words += ["--seeds", "0", "--model", str(checkpoint("bert")), "--data", str(tmp_path / "data")]
    places = ["--out", str(tmp_path / "out"), "--predictions", str(tmp_path / "predictions")]
    write(tmp_path / "data" / "trec6" / "train.jsonl", tiny.examples(60))
    write(tmp_path / "data" / "trec6" / "test.jsonl", tiny.examples(30, seed=1))
    for name, count in (("swag_2choice/train", 2), ("swag_2choice/dev", 2), ("swag_2choice/test", 2)):
        write(tmp_path / "data" / f"{name}.jsonl", tiny.examples(40, kind="choices", counts=(count,)))
    for name in ("hellaswag/test", "swag/val500"):
        write(tmp_path / "data" / f"{name}.jsonl", tiny.examples(20, kind="choices", counts=(4, 3)))
    command = [sys.executable, str(ROOT / "benchmarks" / "rivals.py")]
    done = subprocess.run([*command, "run", *words, *places], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = [json.loads(line) for line in (tmp_path / "out" / "runs.jsonl").read_text().splitlines()]
    assert len(runs) == 10
    assert len(list((tmp_path / "predictions").iterdir())) == 10
    assert all(0 < run["figures"]["test"]["calibrated"]["nll"] < 5 for run in runs)
    assert {run["rival"] for run in runs if run["temperature"] is None} == {"trainer", "calmix", "one"}
    again = subprocess.run([*command, "run", *words, *places], capture_output=True, text=True, timeout=60, check=True)
    assert "0 runs are not there yet" in again.stdout
    table = [*command, "table", "--model", "bert-3-2", *places]
    subprocess.run(table, capture_output=True, text=True, timeout=60, check=True)
    assert "| swag → hellaswag | " in (tmp_path / "out" / "README-bert-3-2.md").read_text(encoding="utf-8")


def write(path: Path, examples: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    names = examples.label_names
    columns = {role: examples.column(role) for role in ("text", "choices") if role in examples.table.column_names}
    columns["label"] = [names[k] if names else str(k) for k in examples.labels]
    lines = (dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
