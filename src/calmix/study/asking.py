"""What a study asks: tasks × models × methods × training settings × seeds, read from a small TOML file."""

import itertools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from calmix.data.origin import closest
from calmix.data.tasks import Task, builtin_tasks, checked_keys, checked_table, checked_truth, parse_task
from calmix.dynamics.thresholds import WORDINGS, Wording
from calmix.errors import InputError
from calmix.mixing import choose
from calmix.study import checking
from calmix.study.papers import PaperFigures, parse_paper, read_paper
from calmix.training.filtering import FILTER_ON, FilterOn
from calmix.training.optimising import check_hyper

__all__ = ["OF_A_KEPT_MODEL", "TRAINING", "Method", "Study", "read_study", "recipe_beside"]

# What [training] may set: those of `calmix.train`'s options that belong neither to a task, a method nor a seed.
_CHECKED = ("head", "pooling", "epochs", "batch_size", "optimizer", "lr", "weight_decay", "warmup", "schedule",
            "clip", "accumulate", "max_length", "image_size", "augment", "select", "patience", "precision")  # fmt: skip
TRAINING = [*_CHECKED, "class_weights", "gradient_checkpointing"]
OF_A_KEPT_MODEL = ("select", "patience")
"""Those of them that say which weights are kept: a map has no dev data to choose by, and keeps none."""
FIGURES = ("accuracy", "mcc", "macro_f1", "ece", "oe", "nll", "brier", "debiased_ece", "adaptive_ece",
           "classwise_ece", "smooth_ece", "mce", "aurc", "seconds")  # fmt: skip
_SHOWN = ("accuracy", "ece", "oe", "nll", "brier", "debiased_ece", "aurc", "seconds")
_SUBSETS = ("easy", "ambiguous", "both", "hard")


@dataclass(frozen=True)
class Method:
    """One row of the tables: a recipe with its options, or an ensemble of another row's runs."""

    name: str
    recipe: str = "erm"
    options: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Task → `options` and `training` that are other there."""
    skip: tuple[str, ...] = ()
    """Tasks it is not for."""
    subset: str = ""
    """Train on a region of the plain run's data map alone."""
    fraction: float = 0.33
    """The share of the data in a region."""
    filtered: bool = False
    """Leave out what an AUM filter drops (a map with threshold samples is made for it)."""
    percentile: float = 80.0
    """Of the threshold samples' AUM, for the filter."""
    judged: str = "easy"
    """The region a filter judges: for maps, which follow from the rows."""
    filter_wording: Wording = "balanced"
    """Which samples become threshold samples: see `calmix.dynamics.threshold_samples`."""
    filter_on: FilterOn = "region"
    """What the runs with threshold samples train on."""
    online: bool = False
    teacher: str = ""
    """The row whose runs teach it, for recipes that learn from a teacher: the run of the same seed."""
    teacher_model: str = ""
    """The teacher's model, where it is another one than the student's."""
    scaled_teacher: bool = True
    """Whether the teacher's temperature is fitted before it teaches."""
    of: str = ""
    """The row whose runs an ensemble is made of."""
    members: int = 0
    disjoint: bool = False
    """Whether no two ensembles share a member."""

    def options_on(self, task: str) -> dict[str, Any]:
        """Return the recipe's options on a task."""
        return {**self.options, **self.tasks.get(task, {}).get("options", {})}


@dataclass(frozen=True)
class Study:
    """A study as it was asked for, everything in it known to exist."""

    title: str
    tasks: tuple[Task, ...]
    models: tuple[str, ...]
    methods: tuple[Method, ...]
    settings: Mapping[str, Mapping[str, Any]]
    """Name → training settings; one nameless entry where the study has no such axis."""
    seeds: tuple[int, ...]
    baseline: str
    bins: int = 15
    spread: str = "std"
    keep: str = "all"
    figures: tuple[str, ...] = _SHOWN
    note: str = ""
    map_model: str = ""
    """The model whose plain runs guide all others; each model's own if not given."""
    paper: PaperFigures | None = None
    """What a paper reports for the same methods."""

    def method(self, name: str) -> Method:
        """Return the row of this name."""
        return next(method for method in self.methods if method.name == name)

    @property
    def other_models(self) -> tuple[str, ...]:
        """The models that map and teach for others."""
        named = (self.map_model, *(method.teacher_model for method in self.methods))
        return tuple(dict.fromkeys(name for name in named if name))


