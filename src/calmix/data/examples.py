"""`Examples`: what every later stage reads."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from pathlib import Path

    from calmix.data.images import Images

__all__ = ["Examples"]


@dataclass(frozen=True, eq=False)
class Examples:
    """Texts or images with ids that never change, and their labels.

    Attributes:
        table: `id` (unique) and `text`, then `text_b` for pairs or `choices` for multiple choice, then the
            other columns of the source as they were. For images, instead of the texts: `image` (the bytes of
            the file, null where they stay in it), `image_from` (that file, or what messages call the image)
            and `image_key` (a hash of the bytes).
        labels: the class of each row as an index into `label_names`, or the index of the right choice;
            -1 where there is none.
        label_names: the names of the classes; empty for multiple choice.
        targets: label distributions [n, K] (annotators' votes, normalised), whose argmax is the label;
            None when there are none.
        source: the file or hub name, for messages.
    """

    table: pa.Table
    labels: NDArray[np.int64]
    label_names: tuple[str, ...]
    targets: NDArray[np.float64] | None = None
    source: str = ""

    def __post_init__(self) -> None:
        names = set(self.table.column_names)
        if not ({"id", "text"} <= names or {"id", "image", "image_from", "image_key"} <= names):
            raise ValueError(
                "the table of Examples has the columns 'id' and 'text', or 'id', 'image', 'image_from' and 'image_key'"
            )
        if self.labels.shape != (len(self),):
            raise ValueError(f"{len(self)} rows, but labels of shape {self.labels.shape}")
        if self.targets is not None and self.targets.shape != (len(self), len(self.label_names)):
            raise ValueError(
                f"{len(self)} rows and {len(self.label_names)} labels, but targets of shape {self.targets.shape}"
            )

    @classmethod
    def from_texts(
        cls,
        texts: Sequence[str],
        labels: Sequence[Hashable] | NDArray[Any] | None = None,
        *,
        text_b: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> "Examples":
        """Examples from Python lists; labels may be strings, integers or booleans.

        Label names are sorted (integers by value), unless `label_names` gives them and their order.
        """
        from calmix.data.building import examples_from_lists

        return examples_from_lists(texts, labels, text_b=text_b, label_names=label_names)

    @classmethod
    def from_images(
        cls,
        images: "Sequence[str | Path | bytes | NDArray[np.uint8]]",
        labels: Sequence[Hashable] | NDArray[Any] | None = None,
        *,
        label_names: Sequence[str] | None = None,
    ) -> "Examples":
        """Examples from image files, their bytes, or pixels (uint8 [height, width] or [height, width, 3])."""
        from calmix.data.building import examples_from_images

        return examples_from_images(images, labels, label_names=label_names)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        return f"Examples({len(self)} × {self.kind}, {len(self.label_names)} labels, source={self.source!r})"

    @property
    def kind(self) -> Literal["text", "pair", "choices", "image"]:
        """What a row holds: one text, two texts, a text with choices, or an image."""
        if "image_key" in self.table.column_names:
            return "image"
        if "text_b" in self.table.column_names:
            return "pair"
        return "choices" if "choices" in self.table.column_names else "text"

    @cached_property
    def ids(self) -> list[str]:
        """The id of each row."""
        return self.column("id")

    def column(self, name: str) -> list[Any]:
        """The cells of a column of the table as Python values."""
        return list(self.table[name].to_pylist())

    @property
    def images(self) -> "Images":
        """The pixels of each row's image, decoded when asked for: `examples.images[row]`."""
        from calmix.data.images import Images

        if self.kind != "image":
            raise ValueError(f"{self.source or 'the examples'}: holds {self.kind} data, no images")
        return Images(self.table)

    @property
    def choice_counts(self) -> NDArray[np.int64] | None:
        """How many choices each row has; None unless this is multiple choice."""
        if self.kind != "choices":
            return None
        return np.asarray(pc.list_value_length(self.table["choices"]), dtype=np.int64)

    def take(self, indices: ArrayLike) -> "Examples":
        """The rows at `indices`, in that order."""
        rows = np.asarray(indices)
        if rows.dtype == np.bool_:
            raise TypeError("take wants row indices, not a mask: use np.flatnonzero(mask)")
        rows = rows.astype(np.int64)
        return Examples(
            table=self.table.take(pa.array(rows)),
            labels=self.labels[rows],
            label_names=self.label_names,
            targets=None if self.targets is None else self.targets[rows],
            source=self.source,
        )

    def digest(self) -> str:
        """The SHA-256, in hex, of all that shapes a training run: ids, texts or images, labels, their names,
        targets."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        parts = [str(len(self)).encode()]
        for name in ("id", "text", "text_b", "choices", "image_key"):
            if name in self.table.column_names:
                parts += [name.encode(), *_content(self.table[name])]
        parts += [self.labels.astype("<i8").tobytes(), *_content(pa.chunked_array([self.label_names], pa.string()))]
        if self.targets is not None:
            parts.append(self.targets.astype("<f8").tobytes())
        whole = sha256()
        for part in parts:
            whole.update(len(part).to_bytes(8, "little"))
            whole.update(part)
        return whole.hexdigest()


def _content(column: pa.ChunkedArray) -> list[Any]:
    """Lengths and bytes of a column of strings or lists of strings, however it is cut into chunks."""
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        counts = np.asarray(pc.list_value_length(column), dtype="<i8").tobytes()
        return [counts, *_content(pc.list_flatten(column))]
    lengths = np.asarray(pc.binary_length(column), dtype="<i8").tobytes()
    return [lengths, b"".join(_chunk_bytes(chunk) for chunk in column.chunks)]


def _chunk_bytes(chunk: pa.Array) -> memoryview:
    chunk = chunk.cast(pa.large_string())
    offsets = np.frombuffer(chunk.buffers()[1], dtype=np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
    data = chunk.buffers()[2]
    if data is None or len(chunk) == 0:
        return memoryview(b"")
    return memoryview(data)[offsets[0] : offsets[-1]]
