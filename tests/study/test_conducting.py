"""A whole study."""

from pathlib import Path
from typing import Any

import pytest

from calmix.errors import InputError
from calmix.study.conducting import conduct, data_folder, outcome, prepare


def test_tables_of_a_study_that_is_not_finished_show_what_is(ready: Any) -> None:
    prepared = ready()
    assert conduct(prepared, minutes=0).open == 4
    done = outcome(prepared)
    assert done.rows == []
    page = (prepared.out / "study.md").read_text()
    assert "0 of 4 runs are finished" in page
    assert "| erm | – | – |" in page


def test_what_failed_is_tried_again_on_request(ready: Any) -> None:
    prepared = ready('[[method]]\nrecipe = "erm"\n')
    first = next(iter(prepared.plan.runs))
    folder = prepared.storage.folder(first)
    folder.mkdir(parents=True)
    (folder / "mine.txt").write_text("x")
    assert conduct(prepared).failed == 1
    outcome(prepared)
    page = (prepared.out / "study.md").read_text()
    assert "## Runs that failed" in page
    (folder / "mine.txt").unlink()
    assert conduct(prepared).failed == 1
    assert conduct(prepared, retry=True).failed == 0


def test_studies_may_share_their_runs(written: Any, data: Path, tmp_path: Path) -> None:
    one = prepare(written('[[method]]\nrecipe = "erm"\n'), out=tmp_path / "a", runs=tmp_path / "runs", data=data)
    conduct(one)
    two = prepare(written(head="seeds = 2\nbins = 10"), out=tmp_path / "b", runs=tmp_path / "runs", data=data)
    from calmix.study.working import state_of

    assert state_of(two.plan, two.storage).done == 2


def test_data_is_where_one_says_or_where_the_environment_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CALMIX_DATA", raising=False)
    assert data_folder(None) is None
    monkeypatch.setenv("CALMIX_DATA", str(tmp_path))
    assert data_folder(None) == tmp_path
    with pytest.raises(InputError, match="is no folder to read data from"):
        data_folder(tmp_path / "none")
