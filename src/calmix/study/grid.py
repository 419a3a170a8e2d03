"""The runs of a study: each known by a hash of all that determines it, shared stages once, in an order that works."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from calmix.data import Examples
from calmix.data.gathering import TaskSets, gather, has_inside, sampled
from calmix.data.tasks import Task
from calmix.dynamics.thresholds import Wording
from calmix.errors import InputError
from calmix.mixing import choose
from calmix.models import identity, is_sentence_cnn, resolve
from calmix.study.asking import Method, Study, check_training, recipe_beside
from calmix.training.defaults import usual_epochs
from calmix.training.filtering import FilterOn
from calmix.training.folder import config_hash
from calmix.training.naming import recipe_name
from calmix.training.preparing import class_weights_of

__all__ = ["Cell", "Library", "Plan", "Spec", "make_plan"]


@dataclass(frozen=True, eq=False)
class Spec:
    """One run: everything that determines it, and the runs it builds on."""

    key: str
    """The hash of all of it: the name of its folder."""
    group: str
    """The hash of all but the seed: runs of one group differ in nothing else and may be trained together."""
    what: str
    """`train`, or `map`: plain training with threshold samples, for the AUM filter."""
    task: str
    model: str
    recipe: str
    options: Mapping[str, Any]
    training: Mapping[str, Any]
    seed: int
    subset: str = ""
    fraction: float = 0.33
    filtered: bool = False
    percentile: float = 80.0
    judged: str = "easy"
    """The region that the map's filter judges."""
    filter_wording: Wording = "balanced"
    filter_on: FilterOn = "region"
    online: bool = False
    scaled_teacher: bool = True
    needs: Mapping[str, "Spec"] = field(default_factory=dict)
    """What it is given (`dynamics`, `teacher`) → the run that makes it."""
    samples: int = 0
    """How many training samples it will see, as far as can be told."""

    @property
    def builds_on(self) -> list["Spec"]:
        """All runs that must be made before it, first to last."""
        return [each for needed in self.needs.values() for each in (*needed.builds_on, needed)]

    @property
    def is_plain(self) -> bool:
        """Whether its data map may guide other runs."""
        return self.what == "train" and self.recipe == "erm" and not self.subset and not self.options


@dataclass(frozen=True)
class Cell:
    """A row of the tables on one task with one seed, and the runs it is made of: several for an ensemble."""

    task: str
    model: str
    setting: str
    method: str
    seed: int
    runs: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """All runs of a study, what they build on before them, and the cells they fill."""

    study: Study
    runs: Mapping[str, Spec]
    cells: tuple[Cell, ...]

    @cached_property
    def students(self) -> dict[str, list[str]]:
        """Teacher → the runs that learn from it: their keys."""
        found: dict[str, list[str]] = {}
        for spec in self.runs.values():
            if "teacher" in spec.needs:
                found.setdefault(spec.needs["teacher"].key, []).append(spec.key)
        return found

    @cached_property
    def groups(self) -> list[list[Spec]]:
        """The runs, those that differ only in their seed together."""
        found: dict[str, list[Spec]] = {}
        for spec in self.runs.values():
            found.setdefault(spec.group, []).append(spec)
        return list(found.values())


