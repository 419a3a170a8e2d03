"""The runs of a study, their keys, and what is shared."""

from pathlib import Path
from typing import Any

import pytest

from calmix.errors import InputError
from calmix.study.conducting import Order, prepare
from calmix.study.grid import Plan, Spec

GUIDED = '[[method]]\nrecipe = "{}"\n'


def _of(plan: Plan, **wanted: Any) -> list[Spec]:
    return [spec for spec in plan.runs.values() if all(getattr(spec, k) == v for k, v in wanted.items())]


def test_a_guided_run_needs_the_plain_run_of_the_same_seed_which_is_in_the_grid_already(ready: Any) -> None:
    plan = ready().plan
    assert len(plan.runs) == 4
    plain = {spec.seed: spec for spec in _of(plan, recipe="erm")}
    for spec in _of(plan, recipe="tdmixup"):
        assert spec.needs["dynamics"].key == plain[spec.seed].key
    # Whoever is needed comes first.
    assert [spec.recipe for spec in plan.runs.values()] == ["erm", "erm", "tdmixup", "tdmixup"]


def test_without_a_plain_row_the_plain_runs_are_made_once_for_all(ready: Any) -> None:
    plan = ready(GUIDED.format("tdmixup") + GUIDED.format("informed-mixup")).plan
    assert len(_of(plan, recipe="erm")) == 2
    assert len(plan.runs) == 6
    assert {cell.method for cell in plan.cells} == {"tdmixup", "informed-mixup"}


def test_a_filter_is_a_map_shared_by_all_who_want_it(ready: Any) -> None:
    methods = """
    [[method]]
    recipe = "tdmixup"
    filtered = true
    [[method]]
    subset = "easy"
    filtered = true
    [[method]]
    subset = "both"
    """
    plan = ready(methods).plan
    assert len(_of(plan, what="map")) == 2
    easy = _of(plan, subset="easy")[0]
    assert easy.needs["dynamics"].what == "map"
    assert _of(plan, subset="both")[0].needs["dynamics"].is_plain


def test_a_filter_judges_as_much_of_the_data_as_is_trained_on(ready: Any) -> None:
    methods = """
    [[method]]
    recipe = "tdmixup"
    options = { fraction = 0.25 }
    filtered = true
    [[method]]
    subset = "easy"
    fraction = 0.4
    filtered = true
    """
    plan = ready(methods).plan
    assert {needed.fraction for needed in _of(plan, what="map")} == {0.25, 0.4}


def test_the_filter_of_a_subset_judges_that_region(ready: Any) -> None:
    plan = ready("".join(f'[[method]]\nsubset = "{take}"\nfiltered = true\n' for take in ("ambiguous", "both"))).plan
    for take, runs in (("ambiguous", 2), ("both", 4)):
        needed = _of(plan, subset=take)[0].needs["dynamics"]
        assert (needed.what, needed.judged) == ("map", take)
        assert needed.samples == int((1 + 0.33 * runs) * 30 * needed.training["epochs"])


def test_how_a_filter_judges_is_part_of_its_map(ready: Any) -> None:
    ways = ("", 'filter_wording = "literal"\n', 'filter_on = "all"\n')
    methods = "".join(
        f'[[method]]\nname = "{k}"\nsubset = "easy"\nfiltered = true\n{way}' for k, way in enumerate(ways)
    )
    maps = _of(ready(methods, head="seeds = 1").plan, what="map")
    assert [(spec.filter_wording, spec.filter_on) for spec in maps] == [
        ("balanced", "region"),
        ("literal", "region"),
        ("balanced", "all"),
    ]
    assert [spec.samples for spec in maps] == [int(passes * 60) for passes in (1 + 0.33 * 2, 1 + 0.33 * 4, 3)]
    assert len({spec.group for spec in maps}) == 3


def test_runs_that_differ_only_in_seed_form_a_group(ready: Any) -> None:
    groups = ready().plan.groups
    assert [[spec.seed for spec in group] for group in groups] == [[0, 1], [0, 1]]


