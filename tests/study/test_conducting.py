"""A whole study."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from calmix.errors import InputError
from calmix.report.study_page import study_page
from calmix.study.conducting import Order, conduct, data_folders, outcome, prepare


def test_tables_of_a_study_that_is_not_finished_show_what_is(ready: Any) -> None:
    prepared = ready()
    assert conduct(prepared, minutes=0).open == 4
    done = outcome(prepared)
    assert done.rows == []
    page = (prepared.order.out / "study.md").read_text()
    assert "0 of 4 runs are finished" in page
    assert "| erm | – | – |" in page


def test_what_failed_is_on_the_page(ready: Any) -> None:
    prepared = ready('[[method]]\nrecipe = "erm"\n')
    folder = prepared.storage.folder(next(iter(prepared.plan.runs)))
    folder.mkdir(parents=True)
    (folder / "mine.txt").write_text("x")
    assert conduct(prepared).failed == 1
    outcome(prepared)
    page = (prepared.order.out / "study.md").read_text()
    assert "1 of 2 runs are finished, 1 failed" in page
    assert "is not empty and holds no run of ours" in page.split("## Runs that failed")[1]


def test_what_another_process_needs_to_know_does_not_depend_on_where_it_works(
    written: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written()
    monkeypatch.chdir(tmp_path)
    order = prepare(Order(Path("study.toml"), Path("out"), data=data)).order
    assert (order.study_file, order.out) == (tmp_path / "study.toml", tmp_path / "out")


def test_studies_may_share_their_runs(written: Any, data: Path, tmp_path: Path) -> None:
    one = prepare(Order(written('[[method]]\nrecipe = "erm"\n'), tmp_path / "a", tmp_path / "runs", data))
    conduct(one)
    two = prepare(Order(written(head="seeds = 2\nbins = 10"), tmp_path / "b", tmp_path / "runs", data))
    from calmix.study.working import state_of

    assert state_of(two.plan, two.storage).done == 2


def test_data_is_where_one_says_or_beside_the_study_or_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, other = tmp_path / "beside", tmp_path / "other"
    other.mkdir()
    monkeypatch.delenv("CALMIX_DATA", raising=False)
    assert data_folders(None, beside) == (beside, None)
    assert data_folders(other, beside) == (other,)
    monkeypatch.setenv("CALMIX_DATA", str(other))
    assert data_folders(None, beside) == (beside, other)
    with pytest.raises(InputError, match=r"none: is no folder to read data from \(--data\)"):
        data_folders(tmp_path / "none", beside)
    monkeypatch.setenv("CALMIX_DATA", str(tmp_path / "none"))
    with pytest.raises(InputError, match=r"\(CALMIX_DATA\)"):
        data_folders(None, beside)


def test_files_beside_the_study_need_no_option(written: Any, data: Path, tmp_path: Path) -> None:
    file = written()
    for path in data.rglob("*.*"):
        target = file.parent / path.relative_to(data)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    assert len(prepare(Order(file, tmp_path / "out")).plan.runs) == 4


def test_a_file_that_is_not_there_is_told_with_the_study_and_the_task(
    written: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CALMIX_DATA", raising=False)
    file = written()
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match=rf"^{file}: \[task\..+\]: .*: no such file in {empty}; --data"):
        prepare(Order(file, tmp_path / "out", data=empty))


@pytest.mark.parametrize("held", ["run.toml", "metrics.json"])
def test_a_folder_that_holds_something_else_is_left_as_it_was(
    written: Any, data: Path, tmp_path: Path, held: str
) -> None:
    out = tmp_path / "trained"
    out.mkdir()
    (out / held).write_text("")
    with pytest.raises(InputError, match=r"trained: holds a run, a map or an evaluation, and no study"):
        prepare(Order(written(), out, data=data))
    assert [path.name for path in out.iterdir()] == [held]


def test_a_file_is_no_folder_for_a_study(written: Any, data: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(InputError, match=r"notes\.txt: is a file; --out must be a folder"):
        prepare(Order(written(), tmp_path / "notes.txt", data=data))


def test_the_example_study_runs_on_the_shipped_messages(checkpoint: Any, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "studies" / "desk.toml").read_text()
    text = text.replace("seeds = 3", "seeds = 1").replace("epochs = 3", "epochs = 1\nbatch_size = 128")
    (tmp_path / "desk.toml").write_text(text + "\n[task.desk]\nrows = 128\ntest_rows = 100\n")
    prepared = prepare(Order(tmp_path / "desk.toml", tmp_path / "out", models=(str(checkpoint("bert")),)))
    assert conduct(prepared).failed == 0
    done = outcome(prepared)
    assert {row["data"] for row in done.rows} == {"dev", "test", "ood-ood"}
    assert {row["method"] for row in done.rows} == {method.name for method in prepared.plan.study.methods}


def test_word_vectors_are_looked_for_in_the_data_folder(written: Any, data: Path, tmp_path: Path) -> None:
    (data / "v.txt").write_text("cat 1 2 3\nbread 3 2 1\n")
    order = Order(written('[[method]]\nrecipe = "erm"\n'), tmp_path / "out", data=data, models=("sentence-cnn:v.txt",))
    prepared = prepare(order)
    assert conduct(prepared).failed == 0
    outcome(prepared)
    assert "v.txt" in (tmp_path / "out" / "study.json").read_text()
    assert str(data) not in (tmp_path / "out" / "study.json").read_text()
    with pytest.raises(InputError, match="no such file of word vectors"):
        prepare(Order(order.study_file, tmp_path / "other", data=data, models=("sentence-cnn:none.txt",)))


NAMED = """
[[method]]
recipe = "erm"