def read_study(path: Path) -> Study:
    """Return the study in a TOML file; whatever is wrong with it is one `InputError`."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is not valid TOML ({error})") from None
    except RecursionError:
        raise InputError(f"{path}: is not valid TOML (nested too deeply)") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    _refuse_code_from_elsewhere(values, path)
    study = parse_study(values, str(path), path.stem, path.parent)
    paper = parse_paper(values.get("paper"), f"{path}: [paper]")
    return study if paper is None else replace(study, paper=read_paper(paper, path.parent))


def _refuse_code_from_elsewhere(values: Mapping[str, Any], path: Path) -> None:
    """Refuse recipes whose code is not beside the study: whoever wrote the file would choose what runs here."""
    methods = values.get("method")
    for table in methods if isinstance(methods, list) else ():
        recipe = table.get("recipe") if isinstance(table, Mapping) else None
        place, colon, _ = recipe.rpartition(":") if isinstance(recipe, str) else ("", "", "")
        inside = (path.parent / place).resolve().is_relative_to(path.parent.resolve())
        if colon and not (place.endswith(".py") and inside):
            raise InputError(
                f"{path}: recipe {recipe!r}: a study's own methods are in .py files in its folder, {path.parent}"
            )


def recipe_beside(recipe: str, folder: Path) -> str:
    """Return what a recipe is found by: a file of one's own is in the study's folder, wherever the command is given."""
    place, colon, function = recipe.rpartition(":")
    return f"{folder / place}:{function}" if colon and place.endswith(".py") else recipe


def parse_study(values: Mapping[str, Any], where: str, name: str, folder: Path) -> Study:
    """Return the study in a parsed TOML file, without the paper's figures."""
    known = ["title", "note", "tasks", "models", "seeds", "baseline", "bins", "spread", "keep", "figures", "training",
             "task", "method", "paper", "map_model"]  # fmt: skip
    checked_keys(values, known, where)
    tasks = _tasks(values, where)
    methods = _methods(values, where, tasks, folder)
    names = [method.name for method in methods]
    baseline = values.get("baseline", names[0])
    if baseline not in names:
        hint = closest(str(baseline), names)
        raise InputError(f"{where}: baseline {baseline!r} is no method's name{hint} (there are: {', '.join(names)})")
    study = Study(
        title=checking.text(values.get("title", name), f"{where}.title"),
        tasks=tasks,
        models=tuple(checking.names(values.get("models", ["minilm"]), f"{where}.models")),
        methods=methods,
        settings=_settings(values.get("training", {}), where),
        seeds=checking.seeds(values.get("seeds", 3), where),
        baseline=baseline,
        bins=checking.positive(values.get("bins", 15), f"{where}.bins"),
        spread=checking.one_of(values.get("spread", "std"), ("std", "error"), f"{where}.spread"),
        keep=checking.one_of(values.get("keep", "all"), ("all", "metrics"), f"{where}.keep"),
        figures=checking.figures(values.get("figures", list(_SHOWN)), FIGURES, f"{where}.figures"),
        note=checking.text(values.get("note", ""), f"{where}.note"),
        map_model=checking.text(values.get("map_model", ""), f"{where}.map_model"),
    )
    for task, method, setting in itertools.product(study.tasks, study.methods, study.settings.values()):
        if not method.of:
            # A wrong value is found here, not when its turn comes.
            check_training({**setting, **task.training, **method.training}, where)
    return study


def check_training(settings: Mapping[str, Any], where: str) -> None:
    """Refuse training settings that `calmix.train` would refuse."""
    checked_keys(settings, TRAINING, f"{where}.training")
    checked_truth(settings.get("gradient_checkpointing", False), f"{where}.training.gradient_checkpointing")
    try:
        check_hyper({key: value for key, value in settings.items() if key in _CHECKED})
    except InputError as error:
        raise InputError(f"{where}.training: {error}") from None


