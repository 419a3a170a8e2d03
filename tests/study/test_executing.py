"""Training the runs of a study."""

import inspect
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from calmix.dynamics import Dynamics
from calmix.errors import InputError
from calmix.study import executing
from calmix.study.asking import TRAINING
from calmix.study.conducting import Order, conduct, prepare
from calmix.study.executing import execute, job_of, release, trim
from calmix.training import halves, survey, surveying
from calmix.training.mapping import known_dynamics


def _jobs(prepared: Any, specs: Any, root: Path) -> list[Any]:
    folders = {key: root / key for key in prepared.plan.runs}
    return [job_of(spec, folders, prepared.library) for spec in specs]


def test_a_group_is_handed_over_together_and_each_run_comes_back(ready: Any, tmp_path: Path) -> None:
    prepared = ready('[[method]]\nrecipe = "erm"\n')
    jobs = _jobs(prepared, prepared.plan.groups[0], tmp_path / "runs")
    done = list(execute(jobs))
    assert [(job.spec.seed, failure) for job, failure in done] == [(0, None), (1, None)]
    assert all((job.folder / "metrics.json").is_file() for job in jobs)
    # A run that somebody else finished meanwhile is no failure.
    assert [failure for _, failure in execute(jobs)] == [None, None]


def test_a_failure_is_told_and_the_rest_goes_on(ready: Any, tmp_path: Path) -> None:
    prepared = ready('[[method]]\nrecipe = "erm"\n')
    jobs = _jobs(prepared, prepared.plan.groups[0], tmp_path / "runs")
    jobs[0].folder.mkdir(parents=True)
    (jobs[0].folder / "mine.txt").write_text("not a run")
    (_, first), (_, second) = execute(jobs)
    assert first is not None
    assert "is not empty and holds no run of ours" in first.error
    assert second is None