def test_keys_tell_settings_data_seeds_and_versions_apart_and_nothing_else(
    ready: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keys(**changes: Any) -> set[str]:
        return set(ready(**changes).plan.runs)

    base = keys()
    assert keys(head='seeds = 2\ntitle = "other"\nbins = 10\nkeep = "metrics"') == base
    assert not keys(training="[training]\nepochs = 1") & base
    assert not keys(head="seeds = [5]") & base
    assert not keys(more="rows = 20") & base
    monkeypatch.setattr("calmix.training.folder.__version__", "99")
    assert not keys() & base


def test_an_ensemble_takes_a_window_of_seeds_and_trains_what_is_missing(ready: Any) -> None:
    methods = '[[method]]\nrecipe = "erm"\n[[method]]\nname = "many"\nensemble = { of = "erm", members = 3 }\n'
    plan = ready(methods).plan
    assert sorted(spec.seed for spec in plan.runs.values()) == [0, 1, 2, 3]
    seeds = [[plan.runs[key].seed for key in cell.runs] for cell in plan.cells if cell.method == "many"]
    assert seeds == [[0, 1, 2], [1, 2, 3]]
    apart = ready(methods.replace("members = 3", "members = 3, disjoint = true")).plan
    seeds = [[apart.runs[key].seed for key in cell.runs] for cell in apart.cells if cell.method == "many"]
    assert seeds == [[0, 1, 2], [3, 4, 5]]


def test_a_method_may_skip_a_task(ready: Any) -> None:
    methods = '[[method]]\nrecipe = "erm"\n[[method]]\nrecipe = "erl"\nskip = ["tiny"]\n'
    plan = ready(methods).plan
    assert {cell.method for cell in plan.cells} == {"erm"}
    assert {spec.recipe for spec in plan.runs.values()} == {"erm"}


def test_samples_are_drawn_for_each_seed_and_still_form_a_group(ready: Any) -> None:
    prepared = ready('[[method]]\nrecipe = "erm"\n', more="samples = 12")
    drawn = [prepared.library.sets("tiny", seed).train for seed in (0, 1)]
    assert [len(examples) for examples in drawn] == [12, 12]
    assert drawn[0].ids != drawn[1].ids
    assert len(prepared.plan.groups) == 1


def test_how_many_samples_a_run_sees_is_told(ready: Any) -> None:
    plan = ready('[[method]]\nrecipe = "erm"\n[[method]]\nsubset = "easy"\n').plan
    assert [spec.samples for spec in plan.runs.values()] == [60, 60, 19, 19]


TAUGHT = """
[[method]]
name = "informed"
recipe = "informed-mixup"
[[method]]
name = "student"
recipe = "distil"
teacher = "informed"
[[method]]
name = "next student"
recipe = "distil"
teacher = "student"
scaled_teacher = false
"""


def test_a_student_needs_the_run_of_its_teachers_row_and_what_that_needs(ready: Any) -> None:
    plan = ready(TAUGHT).plan
    order = [spec.recipe for spec in plan.runs.values()]
    assert order == ["erm"] * 2 + ["informed-mixup"] * 2 + ["distil"] * 4
    first, again = (_of(plan, recipe="distil", scaled_teacher=scaled) for scaled in (True, False))
    for spec, next_ in zip(first, again, strict=True):
        assert spec.needs["teacher"].recipe == "informed-mixup"
        assert spec.needs["teacher"].seed == spec.seed
        assert next_.needs["teacher"].key == spec.key
        assert [needed.recipe for needed in next_.builds_on] == ["erm", "informed-mixup", "distil"]
    assert plan.students == {s.needs["teacher"].key: [s.key] for s in (*first, *again)}
    assert [[spec.seed for spec in group] for group in plan.groups] == [[0, 1]] * 4


def test_the_map_and_the_teacher_may_be_of_another_model(ready: Any, checkpoint: Any) -> None:
    one, other = str(checkpoint("bert")), str(checkpoint("roberta"))
    across = f'[[method]]\nname = "KD"\nrecipe = "distil"\nteacher = "informed"\nteacher_model = "{other}"\n'
    plan = ready(TAUGHT + across, head=f'seeds = 1\nmap_model = "{other}"').plan
    assert {spec.model for spec in _of(plan, recipe="erm")} == {other}
    rows = {cell.method: plan.runs[cell.runs[0]] for cell in plan.cells}
    assert (rows["student"].needs["teacher"].model, rows["KD"].needs["teacher"].model) == (one, other)
    assert rows["KD"].needs["teacher"].needs["dynamics"].key == rows["informed"].needs["dynamics"].key
    assert len(plan.runs) == 6


def test_what_is_missing_is_told_before_anything_trains(ready: Any) -> None:
    with pytest.raises(InputError, match="no such file"):
        ready(task='[task.t]\ntrain = "tiny/train"\ntest = "tiny/nothing"')


@pytest.mark.parametrize("weights", ['"balancd"', "3", "{ cat = 2.0 }", '{ animal = "much" }'])
def test_class_weights_that_mean_nothing_are_told_before_anything_trains(ready: Any, weights: str) -> None:
    with pytest.raises(InputError, match="class weights"):
        ready(training=f"[training]\nclass_weights = {weights}")


def test_a_column_that_is_not_found_is_said_to_be_named_in_the_task(written: Any, tmp_path: Path) -> None:
    for name in ("train", "dev", "test", "other"):
        (tmp_path / f"{name}.csv").write_text("text,kind_of_thing\nhello,a\nbye,b\n")
    file = written(task='[task.tiny]\ntrain = "train.csv"\ntest = "test.csv"\n')
    with pytest.raises(InputError, match=r"name it with --label .*\[--label is columns.label of a task\]$"):
        prepare(Order(file, tmp_path / "out", data=tmp_path))
    file = written(
        task='[task.tiny]\ntrain = "train.csv"\ndev = "dev.csv"\ntest = "test.csv"\n',
        more='columns.label = "kind_of_thing"',
    )
    assert prepare(Order(file, tmp_path / "out", data=tmp_path)).plan.runs