def _tasks(values: Mapping[str, Any], where: str) -> tuple[Task, ...]:
    own = values.get("task", {})
    if not isinstance(own, Mapping) or not all(isinstance(table, Mapping) for table in own.values()):
        raise InputError(f"{where}: tasks of your own are tables, as in [task.mine]")
    builtin = builtin_tasks()
    names = checking.names(values.get("tasks", list(own)), f"{where}.tasks")
    known = [*builtin, *own]
    found = []
    for name in names:
        base, changes = builtin.get(name, {}), dict(own.get(name, {}))
        if "like" in changes:
            # The same task under another name, with something changed.
            other = checking.text(changes.pop("like"), f"{where}: [task.{name}].like")
            if other not in builtin:
                raise InputError(
                    f"{where}: [task.{name}] is like {other!r}, which is not there{closest(str(other), known)}"
                )
            base = builtin[other]
        if not base and not changes:
            raise InputError(
                f"{where}: there is no task {name!r}{closest(name, known)} (there are: {', '.join(known)})"
            )
        found.append(parse_task(name, {**base, **changes}, f"{where}: [task.{name}]"))
    for name in own:
        if name not in names:
            raise InputError(f"{where}: [task.{name}] is described, but not among the tasks")
    return tuple(found)


def _methods(values: Mapping[str, Any], where: str, tasks: tuple[Task, ...], folder: Path) -> tuple[Method, ...]:
    tables = values.get("method", [])
    if not isinstance(tables, list) or not tables:
        raise InputError(f"{where}: needs at least one [[method]]")
    methods: list[Method] = []
    for table in tables:
        methods += _method(table, f"{where}: [[method]] {len(methods) + 1}", [task.name for task in tasks], folder)
    names = [method.name for method in methods]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{where}: two methods are called {twice!r}; give one another name")
    for method in methods:
        if method.teacher:
            _check_teacher(method, methods, where)
        if method.of and method.of not in names:
            others = [name for name in names if name != method.name]
            raise InputError(
                f"{where}: {method.name} is made of {method.of!r}, which is not there{closest(method.of, others)}"
            )
        if method.of and set(next(m for m in methods if m.name == method.of).skip) - set(method.skip):
            raise InputError(f"{where}: {method.name} is made of {method.of!r}, which skips tasks it does not")
        if method.of and next(m for m in methods if m.name == method.of).of:
            raise InputError(f"{where}: {method.name} is made of {method.of!r}, which is made of others itself")
    return tuple(methods)


def _method(table: Mapping[str, Any], where: str, tasks: list[str], folder: Path) -> list[Method]:
    """Return the rows of one [[method]]: several where an option is varied."""
    checked_keys(table, [*(f.name for f in fields(Method) if f.name not in ("of", "members", "disjoint", "judged")),
                         "ensemble", "vary"], where)  # fmt: skip
    values = dict(table)
    varied = checked_table(values.pop("vary", {}), f"{where}.vary")
    checked_table(values.get("options", {}), f"{where}.options")
    for key in ("filtered", "online", "scaled_teacher"):
        checked_truth(values.get(key, False), f"{where}.{key}")
    ensemble = values.pop("ensemble", None)
    if ensemble is not None:
        return [_ensemble(ensemble, values, where)]
    recipe = checking.text(values.get("recipe", "erm"), f"{where}.recipe")
    skip = checking.names(values["skip"], f"{where}.skip") if values.get("skip") else []
    checked_keys(dict.fromkeys(skip), tasks, f"{where}.skip")
    method = Method(**{"name": values.get("subset") or recipe, **values, "recipe": recipe, "skip": tuple(skip)})
    for key in ("name", "teacher", "teacher_model"):
        checking.text(getattr(method, key), f"{where}.{key}")
    if method.subset:
        checking.one_of(method.subset, _SUBSETS, f"{where}.subset")
    if not isinstance(method.fraction, int | float) or not 0 < method.fraction <= 0.5:
        raise InputError(f"{where}.fraction: must be above 0 and at most 0.5, not {method.fraction}")
    checking.percentile(method.percentile, f"{where}.percentile")
    checking.one_of(method.filter_wording, WORDINGS, f"{where}.filter_wording")
    checking.one_of(method.filter_on, FILTER_ON, f"{where}.filter_on")
    checked_keys(method.tasks, tasks, f"{where}.tasks")
    for task, changes in method.tasks.items():
        checked_keys(changes, ["options", "training", "percentile"], f"{where}.tasks.{task}")
        checked_table(changes.get("options", {}), f"{where}.tasks.{task}.options")
        checked_keys(changes.get("training", {}), TRAINING, f"{where}.tasks.{task}.training")
        checking.percentile(changes.get("percentile", method.percentile), f"{where}.tasks.{task}.percentile")
    checked_keys(method.training, TRAINING, f"{where}.training")
    rows = [method]
    for option, choices in varied.items():
        if not isinstance(choices, list):
            raise InputError(f"{where}.vary.{option}: list the values, as in [0.1, 0.4]")
        rows = [
            replace(row, name=f"{row.name} {option}={value}", options={**row.options, option: value})
            for row in rows
            for value in choices
        ]
    for row in rows:
        _check_recipe(row, tasks, where, folder)
    return rows


