"""`survey`: the map of a whole table, its filter, and that it can be stopped at any time."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tiny
import torch

from calmix.data import Examples
from calmix.dynamics import Dynamics, easy_and_ambiguous, label_issues
from calmix.errors import InputError
from calmix.training import Progress, Survey, survey, surveying
from calmix.training.interrupting import Interrupted
from calmix.training.keeping import Fit
from calmix.training.mapping import Known, region_rows

Quick = Callable[..., Survey]


@pytest.fixture
def mapped(checkpoint: Any, tmp_path: Path) -> Quick:
    """Return `mapped(out, **changes)`: a map of 30 rows in two epochs, with what is asked for changed."""

    def run(out: str = "map", **changes: Any) -> Survey:
        options = {"model": str(checkpoint("bert")), "epochs": 2, "batch_size": 8, "lr": 1e-2, "seed": 3}
        options |= changes
        examples = options.pop("examples", tiny.examples(30))
        return survey(examples, out=tmp_path / out, **options)

    return run


class Killed(Exception):
    pass


def dying(stage: str, step: int, how: type[BaseException] = Killed) -> Callable[[str, Progress], None]:
    def die(now: str, progress: Progress) -> None:
        if now == stage and progress.step >= step:
            raise how

    return die


def test_every_row_is_mapped_and_what_was_on_the_way_is_cleared_away(mapped: Quick) -> None:
    done = mapped()
    assert sorted(p.name for p in done.folder.iterdir()) == [
        "datamap.parquet",
        "label_issues.csv",
        "log.jsonl",
        "metrics.json",
        "run.toml",
    ]
    examples = tiny.examples(30)
    table = pq.read_table(done.folder / "datamap.parquet")
    assert table["id"].to_pylist() == examples.ids
    assert table["observations"].to_pylist() == [2] * 30
    assert done.dynamics.labels.tolist() == examples.labels.tolist()
    assert done.figures == json.loads((done.folder / "metrics.json").read_text())
    assert done.figures["recorded_on"] == "training pass"
    assert done.figures["label_issues"] == label_issues(done.dynamics).flagged.sum()
    assert done.verdicts is None


def test_what_is_known_of_a_network_is_noted_though_the_map_was_stopped_since(
    mapped: Quick, checkpoint_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Any] = {"model": str(checkpoint_of("fnet")), "filtered": True, "max_length": 4}
    fit = surveying.fit

    def uncaptured(*args: Any, **settings: Any) -> Fit:
        run = fit(*args, **settings)
        run.notes.append("speed: as it is")
        return run

    monkeypatch.setattr(surveying, "fit", uncaptured)
    with pytest.raises(Killed):
        mapped(on_progress=dying("threshold run 1, easy", 1), **told)
    monkeypatch.undo()
    done = mapped(**told)
    first, second, head, third, *_ = done.figures["notes"]
    assert first.startswith("train: 30 of 30 texts are longer than 4 tokens")
    assert second.startswith("fnet answers otherwise")
    assert head.startswith("head: ")
    assert third == "speed: as it is"
    assert not (done.folder / "notes.json").exists()


def test_texts_that_a_network_cannot_be_trained_on_are_refused_in_a_line(mapped: Quick, checkpoint_of: Any) -> None:
    with pytest.raises(InputError, match=r"^Reformer\w+ cannot be trained on these texts \(If tr"):
        mapped(model=str(checkpoint_of("reformer")))


def test_a_quota_limits_torch(mapped: Quick, quota: None) -> None:
    mapped()
    assert torch.get_num_threads() == 1


def test_flipped_labels_are_found(checkpoint: Any, tmp_path: Path) -> None:
    from sklearn.metrics import average_precision_score

    texts, labels = tiny.texts(300)
    flipped = np.zeros(300, dtype=bool)
    flipped[np.random.default_rng(0).choice(300, 30, replace=False)] = True
    noisy = [tiny.LABELS[(tiny.LABELS.index(k) + 1) % 3] if f else k for k, f in zip(labels, flipped, strict=True)]
    settings: dict[str, Any] = {"epochs": 8, "batch_size": 8, "lr": 5e-3}
    done = survey(Examples.from_texts(texts, noisy), out=tmp_path / "map", model=str(checkpoint("bert")), **settings)
    issues = label_issues(done.dynamics)
    assert average_precision_score(flipped, issues.score) > 0.6  # chance: 0.1
    assert issues.flagged[flipped].mean() > 0.5
    right = issues.suggested[flipped & issues.flagged] == [
        tiny.LABELS.index(k) for k, f in zip(labels, flipped & issues.flagged, strict=True) if f
    ]
    assert right.mean() > 0.8


def test_the_filter_judges_easy_samples_alone_by_two_runs_with_other_threshold_samples(mapped: Quick) -> None:
    done = mapped(filtered=True, epochs=3)
    easy, _ = easy_and_ambiguous(done.dynamics, fraction=0.33)
    verdicts = done.verdicts
    assert verdicts is not None
    assert set(np.flatnonzero(verdicts.judged)) == set(easy)
    assert set(np.flatnonzero(verdicts.dropped)) <= set(easy)
    dropped = int(verdicts.dropped.sum())
    assert done.figures["dropped_by_filter"] == dropped
    (region,) = done.figures["filter"]["regions"]
    lost = [name for k, name in enumerate(tiny.LABELS) if verdicts.dropped[easy][done.dynamics.labels[easy] == k].all()]
    assert region.pop("labels_lost") == lost
    assert done.figures["filter"] == {
        "wording": "balanced",
        "on": "region",
        "percentile": 80.0,
        "fraction": 0.33,
        "regions": [{"region": "easy", "judged": len(easy), "dropped": dropped, "runs": 2}],
    }
    assert any("none of the 10 easy samples is dropped" in note for note in done.figures["notes"]) == (dropped == 0)
    said = pq.read_table(done.folder / "datamap.parquet")["kept"].to_pylist()
    assert said == [
        not gone if judged else None for judged, gone in zip(verdicts.judged, verdicts.dropped, strict=True)
    ]
    runs = [Dynamics.load(done.folder / f"threshold-easy-{turn}" / "dynamics.parquet") for turn in (1, 2)]
    assert [run.ids for run in runs] == [tuple(tiny.examples(30).ids[row] for row in easy)] * 2
    fakes = [set(easy[run.labels == 3]) for run in runs]
    assert all(fakes)
    assert not fakes[0] & fakes[1]
    assert fakes[0] | fakes[1] <= set(easy)
    assert [len(fake) for fake in fakes] == [len(easy) // 4] * 2
    # The first run judges all but its own threshold samples, which the second does.
    for run, fake, judged in zip(runs, fakes, (set(easy) - fakes[0], fakes[0]), strict=True):
        aum = dict(zip(easy, run.aum, strict=True))
        cut = np.percentile([aum[row] for row in fake], 80)
        assert {row: bool(verdicts.dropped[row]) for row in judged} == {row: aum[row] < cut for row in judged}
    assert sorted(p.name for p in (done.folder / "threshold-easy-1").iterdir()) == ["dynamics.parquet", "log.jsonl"]


@pytest.mark.parametrize("fraction", [0.2, 0.5])
def test_the_filter_judges_as_much_of_the_data_as_the_recipe_takes(mapped: Quick, fraction: float) -> None:
    done = mapped(filtered=True, fraction=fraction)
    assert done.verdicts is not None
    known = Known(done.dynamics, done.verdicts, "")
    easy, _ = easy_and_ambiguous(done.dynamics, fraction=fraction)
    assert np.flatnonzero(done.verdicts.judged).tolist() == easy.tolist()
    kept = region_rows(known, "easy", fraction=fraction, filtered=True)
    assert kept.tolist() == [row for row in easy if not done.verdicts.dropped[row]]
    with pytest.raises(InputError, match=r"judged \d+ of the \d+ samples of the region both.*--fraction 0.4`"):
        region_rows(known, "both", fraction=0.4, filtered=True)


def test_the_filter_judges_the_regions_it_is_asked_to_each_by_threshold_samples_of_its_own(mapped: Quick) -> None:
    both, ambiguous = (mapped(name, filtered=True, judged=name, epochs=3) for name in ("both", "ambiguous"))
    regions = dict(zip(("easy", "ambiguous"), easy_and_ambiguous(both.dynamics, fraction=0.33), strict=True))
    for name, rows in regions.items():
        for turn in (1, 2):
            run = Dynamics.load(both.folder / f"threshold-{name}-{turn}" / "dynamics.parquet")
            assert set(run.ids) == {tiny.examples(30).ids[row] for row in rows}
            assert (run.labels == 3).sum() == len(rows) // 4
    assert both.verdicts is not None
    assert ambiguous.verdicts is not None
    assert set(np.flatnonzero(both.verdicts.judged)) == {*regions["easy"], *regions["ambiguous"]}
    assert set(np.flatnonzero(ambiguous.verdicts.judged)) == set(regions["ambiguous"])
    # What is said of a region does not depend on whether another is judged too.
    there = regions["ambiguous"]
    assert ambiguous.verdicts.dropped[there].tolist() == both.verdicts.dropped[there].tolist()


@pytest.mark.parametrize("counts", [(4,), (2, 3)])
def test_the_filter_of_choices_gives_everyone_one_more_choice(mapped: Quick, checkpoint: Any, counts: Any) -> None:
    examples = tiny.examples(48, kind="choices", counts=counts)
    done = mapped(examples=examples, model=str(checkpoint("bert", choices=True)), filtered=True, epochs=3)
    easy, _ = easy_and_ambiguous(done.dynamics, fraction=0.33)
    verdicts = done.verdicts
    assert verdicts is not None
    assert set(np.flatnonzero(verdicts.judged)) == set(easy)
    assert set(np.flatnonzero(verdicts.dropped)) <= set(easy)
    runs = [Dynamics.load(done.folder / f"threshold-easy-{turn}" / "dynamics.parquet") for turn in (1, 2)]
    sizes = examples.choice_counts
    assert sizes is not None
    fakes = [set(easy[run.labels == sizes[easy]]) for run in runs]
    assert not fakes[0] & fakes[1]
    assert fakes[0] | fakes[1] <= set(easy)
    for fake in fakes:
        assert fake
        for size in counts:
            assert sum(sizes[row] == size for row in fake) <= sum(sizes[easy] == size) // (size + 1)
    for run, fake, judged in zip(runs, fakes, (set(easy) - fakes[0], fakes[0]), strict=True):
        labels, aum = (dict(zip(easy, values, strict=True)) for values in (run.labels, run.aum))
        others = [row for row in easy if row not in fake]
        assert [labels[row] for row in others] == examples.labels[others].tolist()
        cut = np.percentile([aum[row] for row in fake], 80)
        assert {row: bool(verdicts.dropped[row]) for row in judged} == {row: aum[row] < cut for row in judged}


def test_the_filter_can_be_trained_on_all_samples_and_worded_as_in_the_paper(mapped: Quick) -> None:
    whole = mapped("whole", filtered=True, filter_on="all")
    runs = [Dynamics.load(whole.folder / f"threshold-easy-{turn}" / "dynamics.parquet") for turn in (1, 2)]
    assert [run.ids for run in runs] == [tuple(tiny.examples(30).ids)] * 2
    literal = mapped("literal", filtered=True, filter_wording="literal")
    assert literal.figures["filter"]["regions"][0]["runs"] == 4
    assert [place.name for place in sorted(literal.folder.glob("threshold-*"))] == [
        f"threshold-easy-{turn}" for turn in (1, 2, 3, 4)
    ]
    with pytest.raises(InputError, match="filter_on was all, is region"):
        mapped("whole", filtered=True)


def test_the_trained_model_sees_everyone_once_more_whatever_is_recorded(mapped: Quick) -> None:
    training, evaluation = mapped(), mapped("evaluation", record="evaluation")
    assert training.dynamics.observations.tolist() == [2] * 30
    np.testing.assert_allclose(training.dynamics.last_loss, evaluation.dynamics.last_loss, rtol=1e-4)
    assert training.dynamics.last_prediction.tolist() == evaluation.dynamics.last_prediction.tolist()


def test_every_label_is_judged_by_a_fitted_head_that_had_not_seen_it_too(mapped: Quick, headless: Any) -> None:
    texts, labels = tiny.texts(30)
    labels[4] = next(name for name in tiny.LABELS if name != labels[4])
    examples = Examples.from_texts(texts, labels)
    options = {"model": str(headless("bert")), "examples": examples}
    done = mapped(**options)
    assert done.dynamics.head_loss is not None
    assert np.isfinite(done.dynamics.head_loss).all()
    again = Dynamics.load(done.folder / "datamap.parquet")
    np.testing.assert_array_equal(again.head_loss, done.dynamics.head_loss)
    assert done.figures["label_issues"] == label_issues(again).flagged.sum()
    assert mapped("random", head="random", **options).dynamics.head_loss is None


@pytest.mark.parametrize(("head", "epochs"), [("fitted", 19), ("random", 20)])
def test_an_epoch_less_is_made_where_a_head_is_fitted(mapped: Quick, headless: Any, head: Any, epochs: int) -> None:
    done = mapped(model=str(headless("bert")), head=head, epochs=None, batch_size=None)
    assert done.dynamics.epochs == epochs


def test_a_trained_head_has_seen_the_samples_and_judges_none(mapped: Quick, checkpoint: Any) -> None:
    assert mapped(model=str(checkpoint("bert")), head="fitted").dynamics.head_loss is None


def test_a_text_and_its_copy_are_judged_by_the_same_heads() -> None:
    texts, labels = tiny.texts(30)
    texts[9], labels[9] = f" {texts[4].upper()} ", next(name for name in tiny.LABELS if name != labels[4])
    parts = surveying._parts_of(Examples.from_texts(texts, labels))
    assert parts is not None
    assert parts[4] == parts[9]
    assert set(parts) == set(range(5))


def test_too_few_different_texts_are_judged_by_no_head(mapped: Quick, headless: Any) -> None:
    texts, labels = tiny.texts(4)
    options = {"model": str(headless("bert")), "examples": Examples.from_texts(texts, labels)}
    assert mapped(**options).dynamics.head_loss is None


def test_a_label_that_occurs_once_is_judged_by_no_head(mapped: Quick, headless: Any) -> None:
    texts, labels = tiny.texts(30)
    labels[7] = "alone"
    found = mapped(model=str(headless("bert")), examples=Examples.from_texts(texts, labels)).dynamics
    assert np.flatnonzero(np.isnan(found.head_loss)).tolist() == [7]
    assert np.isfinite(label_issues(found).score).all()


@pytest.mark.usefixtures("often")
def test_a_map_that_was_killed_after_its_heads_were_fitted_still_has_what_they_said(
    mapped: Quick, outcome: Any, headless: Any
) -> None:
    options = {"model": str(headless("bert")), "checkpoint_minutes": 0}
    whole = outcome(mapped("whole", **options).folder)
    with pytest.raises(Killed):
        mapped(on_progress=dying("mapping", 3), **options)
    assert outcome(mapped(**options).folder) == whole


def test_an_evaluation_pass_is_recorded_in_all_runs_of_a_map(mapped: Quick) -> None:
    done = mapped(record="evaluation", filtered=True)
    assert done.figures["recorded_on"] == done.dynamics.recorded_on == "evaluation pass"
    for turn in (1, 2):
        assert (
            Dynamics.load(done.folder / f"threshold-easy-{turn}" / "dynamics.parquet").recorded_on == "evaluation pass"
        )
    assert (mapped("other").dynamics.aum != done.dynamics.aum).all()


def test_a_lower_percentile_keeps_more(mapped: Quick) -> None:
    strict, lax = (mapped(str(k), filtered=True, percentile=k, lr=1e-3, seed=0) for k in (99, 1))
    assert strict.verdicts is not None
    assert lax.verdicts is not None
    assert (strict.verdicts.dropped >= lax.verdicts.dropped).all()
    assert strict.verdicts.dropped.sum() > lax.verdicts.dropped.sum()


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    ("stage", "step"), [("mapping", 2), ("mapping", 5), ("threshold run 1, easy", 1), ("threshold run 2, easy", 3)]
)
def test_a_map_that_was_killed_goes_on_to_the_same_result(
    mapped: Quick, outcome: Any, stage: str, step: int, tmp_path: Path
) -> None:
    whole = outcome(mapped("whole", filtered=True).folder)
    with pytest.raises(Killed):
        mapped(filtered=True, checkpoint_minutes=0, on_progress=dying(stage, step))
    assert not (tmp_path / "map" / "metrics.json").exists()
    seen: list[str] = []
    again = mapped(filtered=True, on_progress=lambda now, _: seen.append(now))
    assert seen[0] == stage
    assert outcome(again.folder) == whole


@pytest.mark.usefixtures("often")
def test_ctrl_c_saves_first(mapped: Quick, outcome: Any) -> None:
    with pytest.raises(Interrupted, match="stopped at step 3 of 8, saved"):
        mapped(on_progress=dying("mapping", 3, KeyboardInterrupt))
    assert outcome(mapped().folder) == outcome(mapped("whole").folder)


def test_a_map_is_finished_only_when_all_that_belongs_to_it_is_written(mapped: Quick, outcome: Any) -> None:
    def full(_: Survey) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        mapped(on_done=full)
    told: list[Survey] = []
    assert outcome(mapped(on_done=told.append).folder) == outcome(mapped("whole").folder)
    assert len(told) == 1


def test_a_finished_or_another_map_is_not_touched(mapped: Quick, tree: Any, tmp_path: Path) -> None:
    mapped()
    before = tree(tmp_path)
    with pytest.raises(InputError, match="holds this very run, finished"):
        mapped()
    with pytest.raises(InputError, match=r"holds a different run \(lr was 0.01, is 0.02\)"):
        mapped(lr=2e-2)
    with pytest.raises(InputError, match="filtered was False, is True"):
        mapped(filtered=True)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "--epochs must be at least 1"),
        ({"max_length": 1}, "--max-length must be at least 2"),
        ({"max_length": 2}, "leaves no room for text"),
        ({"model": "no/such-model-here"}, "no/such-model-here"),
        ({"filtered": True, "examples": tiny.examples(5, kind="choices")}, "5 rows are too few for --filter"),
        ({"record": "nothing"}, "--record must be one of training, evaluation"),
        ({"filtered": True, "percentile": 100}, "--percentile must be between 0 and 100"),
        ({"filtered": True, "percentile": float("nan")}, "--percentile must be between 0 and 100"),
        ({"filtered": True, "fraction": 0.6}, "--fraction must be above 0 and at most 0.5, not 0.6"),
        ({"filtered": True, "filter_wording": "loose"}, "--filter-wording is one of balanced, literal, not loose"),
        ({"filtered": True, "filter_on": "easy"}, "--filter-on is one of region, all, not easy"),
        ({"accumulate": 0}, "--accumulate must be at least 1"),
        ({"precision": "fp8"}, "--precision must be one of auto, fp32, bf16"),
        ({"class_weights": {"colour": 2.0}}, "class weights name 'colour'"),
        ({"filtered": True, "fraction": float("nan")}, "--fraction must be above 0 and at most 0.5"),
        ({"filtered": True, "examples": tiny.examples(9)}, "9 rows are too few for --filter"),
        ({"examples": Examples.from_texts(["a", "b"], ["x", "x"])}, "nothing to learn"),
        ({"examples": Examples.from_texts(["a", "b"])}, "has unlabelled rows"),
    ],
)
def test_what_cannot_be_mapped_is_refused_and_nothing_is_left(
    mapped: Quick, tmp_path: Path, changes: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        mapped(**changes)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_map_that_fails_before_anything_is_saved_leaves_nothing(
    mapped: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr("calmix.training.stepping.Stepper.step", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        mapped()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["pair", "choices"])
def test_pairs_and_choices_are_mapped(mapped: Quick, checkpoint: Any, kind: str) -> None:
    model = str(checkpoint("bert", choices=kind == "choices"))
    done = mapped(examples=tiny.examples(30, kind=kind), model=model)
    assert (done.dynamics.observations == 2).all()


def test_a_dozen_rows_of_three_classes_can_be_filtered(mapped: Quick) -> None:
    done = mapped(examples=tiny.examples(12), filtered=True)
    assert done.verdicts is not None
    assert len(done.verdicts.dropped) == 12