[[method]]
recipe = "tdmixup"

[[method]]
name = "student"
recipe = "distil"
teacher = "erm"
teacher_model = "large"
"""


@pytest.fixture
def named(written: Any) -> Path:
    """A study that calls its models by names that mean nothing here."""
    file: Path = written(NAMED, head='seeds = 1\nmap_model = "base"')
    text = file.read_text()
    file.write_text('models = ["base"]\n' + text.split("\n", 1)[1])
    return file


def test_models_that_a_study_names_are_found_where_one_says(
    named: Path, checkpoint: Any, data: Path, tmp_path: Path
) -> None:
    places = (f"base={checkpoint('bert')}", f"large={checkpoint('distilbert')}")
    prepared = prepare(Order(named, tmp_path / "out", data=data, models=places))
    assert {spec.model for spec in prepared.plan.runs.values()} == {"base", "large"}
    assert prepared.plan.study.models == ("base",)
    assert conduct(prepared).failed == 0
    assert {row["model"] for row in outcome(prepared).rows} == {"base"}
    kinds = {
        spec.model: (prepared.storage.folder(key) / "model" / "config.json").read_text()
        for key, spec in prepared.plan.runs.items()
    }
    assert '"distilbert"' in kinds["large"]
    assert '"distilbert"' not in kinds["base"]
    again = prepare(prepared.order)  # as another process would
    assert set(again.plan.runs) == set(prepared.plan.runs)


def test_models_given_instead_leave_the_map_and_the_teachers(
    named: Path, checkpoint: Any, data: Path, tmp_path: Path
) -> None:
    places = (str(checkpoint("roberta")), f"base={checkpoint('bert')}", f"large={checkpoint('distilbert')}")
    prepared = prepare(Order(named, tmp_path / "out", data=data, models=places))
    assert prepared.plan.study.models == (str(checkpoint("roberta")),)
    guided = next(spec for spec in prepared.plan.runs.values() if spec.recipe == "tdmixup")
    assert guided.needs["dynamics"].model == "base"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("bose=here",), r"--model bose=here: the study has no model 'bose'; did you mean 'base'\? \(it has: base"),
        (("=here",), r"--model =here: the study has no model ''"),
        (("base=",), r"--model base=: says no place"),
        (("base=one", "base=two"), r"--model base=two: and one are two places"),
    ],
)
def test_a_place_that_means_nothing_is_refused(
    named: Path, data: Path, tmp_path: Path, given: tuple[str, ...], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        prepare(Order(named, tmp_path / "out", data=data, models=given))


def test_a_recipe_of_ones_own_runs_wherever_the_command_is_given(
    ready: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text("from calmix.recipes import erm as recipe\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    prepared = ready('[[method]]\nrecipe = "own.py:recipe"\n', head="seeds = 1")
    state = conduct(prepared)
    assert (state.done, state.failed) == (1, 0)
    outcome(prepared)
    (run,) = json.loads((prepared.order.out / "study.json").read_text())["runs"]
    assert run["recipe"] == "own.py:recipe"


def test_how_many_a_filter_dropped_is_in_what_a_study_writes(ready: Any) -> None:
    methods = '[[method]]\nrecipe = "tdmixup"\nfiltered = true\npercentile = 99\n'
    methods += '[[method]]\nname = "easy, filtered"\nsubset = "easy"\nfiltered = true\nfilter_on = "all"\n'
    prepared = ready(methods, head="seeds = 2")
    assert conduct(prepared).failed == 0
    outcome(prepared)
    found = json.loads((prepared.order.out / "study.json").read_text())["filters"]
    assert [(one["methods"], one["seed"], one["on"], one["region"], one["judged"]) for one in found] == [
        (["tdmixup"], 0, "region", "easy", 10),
        (["tdmixup"], 1, "region", "easy", 10),
        (["easy, filtered"], 0, "all", "easy", 10),
        (["easy, filtered"], 1, "all", "easy", 10),
    ]
    page = (prepared.order.out / "study.md").read_text().split("## What the AUM filters dropped")[1]
    html = study_page(prepared.order.out / "study.json")
    for one in found:
        map_ = json.loads((prepared.storage.folder(one["run"]) / "metrics.json").read_text())
        assert one["dropped"] == map_["dropped_by_filter"]
        lines = (line for line in page.splitlines() if line.startswith(f"- {one['methods'][0]} ("))
        line = next(line for line in lines if f"seed {one['seed']})" in line)
        assert f"{one['dropped']} of 10 easy samples" in line
        assert ("trained as without a filter" in line) == (one["dropped"] == 0)
        assert f"<td>easy</td><td>10</td><td>{one['dropped']}</td>" in html
    assert ("trained as without a filter" in html) == any(one["dropped"] == 0 for one in found)