def _check_teacher(method: Method, methods: list[Method], where: str) -> None:
    earlier = methods[: methods.index(method)]
    names = [other.name for other in earlier]
    if method.teacher not in names:
        hint = closest(method.teacher, names)
        raise InputError(f"{where}: {method.name} learns from {method.teacher!r}, which no method before it is{hint}")
    teacher = earlier[names.index(method.teacher)]
    if teacher.of:
        raise InputError(f"{where}: {method.name} learns from {method.teacher!r}, an ensemble: name a single method")
    if set(teacher.skip) - set(method.skip):
        raise InputError(f"{where}: {method.name} learns from {method.teacher!r}, which skips tasks it does not")


def _check_recipe(method: Method, tasks: list[str], where: str, folder: Path) -> None:
    """Refuse a recipe that is not there, options it has not, and guidance it does not take."""
    for task in tasks:
        try:
            recipe = choose(recipe_beside(method.recipe, folder), method.options_on(task))
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        if recipe.taught != bool(method.teacher):
            wrong = "needs the name of its teacher" if recipe.taught else "takes no teacher"
            raise InputError(f"{where}: recipe {method.recipe} {wrong}")
        if method.online and (recipe.guide is None or method.filtered):
            raise InputError(f"{where}: online is for recipes guided by training dynamics, without a filter")
        if method.filtered and method.subset == "hard":
            raise InputError(f"{where}: the AUM filter judges easy and ambiguous samples, not the hard region")
        if method.filtered and recipe.guide is None and not method.subset:
            raise InputError(f"{where}: filtered is for subsets and recipes guided by training dynamics")
        if method.subset and recipe.guide is not None:
            raise InputError(f"{where}: a guided recipe takes the regions itself; give subset or the recipe")


def _ensemble(values: Any, others: Mapping[str, Any], where: str) -> Method:
    checked_keys(others, ["name", "skip"], f"{where} (an ensemble)")
    if not isinstance(values, Mapping):
        raise InputError(f'{where}.ensemble: is a table, as in {{of = "erm", members = 5}}')
    checked_keys(values, ["of", "members", "disjoint"], f"{where}.ensemble")
    of = checking.text(values.get("of", ""), f"{where}.ensemble.of")
    if not of:
        raise InputError(f"{where}.ensemble: say of which method (of = NAME)")
    members = checking.positive(values.get("members", 5), f"{where}.ensemble.members")
    name = checking.text(others.get("name", f"{members} × {of}"), f"{where}.name")
    skip = tuple(checking.names(others["skip"], f"{where}.skip")) if others.get("skip") else ()
    return Method(
        name,
        skip=skip,
        of=of,
        members=members,
        disjoint=checked_truth(values.get("disjoint", False), f"{where}.ensemble.disjoint"),
    )


def _settings(values: Any, where: str) -> dict[str, Mapping[str, Any]]:
    """Return the training settings by name: one [training], or several [[training]] with names."""
    values = values if isinstance(values, list) else [values]
    found: dict[str, Mapping[str, Any]] = {}
    for table in values:
        settings = dict(checked_table(table, f"{where}.training"))
        name = checking.text(settings.pop("name", ""), f"{where}.training.name")
        if name in found:
            raise InputError(f"{where}: several [[training]] need a name each, all different")
        checked_keys(settings, TRAINING, f"{where}.training")
        found[name] = settings
    return found
