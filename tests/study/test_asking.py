"""What a study asks, and what is refused before anything trains."""

import re
from pathlib import Path
from typing import Any

import pytest

from calmix.data.tasks import builtin_tasks
from calmix.errors import InputError
from calmix.study.asking import read_study


def _read(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return read_study(path)


def test_a_study_is_a_few_lines(tmp_path: Path) -> None:
    study = _read(tmp_path, 'tasks = ["desk"]\n[[method]]\nrecipe = "erm"\n[[method]]\nrecipe = "input-mixup"\n')
    assert (study.title, study.seeds, study.models, study.baseline) == ("mine", (0, 1, 2), ("minilm",), "erm")
    assert [method.name for method in study.methods] == ["erm", "input-mixup"]
    assert [task.name for task in study.tasks] == ["desk"]


def test_a_task_can_be_changed_added_and_copied(tmp_path: Path) -> None:
    text = """
    tasks = ["desk", "mine", "few"]
    [task.desk]
    rows = 100
    [task.mine]
    train = "a.csv"
    test = "b.csv"
    [task.few]
    like = "imdb"
    samples = 32
    [[method]]
    """
    desk, mine, few = _read(tmp_path, text).tasks
    assert (desk.rows, desk.shipped) == (100, True)
    assert mine.train.file == "a.csv"
    assert (few.name, few.samples, few.train.file) == ("few", 32, "imdb/train")


def test_an_option_can_be_varied(tmp_path: Path) -> None:
    text = 'tasks = ["desk"]\n[[method]]\nrecipe = "input-mixup"\nvary = { alpha = [0.1, 1.0], mask = ["own"] }\n'
    methods = _read(tmp_path, text).methods
    assert [m.name for m in methods] == ["input-mixup alpha=0.1 mask=own", "input-mixup alpha=1.0 mask=own"]
    assert methods[1].options == {"alpha": 1.0, "mask": "own"}


def test_options_may_differ_between_tasks(tmp_path: Path) -> None:
    text = """
    tasks = ["desk", "snli"]
    [[method]]
    recipe = "label-smoothing"
    tasks.snli.options = { smoothing = 0.01 }
    """
    method = _read(tmp_path, text).methods[0]
    assert (method.options_on("desk"), method.options_on("snli")) == ({}, {"smoothing": 0.01})


def test_training_settings_can_be_an_axis(tmp_path: Path) -> None:
    text = 'tasks = ["desk"]\n[[training]]\nname = "short"\nepochs = 1\n[[training]]\nname = "long"\n[[method]]\n'
    assert _read(tmp_path, text).settings == {"short": {"epochs": 1}, "long": {}}


METHOD = "[[method]]\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tasks = [", "is not valid TOML"),
        (f'taks = ["desk"]\n{METHOD}', "unknown key 'taks'; did you mean 'tasks'?"),
        (f'tasks = ["desc"]\n{METHOD}', "there is no task 'desc'; did you mean 'desk'?"),
        (f'tasks = "desk"\n{METHOD}', "tasks: must be a list of names"),
        ('tasks = ["desk"]', "needs at least one [[method]]"),
        (f'tasks = ["desk"]\n{METHOD}recipe = "input-mixpu"', "did you mean input-mixup?"),
        (f'tasks = ["desk"]\n{METHOD}options = {{ smooth = 1 }}', "did you mean smoothing?"),
        (f'tasks = ["desk"]\n{METHOD}recpie = "erm"', "did you mean 'recipe'?"),
        (f'tasks = ["desk"]\n{METHOD}{METHOD}', "two methods are called 'erm'"),
        (f'tasks = ["desk"]\n[training]\nepoch = 3\n{METHOD}', "unknown key 'epoch'; did you mean 'epochs'?"),
        (f'tasks = ["desk"]\n[training]\naverage = 0.5\n{METHOD}', "unknown key 'average'"),
        (f'tasks = ["desk"]\n[training]\nepochs = -1\n{METHOD}', "--epochs must be at least 0"),
        (f'tasks = ["desk"]\n[training]\nlr = "x"\n{METHOD}', "--lr must be a number"),
        (f'tasks = ["desk"]\nseeds = 0\n{METHOD}', "seeds must be at least 1, not 0"),
        (f'tasks = ["desk"]\nseeds = [1, 1]\n{METHOD}', "lists a seed twice"),
        (f'tasks = ["desk"]\nbaseline = "erk"\n{METHOD}', "baseline 'erk' is no method's name; did you mean 'erm'?"),
        (f'tasks = ["desk"]\nbaseline = "plain"\n{METHOD}', "'plain' is no method's name (there are: erm)"),
        (f'tasks = ["desk"]\nkeep = "some"\n{METHOD}', "keep: is one of all, metrics"),
        (f'tasks = ["desk"]\nfigures = ["acuracy"]\n{METHOD}', "did you mean 'accuracy'?"),
        (f'tasks = ["desk"]\n{METHOD}ensemble = {{ of = "x" }}', "is made of 'x', which is not there"),
        (f'tasks = ["desk"]\n{METHOD}ensemble = {{ members = 2 }}', "say of which method"),
        (f'tasks = ["desk"]\n{METHOD}subset = "hrad"', "did you mean 'hard'?"),
        (f'tasks = ["desk"]\n{METHOD}filtered = true', "filtered is for subsets and recipes guided"),
        (f'tasks = ["desk"]\n{METHOD}subset = "hard"\nfiltered = true', "not the hard region"),
        (f'tasks = ["desk"]\n{METHOD}online = true', "online is for recipes guided"),
        (f'tasks = ["desk"]\n{METHOD}tasks.snli.options = {{}}', "unknown key 'snli'"),
        (f'tasks = ["desk"]\n{METHOD}recipe = "distil"', "recipe distil needs the name of its teacher"),
        (f'tasks = ["desk"]\n{METHOD}teacher = "x"', "recipe erm takes no teacher"),
        (f'tasks = ["desk"]\n{METHOD}recipe = "distil"\nteacher = "erm"', "'erm', which no method before it is"),
        (f'tasks = ["desk"]\n{METHOD}skip = ["dsek"]', "did you mean 'desk'?"),
        (
            f'tasks = ["desk"]\n{METHOD}skip = ["desk"]\n{METHOD}ensemble = {{ of = "erm" }}',
            "is made of 'erm', which skips tasks it does not",
        ),
        (f'tasks = ["desk"]\n{METHOD}vary = {{ smoothing = 0.1 }}', "list the values"),
        (f'tasks = ["desk"]\n[task.mine]\ntrain = "a"\ntest = "b"\n{METHOD}', "described, but not among the tasks"),
    ],
)
def test_whatever_is_wrong_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError) as refused:
        _read(tmp_path, text)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_ensemble_is_not_asked_whether_it_meant_itself(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is made of 'nobody', which is not there$"):
        _read(tmp_path, f'tasks = ["desk"]\n{METHOD}[[method]]\nensemble = {{ of = "nobody", members = 3 }}')


# Values of every kind that a file can have.
VALUES = ("3", '"x"', "true", "[]", "[1]", '["a"]', "{}", "{ a = 1 }", "1.5", "-1", "nan", "[[1]]", "[{ a = 1 }]",
          "1979-05-27")  # fmt: skip
PLACES = {
    "": ("title", "note", "models", "seeds", "baseline", "bins", "spread", "keep", "figures", "training", "task",
         "paper", "map_model"),
    "[[method]]": ("name", "recipe", "options", "training", "tasks", "skip", "subset", "fraction", "filtered",
                   "percentile", "filter_wording", "filter_on", "online", "teacher", "teacher_model",
                   "scaled_teacher", "ensemble", "vary"),
    "[[method]]\ntasks.desk": ("options", "training", "percentile"),
    "[[method]]\n[[method]]\nname = 'e'\nensemble.of = 'erm'\nensemble": ("members", "disjoint"),
    "[task.desk]": ("rows", "samples", "test_rows", "dev_from_test", "figure", "shipped", "training", "columns",
                    "labels", "several", "like", "ood", "train", "dev"),
    "[training]": ("epochs", "lr", "optimizer", "schedule", "precision", "gradient_checkpointing", "name"),
}  # fmt: skip


@pytest.mark.parametrize(("place", "key"), [(place, key) for place, keys in PLACES.items() for key in keys])
def test_no_value_is_more_than_one_line(tmp_path: Path, place: str, key: str) -> None:
    for value in VALUES:
        head, _, table = place.rpartition("\n")
        line = f"{table}.{key} = {value}" if table and not table.startswith("[") else f"{table}\n{key} = {value}"
        method = "" if "[[method]]" in place else METHOD
        text = f'tasks = ["desk"]\n{head}\n{line}\n{method}'
        said = ""
        try:
            _read(tmp_path, text)
        except InputError as refused:
            said = str(refused)
        assert "\n" not in said, text


def test_neither_yes_nor_no_is_true_or_false(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"scaled_teacher: must be true or false, not 'no'"):
        _read(tmp_path, f'tasks = ["desk"]\n{METHOD}scaled_teacher = "no"')


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_study(tmp_path / "none.toml")


def test_the_page_shows_a_study_that_can_be_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "study.md").read_text(encoding="utf-8")
    study = _read(tmp_path, page.split("```toml\n")[1].split("```")[0])
    assert [method.name for method in study.methods][1] == "mixup alpha=0.2"
    assert study.tasks[0].ood["chat"].labels == {"refund": ("money back", "return")}


