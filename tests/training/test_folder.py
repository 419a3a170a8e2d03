"""A run's folder: claimed, locked, and left as it was when something is wrong."""

import os
import pickle
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calmix.errors import InputError
from calmix.training.folder import (
    FinishedRun,
    abandon,
    begin_run,
    claim_empty,
    command_line,
    config_hash,
    find_run,
    is_untidy,
    locked,
    to_toml,
)

CONFIG: dict[str, Any] = {"lr": 0.1, "options": {"alpha": "0.4"}, "none": None, "weights": [1.0, 2.0]}


def test_a_new_folder_holds_no_run_and_a_begun_one_what_was_decided(tmp_path: Path) -> None:
    assert find_run(tmp_path, CONFIG) is None
    begin_run(tmp_path, CONFIG, {"precision": "fp32"})
    assert find_run(tmp_path, CONFIG) == {"precision": "fp32"}
    assert find_run(tmp_path, {**CONFIG, "other": None}) == {"precision": "fp32"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**CONFIG, "lr": 0.2}, "lr was 0.1, is 0.2"),
        ({**CONFIG, "options": {}}, "options: alpha was 0.4, is not given"),
        ({**CONFIG, "new": "x" * 100}, r"new was not given, is x{37}\.\.\."),
    ],
)
def test_another_run_is_refused_by_its_difference(tmp_path: Path, config: Any, message: str) -> None:
    begin_run(tmp_path, CONFIG, {})
    with pytest.raises(InputError, match=message):
        find_run(tmp_path, config)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("/venv/bin/calmix", "calmix train 'my data.csv' --out run"),
        ("/site-packages/calmix/__main__.py", "calmix train 'my data.csv' --out run"),
        ("my_script.py", None),
        ("", None),
    ],
)
def test_the_command_is_written_down_where_there_was_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, expected: str | None
) -> None:
    monkeypatch.setattr("sys.argv", [program, "train", "my data.csv", "--out", "run"])
    assert command_line() == expected
    begin_run(tmp_path, CONFIG, {})
    assert tomllib.loads((tmp_path / "run.toml").read_text()).get("command") == expected


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_run(tmp_path, CONFIG, {})
    monkeypatch.setattr("calmix.training.folder.__version__", "99")
    with pytest.raises(InputError, match="made by another version"):
        find_run(tmp_path, CONFIG)


def test_a_finished_run_has_an_error_of_its_own(tmp_path: Path) -> None:
    begin_run(tmp_path, CONFIG, {})
    (tmp_path / "metrics.json").write_text("{}")
    with pytest.raises(FinishedRun, match="finished; its figures are in"):
        find_run(tmp_path, CONFIG)


