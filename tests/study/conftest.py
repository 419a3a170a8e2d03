"""Studies of a tiny model on tiny files: a run takes a fraction of a second."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import tiny

from calmix.data import write_table
from calmix.study.conducting import Order, Prepared, conduct, outcome, prepare

TASK = """
[task.tiny]
train = "tiny/train"
dev = "tiny/dev"
test = "tiny/test"
ood.other = "tiny/other"
"""

TRAINING = """
[training]
epochs = 2
batch_size = 8
lr = 1e-2
"""

METHODS = """
[[method]]
recipe = "erm"

[[method]]
recipe = "tdmixup"
"""


@pytest.fixture
def tool_called() -> Callable[[str], Any]:
    """Return what reads one of the scripts in tools/ as a module."""

    def read(name: str) -> Any:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[2] / "tools" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return read


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the task `tiny`, and multiple choice."""
    folder = tmp_path_factory.mktemp("data")
    for seed, name in enumerate(("train", "dev", "test", "other")):
        for kind, rows in (("text", 30), ("choices", 24)):
            examples = tiny.examples(rows, seed=seed, kind=kind)
            labels = [examples.label_names[k] for k in examples.labels] if kind == "text" else examples.labels.tolist()
            place = "tiny" if kind == "text" else "choices"
            write_table(examples.table.append_column("label", pa.array(labels)), folder / place / f"{name}.jsonl")
    return folder


Written = Callable[..., Path]


@pytest.fixture
def written(checkpoint: Callable[..., Path], tmp_path: Path) -> Written:
    """Return `written(methods, head=…, more=…)`: a study file of the tiny task; `more` is said of the task."""

    def write(
        methods: str = METHODS,
        *,
        head: str = "seeds = 2",
        task: str = TASK,
        more: str = "",
        training: str = TRAINING,
        choices: bool = False,
        name: str = "study.toml",
    ) -> Path:
        path = tmp_path / name
        model = checkpoint("bert", choices=choices)
        task = task.replace("[task.tiny]", f"[task.tiny]\n{more}")
        path.write_text(f'models = ["{model}"]\n{head}\n{task}\n{training}\n{methods}')
        return path

    return write


Ready = Callable[..., Prepared]


@pytest.fixture
def ready(written: Written, data: Path, tmp_path: Path) -> Ready:
    """Return `ready(methods, …)`: a study of the tiny task, planned."""

    def make(*args: Any, out: str = "out", **kwargs: Any) -> Prepared:
        return prepare(Order(written(*args, **kwargs), tmp_path / out, data=data))

    return make


@pytest.fixture(scope="session")
def finished(data: Path, checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A finished study: plain training, a guided recipe, and an ensemble. Not to be changed."""
    folder = tmp_path_factory.mktemp("finished")
    ensemble = '\n[[method]]\nname = "pair"\nensemble = { of = "erm", members = 2 }\n'
    head = f'title = "Two | ways"\nmodels = ["{checkpoint("bert")}"]\nseeds = 2\nbins = 10\n'
    (folder / "study.toml").write_text(head + TASK + TRAINING + METHODS + ensemble)
    prepared = prepare(Order(folder / "study.toml", folder / "out", data=data))
    conduct(prepared)
    outcome(prepared)
    return prepared
