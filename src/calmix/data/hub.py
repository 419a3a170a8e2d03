"""Data sets of the Hugging Face hub, through the `datasets` library."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from calmix.data.connecting import from_cache_if_unreachable, why_unreachable
from calmix.data.origin import neighbour
from calmix.errors import InputError

__all__ = ["is_hub_name", "read_hub"]

_HUB_NAME = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?(:[\w][\w.-]*)?")


def is_hub_name(source: str) -> bool:
    """Whether the text could name a hub data set: "name", "org/name" or "org/name:config"."""
    return _HUB_NAME.fullmatch(source) is not None


def read_hub(source: str, split: str, *, several: str = "") -> pa.Table:
    """One split of a hub data set, with class labels as names, several of a row joined by `several` if that is given.

    Code that comes with the data is not run.
    """
    try:
        import datasets
    except ImportError as error:
        raise InputError(
            f"{source}: no such file; to read a data set of that name from the hub, pip install calmix[hub]"
        ) from error
    path, _, config = source.partition(":")
    unreachable = why_unreachable()
    try:
        with from_cache_if_unreachable():
            data = datasets.load_dataset(path, config or None, split=split)
    except Exception as error:  # the library, the network and the hub each have their own
        asked = neighbour(path, Path.exists)
        if unreachable is not None:
            raise InputError(
                f"{source}: no such file or folder, nor was a data set of that name fetched before, and the hub cannot "
                f"be reached ({unreachable}){asked}"
            ) from error
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{source}: no such file, and the hub's split {split!r} cannot be read: {reason}{asked}"
        ) from error
    table = data.with_format("arrow")[:]
    for position, name in enumerate(table.column_names):
        feature = data.features[name]
        inner = getattr(feature, "feature", None)  # of a list
        if isinstance(feature, datasets.ClassLabel):
            codes = table[name].combine_chunks().cast(pa.int64())
            # The hub marks a missing label with -1.
            names = pc.take(pa.array(feature.names), pc.if_else(pc.less(codes, 0), None, codes))
            table = table.set_column(position, name, names)
        elif isinstance(inner, datasets.ClassLabel):
            lists = [[inner.names[k] for k in row or ()] for row in table[name].to_pylist()]
            joined = [several.join(row) or None for row in lists] if several else lists
            table = table.set_column(position, name, pa.array(joined))
    if table.num_rows == 0:
        raise InputError(f"{source}: there are no rows in the split {split!r}")
    return table.replace_schema_metadata()
