"""The house: who imports whom, what importing costs, and that every module is public on purpose and tested."""

import ast
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import calmix

SOURCE = Path(calmix.__file__).parent
TESTS = Path(__file__).parent

# First to last: a room imports only from those before it.
ROOMS = ("kernels", "data", "calibration", "models", "dynamics", "mixing", "training", "report", "study", "cli")

# Modules beside the rooms: those that give a room's content a shorter name belong to it.
ALIASES = {
    "metrics": "calibration",
    "recalibration": "models",  # it names `fold` too
    "recipes": "mixing",
    "sklearn": "training",
    "__main__": "cli",
}
EVERYWHERE = {"errors", "processors", "_version"}

HEAVY = ("torch", "transformers", "accelerate", "pyarrow", "pandas", "sklearn", "matplotlib", "scipy", "numpy")

MODULES = sorted(path for path in SOURCE.rglob("*.py"))


def _name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def _room(module: str) -> str:
    """Return the room of a dotted module below `calmix`, or of nothing: the package itself."""
    first = module.split(".", maxsplit=1)[0]
    return ALIASES.get(first, first)


def _imports(path: Path, *, deferred: bool = True) -> set[str]:
    """Return the modules below `calmix` that a file imports; without `deferred`, only when it is imported itself."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree) if deferred else _at_import(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{_name(path)}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("calmix.") for name in found if name.startswith("calmix.")}


def _at_import(tree: ast.AST) -> list[ast.AST]:
    nodes: list[ast.AST] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        nodes += [node, *_at_import(node)]
    return nodes


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_a_room_imports_only_from_rooms_above_it(path: Path) -> None:
    inside = path.relative_to(SOURCE)
    room = _room(inside.parts[0].removesuffix(".py"))
    if room == "__init__":
        assert not _imports(path, deferred=False) - {"_version.__version__"}
        return
    for module in _imports(path):
        other = _room(module)
        if other in EVERYWHERE or module == "__version__":
            continue
        assert other in ROOMS, f"{_name(path)} imports calmix.{module}, which is in no room"
        assert room not in EVERYWHERE, f"{_name(path)} is imported everywhere and must import nothing"
        assert ROOMS.index(other) <= ROOMS.index(room), f"{_name(path)} imports calmix.{module}, a room below"


def test_every_folder_is_a_room() -> None:
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert folders <= set(ROOMS)


def _fresh(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _loaded_by(statement: str) -> list[str]:
    lines = _fresh(f"import sys\n{statement}\nprint('loaded:', *sorted(sys.modules))").splitlines()
    names = lines[-1].removeprefix("loaded: ").split()
    return [heavy for heavy in HEAVY if heavy in names]


HELP = """
from calmix.cli import main
sys.argv = ["calmix", "--help"]
try:
    main()
except SystemExit as done:
    assert not done.code, done.code
"""


@pytest.mark.parametrize("statement", ["import calmix", "import calmix; dir(calmix)", HELP])
def test_importing_and_asking_for_help_load_no_heavy_library(statement: str) -> None:
    if statement == HELP:
        pytest.importorskip("calmix.cli")
    assert _loaded_by(statement) == []


@pytest.mark.parametrize("statement", ["import calmix", HELP])
def test_importing_and_asking_for_help_are_instant(statement: str) -> None:
    if statement == HELP:
        pytest.importorskip("calmix.cli")

    def seconds() -> float:
        """Return the processor's time, which a busy machine stretches less than the clock's."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        _fresh(f"import sys\n{statement}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    assert min(seconds() for _ in range(3)) < 0.5


@pytest.mark.parametrize(
    "path", [p for p in MODULES if not p.name.startswith("_") or p.name == "__init__.py"], ids=_name
)
def test_a_public_module_says_what_is_public_and_has_it(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    listed = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
    ]
    if path.name == "__init__.py" and not [n for n in tree.body if not isinstance(n, ast.Expr)]:
        return  # a docstring alone
    assert len(listed) == 1, f"{_name(path)} has no __all__"
    (names,) = listed
    assert len(set(names)) == len(names)
    if not any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body):
        assert set(names) <= _defined(tree), f"{_name(path)}: {set(names) - _defined(tree)}"


def _defined(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in _at_import(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names | {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_a_module_begins_with_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", [p for p in MODULES if not p.name.startswith("_") and p.parent != SOURCE], ids=_name)
def test_every_module_has_its_test(path: Path) -> None:
    test = TESTS / path.relative_to(SOURCE).with_name(f"test_{path.name}")
    assert test.is_file(), f"{_name(path)} has no {test.relative_to(TESTS)}"


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=lambda p: p.relative_to(TESTS).as_posix())
def test_no_test_sleeps(path: Path) -> None:
    if path != Path(__file__):
        assert not re.search(r"\btime\.sleep\(|\bimport sleep\b", path.read_text(encoding="utf-8"))