class Library:
    """The data of a study's tasks, read once: from the first folder that has it; None among them is the hub.

    `places` says where models are that are known by a name.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        folders: Sequence[Path | None],
        where: str,
        places: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.tasks, self.folders, self.where = {task.name: task for task in tasks}, tuple(folders), where
        self.places = places
        self._read: dict[str, TaskSets] = {}
        self._drawn: dict[tuple[str, int], Examples] = {}

    def sets(self, task: str, seed: int) -> TaskSets:
        """Return the data sets of a task as a run with this seed sees them."""
        if task not in self._read:
            try:
                self._read[task] = gather(self.tasks[task], self._folder(self.tasks[task]))
            except InputError as error:
                named = re.search(r"--(text-b|text|choices|label|id)\b", str(error))  # what other commands call it
                here = f" [--{named[1]} is columns.{named[1].replace('-', '_')} of a task]" if named else ""
                raise InputError(f"{self.where}: [task.{task}]: {error}{here}") from None
        found, samples = self._read[task], self.tasks[task].samples
        if not samples:
            return found
        if (task, seed) not in self._drawn:
            self._drawn[task, seed] = sampled(found.train, samples, seed)
        return TaskSets(self._drawn[task, seed], found.dev, found.test, found.ood)

    def recipe(self, name: str) -> str:
        """Return what a recipe is found by: a file of one's own is in the study's folder."""
        return recipe_beside(name, Path(self.where).parent)

    def model(self, name: str) -> str:
        """Return what a model is loaded by: a sentence CNN's word vectors may lie where the data is."""
        name = self.places.get(name, name)
        kind, _, file = name.partition(":")
        if not file or not is_sentence_cnn(name) or Path(file).exists():
            return name
        there = (folder / file for folder in self.folders if folder is not None)
        found = next((path for path in there if path.exists()), None)
        return name if found is None else f"{kind}:{found.absolute()}"

    def _folder(self, task: Task) -> Path | None:
        """Return the first folder that has a task's training file; None for the hub."""
        if task.shipped:
            return None
        for folder in self.folders:
            if folder is None and task.train.hub:
                return None
            if folder is not None and has_inside(folder, task.train.file):
                return folder
        looked = " or ".join(str(folder) for folder in self.folders if folder is not None)
        raise InputError(f"{task.train.file}: no such file in {looked}; --data says where files are")

    def digests(self, task: str, seed: int) -> dict[str, str]:
        """Return what tells these data sets from others."""
        sets = self.sets(task, seed)
        named = {"train": sets.train, "dev": sets.dev, "test": sets.test}
        named |= {f"ood-{name}": examples for name, examples in sets.ood.items()}
        return {name: examples.digest() for name, examples in named.items()}


def make_plan(study: Study, library: Library) -> Plan:
    """Return every run of a study; those that others are guided by, or learn from, come before these.

    Reads all data and looks at every model, so that what is missing is told before anything trains.
    """
    planner = _Planner(study, library)
    runs: dict[str, Spec] = {}
    cells = []
    for task, model, setting, method in itertools.product(study.tasks, study.models, study.settings, study.methods):
        if task.name in method.skip:
            continue
        made_of = study.method(method.of) if method.of else method
        for place, seed in enumerate(study.seeds):
            seeds = _member_seeds(study.seeds, place, method) if method.of else [seed]
            specs = [planner.spec(made_of, task, model, study.settings[setting], each) for each in seeds]
            for spec in specs:
                runs |= {needed.key: needed for needed in (*spec.builds_on, spec) if needed.key not in runs}
            cells.append(Cell(task.name, model, setting, method.name, seed, tuple(spec.key for spec in specs)))
    # What others build on comes first; otherwise the order of the file.
    order = sorted(runs.values(), key=_depth)
    return Plan(study, {spec.key: spec for spec in order}, tuple(cells))


def _depth(spec: Spec) -> int:
    return 1 + max((_depth(needed) for needed in spec.needs.values()), default=0)


def _member_seeds(seeds: tuple[int, ...], place: int, method: Method) -> list[int]:
    """Return the seeds of the ensemble at `place`: a window over the study's seeds and as many more as it takes.

    n ensembles of k members share members and cost n + k − 1 runs; disjoint ones n · k.
    """
    first = place * method.members if method.disjoint else place
    needed = first + method.members
    more = [seed for seed in range(max(seeds) + needed + 1) if seed not in seeds]
    return [*seeds, *more][first:needed]


