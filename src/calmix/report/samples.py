"""The training samples as the explorer in the page reads them: what training revealed, and their texts."""

import zlib
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from calmix.dynamics import Dynamics, label_issues, regions
from calmix.report.datamap import fitting_limits
from calmix.report.packing import pack, pack_texts

__all__ = ["TEXT_BYTES", "prepare_samples", "text_limit"]

# Of compressed texts in a page: with the numbers, and in base64, 100,000 samples then stay under 25 MB.
TEXT_BYTES = 12_000_000
# Suspects are for reading; the page keeps more of each, of the first so many.
_SUSPECT_CHARACTERS, _SUSPECTS = 2000, 3000
# Bytes of history by epoch, one each for a sample: of more epochs fewer are shown.
_HISTORY_BYTES = 2_000_000
_LIMITS = (2000, 1000, 600, 400, 300, 200, 150, 100, 70, 50, 30, 20)
_PROBED = 2000


def prepare_samples(dynamics: Dynamics, texts: pa.Table, *, text_bytes: int = TEXT_BYTES) -> dict[str, Any]:
    """Return the packed columns of every sample that was observed, suspects by row and worst first, and the classes."""
    issues = label_issues(dynamics)
    seen = np.flatnonzero(dynamics.observations > 0)
    place = np.full(len(dynamics), -1, dtype=np.int64)
    place[seen] = np.arange(len(seen))
    suspects = place[issues.order[issues.flagged[issues.order]]]
    classes = dynamics.label_names or tuple(str(k) for k in range(dynamics.n_classes))
    numbers: dict[str, NDArray[Any]] = {
        "confidence": dynamics.confidence.astype(np.float32),
        "variability": dynamics.variability.astype(np.float32),
        "correctness": dynamics.correctness.astype(np.float32),
        "aum": dynamics.aum.astype(np.float32),
        "loss": dynamics.loss.astype(np.float32),
        "last_loss": dynamics.last_loss.astype(np.float32),
        "score": issues.score.astype(np.float32),
        "region": regions(dynamics).astype(np.uint8),
        "label": _codes(dynamics.labels),
        "rival": _codes(issues.suggested),
        "last": _codes(dynamics.last_prediction),
        "forgetting": np.minimum(dynamics.forgetting, 65535).astype(np.uint16),
        "observations": np.minimum(dynamics.observations, 65535).astype(np.uint16),
    }
    found: dict[str, Any] = {
        "n": len(seen),
        "classes": list(classes),
        "choices": "choices" in texts.column_names,
        "suspects": pack(suspects.astype(np.uint32)),
        "withheld": issues.withheld,
        "axes": asdict(fitting_limits(dynamics.variability[seen], dynamics.confidence[seen])),
        "columns": {name: pack(values[seen]) for name, values in numbers.items()},
        "id": pack_texts([dynamics.ids[row] for row in seen]),
    }
    if dynamics.history is not None and len(seen):
        shown = dynamics.history.take(seen).thinned(max(2, _HISTORY_BYTES // len(seen)))
        found["history"] = {"epochs": shown.epochs, "codes": pack(shown.codes)}
    if texts.num_columns:
        cells, limit, cut = _cells(texts.take(pa.array(seen)), suspects, text_bytes)
        found |= {"text": pack_texts(cells), "limit": limit, "cut": cut}
    return found


def _codes(classes: NDArray[np.int64]) -> NDArray[np.uint16]:
    """Return classes as the page has them: none is the highest code."""
    return np.where(classes < 0, 65535, classes).astype(np.uint16)


def _cells(texts: pa.Table, suspects: NDArray[np.int64], text_bytes: int) -> tuple[list[Any], int, int]:
    """Return what is shown of each row, after how many characters it is cut, and how many rows are."""
    columns = [_strings(texts[name]) for name in texts.column_names]
    limit = text_limit(columns, text_bytes)
    limits = np.full(texts.num_rows, limit)
    limits[suspects[:_SUSPECTS]] = max(limit, _SUSPECT_CHARACTERS)
    lengths = np.max([np.asarray(pc.utf8_length(column), dtype=np.int64) for column in columns], axis=0)
    parts = [_cut(column, limits, limit) for column in columns]
    cut = int((lengths > limits).sum())
    if "choices" in texts.column_names:
        # Choices are short, and which is which matters: they stay a list.
        rows = zip(parts[0], texts["choices"].to_pylist(), strict=True)
        return [[text, *(choice[:limit] for choice in choices)] for text, choices in rows], limit, cut
    return parts[0] if len(parts) == 1 else [list(pair) for pair in zip(*parts, strict=True)], limit, cut


def _strings(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return pa.chunked_array([pa.array([" ".join(row) for row in column.to_pylist()], pa.string())])
    return column.cast(pa.string())


def _cut(column: pa.ChunkedArray, limits: NDArray[np.int64], limit: int) -> list[str]:
    cells = pc.utf8_slice_codeunits(column, 0, limit).to_pylist()
    longer = np.flatnonzero(limits > limit)
    for row, whole in zip(longer, column.take(pa.array(longer)).to_pylist(), strict=True):
        cells[row] = whole[: limits[row]]
    return list(cells)


def text_limit(columns: list[pa.ChunkedArray], most: int) -> int:
    """Return after how many characters texts are cut so that, compressed, all are at most `most` bytes."""
    rows = np.random.default_rng(0).permutation(len(columns[0]))[:_PROBED]
    for limit in _LIMITS:
        kept = [pc.utf8_slice_codeunits(column, 0, limit) for column in columns]
        size = sum(pc.sum(pc.binary_length(column)).as_py() or 0 for column in kept)
        if size <= most // 4:
            return limit
        probe = "\n".join(cell for column in kept for cell in column.take(pa.array(rows)).to_pylist()).encode()
        if size * len(zlib.compress(probe, 6)) / max(1, len(probe)) <= most:
            return limit
    return _LIMITS[-1]
