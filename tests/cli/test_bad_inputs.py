"""Every broken or hostile input ends in exit code 2 and one line that says what is wrong, and changes nothing."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from bad_inputs import BAD_INPUTS


@pytest.fixture(scope="session")
def sources(checkpoint: Any, trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what is copied and spoilt: `model` and `run`."""
    root = tmp_path_factory.mktemp("sources")
    shutil.copytree(checkpoint("bert"), root / "model")
    shutil.copytree(trained, root / "run")
    return root


def test_there_are_enough_of_them() -> None:
    assert len(BAD_INPUTS) >= 150


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input_ends_in_one_line_and_changes_nothing(
    calmix: Any, place: Path, tree: Any, sources: Path, name: str
) -> None:
    bad = BAD_INPUTS[name]
    for file, made in bad.files.items():
        if callable(made):
            made(place / file, sources / "model")
        else:
            (place / file).write_bytes(made)
    known = {"MODEL": sources / "model", "RUN": sources / "run"}
    before = tree(place.parent)
    ended = calmix(*(known.get(word, word) for word in bad.command.split(" ")))
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1), ended.err
    assert ended.err.startswith("calmix: ")
    assert bad.says in ended.err
    assert len(ended.err) < 600
    assert tree(place.parent) == before