def test_the_page_names_every_task_that_is_built_in() -> None:
    page = (Path(__file__).parents[2] / "docs" / "study.md").read_text(encoding="utf-8")
    table = page.split("## Tasks")[1].split("A task of your own")[0]
    assert set(builtin_tasks()) <= set(re.findall(r"`([\w-]+)`", table))


@pytest.mark.parametrize("recipe", ["../evil.py:f", "/etc/evil.py:f", "os:system", "evil:f"])
def test_code_from_elsewhere_is_not_run(tmp_path: Path, recipe: str) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    folder = tmp_path / "study"
    folder.mkdir()
    place = recipe.replace("../", f"{tmp_path}/")
    (folder / "s.toml").write_text(f'[task.t]\ntrain = "a"\ntest = "a"\n[[method]]\nrecipe = "{place}"\n')
    with pytest.raises(InputError, match=r"a study's own methods are in \.py files in its folder"):
        read_study(folder / "s.toml")


def test_a_recipe_of_ones_own_is_looked_for_beside_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, elsewhere = tmp_path / "study", tmp_path / "elsewhere"
    for place in (folder, elsewhere):
        place.mkdir()
    (folder / "mine.py").write_text("from calmix.recipes import erm as f\n")
    (elsewhere / "mine.py").write_text("raise SystemExit('it ran')")
    (folder / "s.toml").write_text('[task.t]\ntrain = "a"\ntest = "a"\n[[method]]\nrecipe = "mine.py:f"\n')
    monkeypatch.chdir(elsewhere)
    for study in (folder / "s.toml", Path("..") / "study" / "s.toml"):
        (method,) = read_study(study).methods
        assert (method.name, method.recipe) == ("mine.py:f", "mine.py:f")


def test_a_link_does_not_bring_code_in(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "mine.py").symlink_to(tmp_path / "evil.py")
    (folder / "s.toml").write_text(f'[task.t]\ntrain = "a"\ntest = "a"\n[[method]]\nrecipe = "{folder}/mine.py:f"\n')
    with pytest.raises(InputError, match="in its folder"):
        read_study(folder / "s.toml")
