"""The samples of the explorer."""

import base64
import json
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from calmix.dynamics import Dynamics, label_issues, regions
from calmix.report import samples
from calmix.report.samples import prepare_samples, text_limit

TYPES = {"f32": "<f4", "u8": "u1", "u16": "<u2", "u32": "<u4"}


def unpacked(packed: dict[str, str]) -> Any:
    raw = zlib.decompress(base64.b64decode(packed["data"]))
    return json.loads(raw) if packed["type"] == "json" else np.frombuffer(raw, TYPES[packed["type"]])


def dynamics_of(n: int, *, never: int = 0, wrong: int = 4) -> Dynamics:
    logits = np.random.default_rng(0).normal(size=(3, n, 3))
    logits[:, :, 0] += 2
    logits[:, n - wrong :, 1] += 9
    logits[:, :never] = np.nan
    return Dynamics.from_logits(logits, np.zeros(n, dtype=np.int64), label_names=("a", "b", "c"))


def test_columns_are_those_of_the_samples_that_were_seen() -> None:
    dynamics = dynamics_of(40, never=3)
    found = prepare_samples(dynamics, pa.table({"text": [f"t{i}" for i in range(40)]}))
    assert found["n"] == 37
    assert unpacked(found["id"]) == list(dynamics.ids[3:])
    assert unpacked(found["text"]) == [f"t{i}" for i in range(3, 40)]
    columns = {name: unpacked(packed) for name, packed in found["columns"].items()}
    np.testing.assert_allclose(columns["confidence"], dynamics.confidence[3:], rtol=1e-6)
    np.testing.assert_allclose(columns["variability"], dynamics.variability[3:], rtol=1e-6)
    np.testing.assert_array_equal(columns["region"], regions(dynamics)[3:])
    np.testing.assert_array_equal(columns["label"], dynamics.labels[3:])
    np.testing.assert_array_equal(columns["rival"], label_issues(dynamics).suggested[3:])
    assert all(len(column) == 37 for column in columns.values())


def test_the_history_is_shown_by_epoch_and_thinned_for_many_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    dynamics, texts = dynamics_of(40, never=3), pa.table({"text": ["x"] * 40})
    found = prepare_samples(dynamics, texts)["history"]
    assert found["epochs"] == (1, 2, 3)
    assert dynamics.history is not None
    np.testing.assert_array_equal(unpacked(found["codes"]).reshape(37, 3), dynamics.history.codes[3:])
    monkeypatch.setattr(samples, "_HISTORY_BYTES", 90)
    found = prepare_samples(dynamics, texts)["history"]
    assert found["epochs"] == (1, 3)
    np.testing.assert_array_equal(unpacked(found["codes"]).reshape(37, 2), dynamics.history.codes[3:, [0, 2]])
    assert "history" not in prepare_samples(replace(dynamics, history=None), texts)


def test_suspects_are_rows_of_the_page_worst_first() -> None:
    dynamics = dynamics_of(40, never=3)
    issues = label_issues(dynamics)
    expected = [issues.ids[row] for row in issues.order if issues.flagged[row]]
    found = prepare_samples(dynamics, pa.table({"text": ["x"] * 40}))
    assert [unpacked(found["id"])[row] for row in unpacked(found["suspects"])] == expected
    assert len(expected) >= 4


def test_long_texts_are_cut_and_counted_suspects_later() -> None:
    texts = ["x" * 100_000] + ["y" * 1500] * 38 + ["z" * 100_000]
    found = prepare_samples(dynamics_of(40, wrong=1), pa.table({"text": texts}), text_bytes=40)
    cells = unpacked(found["text"])
    suspects = set(unpacked(found["suspects"]).tolist())
    assert 39 in suspects
    assert {len(cell) for row, cell in enumerate(cells) if row not in suspects} == {found["limit"]}
    assert len(cells[39]) == 2000
    assert found["cut"] == sum(len(text) > len(cell) for text, cell in zip(texts, cells, strict=True))


def test_pairs_and_choices_are_lists() -> None:
    dynamics = dynamics_of(2, wrong=0)
    pairs = prepare_samples(dynamics, pa.table({"text": ["a", "b"], "text_b": ["c", "d"]}))
    assert unpacked(pairs["text"]) == [["a", "c"], ["b", "d"]]
    choices = prepare_samples(dynamics, pa.table({"text": ["a", "b"], "choices": [["x"], ["y", "z"]]}))
    assert unpacked(choices["text"]) == [["a", "x"], ["b", "y", "z"]]
    assert choices["choices"]


def test_without_texts_there_are_none() -> None:
    found = prepare_samples(dynamics_of(4), pa.table({}))
    assert "text" not in found


@pytest.mark.parametrize("most", [10_000, 200_000])
def test_the_limit_keeps_compressed_texts_within_the_room_there_is(most: int) -> None:
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefghijklmnop"), 7)) for _ in range(3000)]
    texts = [" ".join(rng.choice(words, 60)) for _ in range(2000)]
    limit = text_limit([pa.chunked_array([texts])], most)
    size = len(zlib.compress("\n".join(text[:limit] for text in texts).encode(), 6))
    assert size <= 1.1 * most or limit == 20
    assert limit < max(map(len, texts))
