"""Reading a finished run back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tiny

from calmix.errors import InputError
from calmix.metrics import ece
from calmix.report import read_run
from calmix.report.runs import RunFolder, same_rows, under_one_name


def test_sets_come_in_the_order_people_ask_for_them(make_run: Any) -> None:
    run = read_run(make_run(sets=("dev", "guard", "ood-far", "test")))
    assert [judged.name for judged in run.judged] == ["test", "ood-far", "guard", "dev"]
    assert [judged.title for judged in run.judged][1] == "far, out of domain"
    assert [judged.outside for judged in run.judged] == [False, True, False, False]


def test_probabilities_are_those_the_figures_were_measured_on(make_run: Any) -> None:
    for judged in read_run(make_run()).judged:
        for stage in ("before", "after"):
            found = ece(judged.probs[stage], judged.labels, bins=10)
            assert found == pytest.approx(judged.figures[stage]["ece"], abs=1e-6)


def test_the_map_comes_with_its_texts(make_run: Any) -> None:
    run = read_run(make_run(samples=12))
    assert run.dynamics is not None
    assert run.texts is not None
    assert len(run.dynamics) == run.texts.num_rows == 12
    assert run.texts.column_names == ["text"]
    assert read_run(make_run("none", samples=0)).dynamics is None


def test_choices_of_different_number_are_read(tmp_path: Path, checkpoint: Any) -> None:
    from calmix.training import train

    data = tiny.examples(24, kind="choices")
    run = train(data, dev=data, model=str(checkpoint("bert", choices=True)), out=tmp_path / "run", epochs=1)
    (dev,) = read_run(run.folder).judged
    assert dev.classes == ()
    for stage in ("before", "after"):
        np.testing.assert_allclose(dev.probs[stage].sum(axis=1), 1, atol=1e-6)
        found = ece(dev.probs[stage], dev.labels)
        assert found == pytest.approx(run.metrics["splits"]["dev"][stage]["ece"], abs=1e-6)


def test_what_is_no_finished_run_is_refused(make_run: Any, tmp_path: Path) -> None:
    folder = make_run()
    with pytest.raises(InputError, match="no such folder"):
        read_run(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "study.json").write_text("{}")
    with pytest.raises(InputError, match="study: is a study; name one of its runs, in "):
        read_run(tmp_path / "study")
    with pytest.raises(InputError, match="no run of ours"):
        read_run(tmp_path / "empty")
    (tmp_path / "empty" / "config.json").write_text("{}")
    with pytest.raises(InputError, match="is a model without figures; `calmix evaluate` makes some"):
        read_run(tmp_path / "empty")
    metrics = json.loads((folder / "metrics.json").read_text())
    (folder / "metrics.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        read_run(folder)
    (folder / "metrics.json").unlink()
    with pytest.raises(InputError, match="not finished"):
        read_run(folder)
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / "predictions-test.parquet").unlink()
    with pytest.raises(InputError, match=r"predictions-test\.parquet: no such file"):
        read_run(folder)


def test_runs_from_before_texts_were_kept_are_read(make_run: Any) -> None:
    folder = make_run()
    old = pq.read_table(folder / "datamap.parquet")
    pq.write_table(old.drop_columns(["text"]).replace_schema_metadata(old.schema.metadata), folder / "datamap.parquet")
    run = read_run(folder)
    assert run.texts is not None
    assert run.texts.num_columns == 0


def hashed(run: RunFolder, **digests: str) -> RunFolder:
    return replace(run, judged=tuple(replace(one, digest=digests.get(one.name)) for one in run.judged))


def test_the_same_rows_are_known_by_their_hash(make_run: Any) -> None:
    one, other = (read_run(make_run(name, sets=("test",))).judged[0] for name in ("a", "b"))
    bare = replace(other, ids=())  # as of a run that kept no more than figures need
    assert same_rows(one, other)
    assert not same_rows(one, bare)
    assert same_rows(replace(one, digest="0a"), replace(bare, digest="0a"))
    assert not same_rows(replace(one, digest="0a"), replace(bare, digest="1b"))


def test_data_of_several_runs_is_called_as_the_first_calls_it(make_run: Any) -> None:
    first = hashed(read_run(make_run("a", sets=("test", "ood-far"))), **{"test": "0a", "ood-far": "1b"})
    second = hashed(read_run(make_run("b", sets=("may", "june", "july"))), may="1b", june="0a", july="2c")
    again, found = under_one_name([first, second])
    assert again.judged == first.judged
    assert {(one.name, one.title, one.outside) for one in found.judged} == {
        ("test", "test", False),
        ("ood-far", "far, out of domain", True),
        ("july", "july", False),
    }


def test_a_name_is_never_given_to_two_data_sets_of_a_run(make_run: Any) -> None:
    first = hashed(read_run(make_run("a", sets=("test",))), test="0a")
    second = hashed(read_run(make_run("b", sets=("test", "june"))), test="1b", june="0a")
    assert [one.name for one in under_one_name([first, second])[1].judged] == ["test", "june"]


def test_data_that_chose_something_keeps_its_name(make_run: Any) -> None:
    judged, chose = (read_run(make_run(name, sets=(of,))) for name, of in (("a", "may"), ("b", "dev")))
    for runs in (
        [hashed(judged, may="0a"), hashed(chose, dev="0a")],
        [hashed(chose, dev="0a"), hashed(judged, may="0a")],
    ):
        assert [run.judged[0].name for run in under_one_name(runs)] == [run.judged[0].name for run in runs]