def test_labels_that_a_task_keeps_apart_are_trained_and_mapped_apart(written: Any, data: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(data, tmp_path / "data")
    file = folder / "tiny" / "train.jsonl"
    file.write_text(file.read_text().replace('"food"', '"Food"', 4))
    methods = '[[method]]\nrecipe = "tdmixup"\nfiltered = true\n'
    with pytest.raises(InputError, match=r"\[task.tiny\]: .*'Food' \(4 rows\) and 'food' .*; merge_labels = true"):
        prepare(Order(written(methods), tmp_path / "out", data=folder))
    study = written(methods, head="seeds = 1", more="merge_labels = false")
    prepared = prepare(Order(study, tmp_path / "out", data=folder))
    jobs = _jobs(prepared, prepared.plan.runs.values(), tmp_path / "runs")
    assert [job.spec.what for job in jobs] == ["map", "train"]
    for job in jobs:
        assert [failure for _, failure in execute([job])] == [None]
        assert Dynamics.load(job.folder / "datamap.parquet").label_names == ("Food", "animal", "food", "weather")


@pytest.mark.parametrize(("take", "rows"), [("easy", 10), ("ambiguous", 10), ("both", 20), ("hard", 10)])
def test_a_subset_run_learns_from_a_region_of_the_plain_runs_map(
    ready: Any, tmp_path: Path, take: str, rows: int
) -> None:
    prepared = ready(f'[[method]]\nsubset = "{take}"\n', head="seeds = 1")
    jobs = _jobs(prepared, prepared.plan.runs.values(), tmp_path / "runs")
    assert [failure for _, failure in execute(jobs)] == [None, None]
    assert json.loads((jobs[1].folder / "metrics.json").read_text())["rows"]["train"] == rows


def test_a_filtered_recipe_gets_the_map_with_threshold_samples(ready: Any, tmp_path: Path) -> None:
    methods = '[[method]]\nrecipe = "tdmixup"\nfiltered = true\npercentile = 99\n'
    prepared = ready(methods, head='seeds = 1\nkeep = "metrics"')
    jobs = _jobs(prepared, prepared.plan.runs.values(), tmp_path / "runs")
    for job in jobs:
        assert [failure for _, failure in execute([job])] == [None]
        trim(job.spec, job.folder, "metrics")
    assert known_dynamics(jobs[0].folder, jobs[0].sets.train).verdicts is not None
    assert not list(jobs[0].folder.glob("threshold-*"))


UNUSUAL: dict[str, Any] = {
    "epochs": 1,
    "batch_size": 10,
    "optimizer": "sgd",
    "lr": 0.003,
    "weight_decay": 0.02,
    "warmup": 0.3,
    "schedule": "constant",
    "clip": 0.7,
    "accumulate": 2,
    "max_length": 32,
    "image_size": 24,
    "augment": "crop",
    "select": "accuracy",
    "patience": 1,
    "precision": "fp32",
    "class_weights": "balanced",
    "gradient_checkpointing": True,
    "head": "random",
    "pooling": "first",
}
"""Every setting of a study's file, with a value that is no default."""


def _setting(value: Any) -> str:
    return json.dumps(value)  # TOML writes these values the same


def test_threshold_runs_get_every_setting_that_the_file_says(
    ready: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert UNUSUAL.keys() == set(TRAINING)
    lines = [f"{name} = {_setting(value)}" for name, value in UNUSUAL.items()]
    methods = '[[method]]\nrecipe = "tdmixup"\nfiltered = true\n'
    prepared = ready(methods, head="seeds = 1", training="\n".join(["[training]", *lines]))
    asked: dict[str, dict[str, Any]] = {}

    def heard(what: str) -> Any:
        return lambda *_args, **settings: asked.update({what: settings})

    monkeypatch.setattr(executing, "survey", heard("map"))
    monkeypatch.setattr(executing, "train", heard("train"))
    assert [failure for _, failure in execute(_jobs(prepared, prepared.plan.runs.values(), tmp_path))] == [None, None]
    assert {name: asked["train"][name] for name in TRAINING} == UNUSUAL
    # A map has no dev data to choose an epoch by, and no weights to keep.
    kept = {name: value for name, value in UNUSUAL.items() if name not in ("select", "patience")}
    assert {name: asked["map"].get(name, "forgotten") for name in kept} == kept
    assert asked["map"].keys() <= inspect.signature(survey).parameters.keys()


def test_threshold_runs_are_trained_as_the_runs_that_they_are_for(
    ready: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"{name} = {_setting(value)}" for name, value in UNUSUAL.items() if name != "gradient_checkpointing"]
    methods = '[[method]]\nrecipe = "erm"\n[[method]]\nrecipe = "tdmixup"\nfiltered = true\n'
    prepared = ready(methods, head="seeds = 1", training="\n".join(["[training]", *lines]))
    fits: dict[str, dict[str, Any]] = {}

    def noted(real: Any, out: str) -> Any:
        def fit(model: Any, data: Any, *args: Any, **settings: Any) -> Any:
            weights = None if data.class_weights is None else len(data.class_weights)
            fits[out + settings["out"].name] = settings | {"class_weights": weights}
            return real(model, data, *args, **settings)

        return fit

    monkeypatch.setattr(halves, "fit", noted(halves.fit, "train "))
    monkeypatch.setattr(surveying, "fit", noted(surveying.fit, "map "))
    jobs = _jobs(prepared, prepared.plan.runs.values(), tmp_path / "runs")
    assert {failure for _, failure in execute(jobs)} == {None}
    (plain,) = (job for job in jobs if job.spec.is_plain)
    (mapped,) = (job for job in jobs if job.spec.what == "map")
    wanted = fits[f"train {plain.folder.name}"]
    own = {
        "out",
        "dev",
        "on_progress",
        "on_note",
        "accelerator",
        "fill",
        "select",
        "patience",
        "checkpoint_epochs",
        "last_epoch",
    }
    runs = {f"map {mapped.folder.name}": 3, "map threshold-easy-1": 4, "map threshold-easy-2": 4}
    for name, classes in runs.items():
        found = fits[name]
        assert wanted.keys() - own <= found.keys(), name
        assert {k: found[k] for k in wanted.keys() - own} == {k: wanted[k] for k in wanted.keys() - own} | {
            "class_weights": classes
        }


def test_what_is_kept_for_tables_is_little(ready: Any, tmp_path: Path) -> None:
    prepared = ready('[[method]]\nrecipe = "erm"\n[[method]]\nrecipe = "erl"\n', head="seeds = 1")
    jobs = _jobs(prepared, prepared.plan.runs.values(), tmp_path / "runs")
    list(execute(jobs))
    for job in jobs:
        before = pq.read_table(job.folder / "predictions-test.parquet")
        trim(job.spec, job.folder, "all")
        assert (job.folder / "model").is_dir()
        trim(job.spec, job.folder, "metrics")
        trim(job.spec, job.folder, "metrics")
        left = {path.name for path in job.folder.iterdir()}
        sets = {f"predictions-{name}.parquet" for name in ("dev", "test", "ood-other")}
        assert left == {"log.jsonl", "metrics.json", "run.toml"} | sets | ({"datamap.parquet"} & left)
        after = pq.read_table(job.folder / "predictions-test.parquet")
        assert after.column_names == ["label", "p_animal", "p_food", "p_weather", "logits"]
        assert after["label"].to_pylist() == before["label"].to_pylist()
        assert after["logits"].to_pylist() == before["logits"].to_pylist()
    # The plain run's map may guide others, and needs no texts for it.
    assert not (jobs[1].folder / "datamap.parquet").exists()
    assert "text" not in pq.read_table(jobs[0].folder / "datamap.parquet").column_names
    assert len(known_dynamics(jobs[0].folder, jobs[0].sets.train).dynamics) == 30


def test_a_lean_run_is_one_that_was_trimmed(ready: Any, tmp_path: Path) -> None:
    prepared = ready('[[method]]\nrecipe = "erm"\n[[method]]\nrecipe = "erl"\n', head="seeds = 1")
    whole = _jobs(prepared, prepared.plan.runs.values(), tmp_path / "whole")
    lean = [replace(job, lean=True, folder=tmp_path / "lean" / job.spec.key) for job in whole]
    list(execute([*whole, *lean]))
    for one, other in zip(whole, lean, strict=True):
        assert not {path.name for path in other.folder.iterdir()} & {"model", "label_issues.csv"}
        for job in (one, other):
            trim(job.spec, job.folder, "metrics")
        left, right = ({path.name for path in job.folder.iterdir()} for job in (one, other))
        assert left == right
        for name in left:
            if name.endswith(".parquet"):
                assert pq.read_table(one.folder / name).equals(pq.read_table(other.folder / name), check_metadata=True)
        figures = [json.loads((job.folder / "metrics.json").read_text())["splits"] for job in (one, other)]
        assert figures[0] == figures[1]


def test_where_seeds_are_trained_together_each_failure_is_its_own(
    ready: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = ready('[[method]]\nsubset = "easy"\n')
    jobs = _jobs(prepared, prepared.plan.groups[1], tmp_path / "runs")
    list(execute(_jobs(prepared, prepared.plan.groups[0][:1], tmp_path / "runs")))
    monkeypatch.setattr(executing.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(executing, "train_together", lambda asked: [None for _ in asked])
    # The second one's map is not there.
    found = {job.spec.seed: failure for job, failure in execute(jobs)}
    assert found[0] is None
    assert "no such folder" in found[1].error

    def broken(_asked: Any) -> Any:
        raise RuntimeError("out of everything")

    monkeypatch.setattr(executing, "train_together", broken)
    found = {job.spec.seed: failure for job, failure in execute(jobs)}
    assert found[0].error == "RuntimeError: out of everything"


def test_seeds_that_do_not_fit_into_memory_together_are_trained_one_by_one(
    ready: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = ready('[[method]]\nrecipe = "erm"\n')
    jobs = _jobs(prepared, prepared.plan.runs.values(), tmp_path / "runs")

    def full(_asked: Any) -> Any:
        raise executing.torch.OutOfMemoryError("CUDA out of memory")

    made: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(executing.torch.cuda, "is_available", lambda: True)
        patch.setattr(executing.torch.cuda, "empty_cache", lambda: None)
        patch.setattr(executing, "train_together", full)
        patch.setattr(executing, "train", lambda **asked: made.append(asked["seed"]))
        assert [failure for _, failure in execute(jobs)] == [None, None]
    assert made == [0, 1]


def test_a_gpu_is_given_its_memory_back_after_each_group(ready: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    release()
    assert not emptied  # where no GPU was used, there is nothing to give back
    prepared = ready()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert conduct(prepared).done == 4
    assert len(emptied) == len(prepared.plan.groups) == 2