def test_a_finished_run_that_was_killed_before_it_tidied_up_is_tidied(tmp_path: Path) -> None:
    begin_run(tmp_path, CONFIG, {})
    (tmp_path / "metrics.json").write_text("{}")
    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    (tmp_path / "dynamics.parquet").write_text("")
    assert is_untidy(tmp_path)
    with pytest.raises(FinishedRun):
        find_run(tmp_path, CONFIG)
    assert not is_untidy(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["metrics.json", "run.toml"]


def test_a_finished_run_is_told_to_other_processes(tmp_path: Path) -> None:
    told = pickle.loads(pickle.dumps(FinishedRun("it is done", tmp_path)))
    assert (str(told), told.folder) == ("it is done", tmp_path)


def test_what_a_command_left_that_was_killed_at_its_beginning_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / ".calmix-0123abcd-77.toml").write_text("hash = ")
    (tmp_path / ".part" / "inside").mkdir(parents=True)
    with claim_empty(tmp_path):
        assert [p.name for p in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize("content", [b"hash = ", b"\xff\xfe", b"config = 3\n", b"decided = []\n"])
def test_a_damaged_run_file_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.toml").write_bytes(content)
    with pytest.raises(InputError, match=r"run\.toml: is damaged"):
        find_run(tmp_path, CONFIG)


def test_a_folder_with_anything_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    for attempt in (lambda: find_run(tmp_path, CONFIG), lambda: claim_empty(tmp_path).__enter__()):
        with pytest.raises(InputError, match="is not empty and holds no run of ours"):
            attempt()


@pytest.mark.parametrize("name", ["config.json", "member-1"])
def test_what_wants_an_empty_folder_is_told_of_a_model_there(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(InputError, match="holds a model already; give another --out"), claim_empty(tmp_path):
        pass


def test_what_wants_an_empty_folder_is_told_of_a_run_there(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("")
    with pytest.raises(InputError, match="holds a run already; give another --out"), claim_empty(tmp_path):
        pass


def test_a_lock_makes_the_folder_and_takes_it_away_if_nothing_was_written(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b" / "c"
    with locked(out):
        assert out.is_dir()
    assert list(tmp_path.iterdir()) == []
    with locked(out):
        (out.parent / "kept").write_text("")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a", "b", "kept"]
    (tmp_path / "there").mkdir()
    with locked(tmp_path / "there"):
        pass
    assert list((tmp_path / "there").iterdir()) == []


def test_a_lock_is_held_against_others_and_let_go_by_an_error(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with locked(out), pytest.raises(InputError, match="another calmix command is writing to it"), locked(out):
        pass
    with pytest.raises(RuntimeError), locked(out):
        raise RuntimeError
    assert not out.exists()
    with locked(out):
        pass


def test_a_lock_left_by_a_killed_process_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("")
    with locked(tmp_path):
        assert find_run(tmp_path, CONFIG) is None


def test_a_folder_that_is_removed_while_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, turns = os.open, []

    def late(path: Path, *rest: int) -> int:
        turns.append(path)
        if len(turns) == 1:
            Path(path).parent.rmdir()
        return opened(path, *rest)

    monkeypatch.setattr("calmix.training.folder.os.open", late)
    with locked(tmp_path / "run"):
        assert (tmp_path / "run" / ".lock").is_file()
    assert len(turns) == 2


@pytest.mark.parametrize("out", ["file", "file/below", "file/below/that", "x" * 300])
def test_a_folder_that_cannot_be_is_refused_and_nothing_is_made(tmp_path: Path, out: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError) as caught, locked(tmp_path / out):
        pass
    assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot be written to"), locked(tmp_path / "run"):
        pass


def test_an_abandoned_run_leaves_nothing_unless_something_was_saved(tmp_path: Path) -> None:
    with locked(tmp_path / "run"):
        begin_run(tmp_path / "run", CONFIG, {})
        (tmp_path / "run" / "checkpoints").mkdir()
        abandon(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    for number, kept in enumerate(["checkpoints/step-00000001", "log.jsonl", "calmix/events"]):
        out = tmp_path / str(number)
        begin_run(out, CONFIG, {})
        (out / kept).mkdir(parents=True)
        abandon(out)
        assert find_run(out, CONFIG) == {}


def test_the_hash_does_not_depend_on_order_or_on_what_is_none() -> None:
    assert config_hash({"a": 1, "b": None, "c": 2}) == config_hash({"c": 2, "a": 1})
    assert config_hash({"a": 1}) != config_hash({"a": 2})


def test_toml_reads_back_whatever_is_in_it() -> None:
    values = {
        "plain": 1,
        "share": 0.5,
        "yes": True,
        "none": None,
        'quo"ted = [x]': "a\nb\x7f\x00\\ é 你",
        "list": [1, 2],
        "table": {"a b": "c", "inner": {"deep": [0.5, "x"]}, "": "empty"},
    }
    found = tomllib.loads(to_toml(values))
    assert found == {key: value for key, value in values.items() if value is not None}


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=8,
).filter(lambda value: not isinstance(value, list) or not any(isinstance(v, dict | list) for v in value))


@given(st.dictionaries(_TEXTS, st.recursive(_VALUES, lambda v: st.dictionaries(_TEXTS, v, max_size=3), max_leaves=4)))
def test_toml_reads_back_anything(values: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(values)) == values