class _Planner:
    """Makes the runs of a study, each with those it builds on."""

    def __init__(self, study: Study, library: Library) -> None:
        self.study, self.library = study, library
        named = dict.fromkeys((*study.models, *study.other_models))
        self.models = {name: identity(resolve(library.model(name))) for name in named}

    def spec(self, method: Method, task: Task, model: str, settings: Mapping[str, Any], seed: int) -> Spec:
        """Return the run of a method on a task."""
        here = method.tasks.get(task.name, {})
        training = {**settings, **task.training, **method.training, **here.get("training", {})}
        check_training(training, f"method {method.name} on {task.name}")
        options = method.options_on(task.name)
        recipe = choose(self.library.recipe(method.recipe), options)
        needs = {}
        if method.subset or (recipe.guide is not None and not method.online):
            # Guided by plain training with the settings of this very run.
            plain = Method("plain", training=training)
            if method.filtered:
                percentile = here.get("percentile", method.percentile)
                plain = Method(
                    "map",
                    training=training,
                    filtered=True,
                    percentile=percentile,
                    filter_wording=method.filter_wording,
                    filter_on=method.filter_on,
                    judged=method.subset or "easy",
                    fraction=method.fraction if method.subset else options.get("fraction", method.fraction),
                )
            needs["dynamics"] = self._build(plain, {}, {}, training, task, self.study.map_model or model, seed)
        if method.teacher:
            teacher = self.study.method(method.teacher)
            needs["teacher"] = self.spec(teacher, task, method.teacher_model or model, settings, seed)
        return self._build(method, options, needs, training, task, model, seed)

    def _build(
        self,
        method: Method,
        options: Mapping[str, Any],
        needs: Mapping[str, Spec],
        training: Mapping[str, Any],
        task: Task,
        model: str,
        seed: int,
    ) -> Spec:
        sets = self.library.sets(task.name, seed)
        class_weights_of(sets.train, training.get("class_weights"))  # refuses those of classes that are not there
        what = "map" if method.filtered and not needs else "train"
        shared = {
            "what": what,
            "model": self.models[model],
            "recipe": recipe_name(self.library.recipe(method.recipe)),
            "options": dict(options),
            "training": dict(sorted(training.items())),
            "subset": [method.subset, method.fraction] if method.subset else None,
            "filtered": [method.percentile, method.judged, method.fraction, method.filter_wording, method.filter_on]
            if method.filtered
            else None,
            "online": method.online or None,
            "scaled_teacher": method.scaled_teacher if method.teacher else None,
        }
        digests = self.library.digests(task.name, seed)
        given = {name: spec.key for name, spec in needs.items()}
        groups = {name: spec.group for name, spec in needs.items()}
        return Spec(
            key=config_hash({**shared, "data": digests, "seed": seed, "needs": given}),
            group=config_hash({**shared, "task": task.name, "needs": groups}),
            what=what,
            task=task.name,
            model=model,
            recipe=method.recipe,
            options=dict(options),
            training=training,
            seed=seed,
            subset=method.subset,
            fraction=method.fraction,
            filtered=method.filtered,
            percentile=method.percentile,
            judged=method.judged,
            filter_wording=method.filter_wording,
            filter_on=method.filter_on,
            online=method.online,
            scaled_teacher=method.scaled_teacher,
            needs=needs,
            samples=_samples(sets.train, training, method, what, model),
        )


def _samples(train: Examples, training: Mapping[str, Any], method: Method, what: str, model: str) -> int:
    counts = train.choice_counts
    rows = len(train) if counts is None else int(np.sum(counts))
    share = {"": 1.0, "both": 2 * method.fraction}.get(method.subset, method.fraction)
    passes = 1.0
    if what == "map":
        classes = len(train.label_names) if counts is None else int(counts.max())
        runs = (2 if method.judged == "both" else 1) * (2 if method.filter_wording == "balanced" else classes + 1)
        passes += runs * (method.fraction if method.filter_on == "region" else 1.0)
    epochs = training.get("epochs")
    if epochs is None:
        epochs = usual_epochs(model, rows=round(len(train) * share), classes=len(train.label_names))
    return int(rows * share * epochs * passes)
