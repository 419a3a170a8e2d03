"""Which column is what, by the names that data sets usually give them."""

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from calmix.data.images import holds_images
from calmix.data.origin import Origin, closest, listed, shown
from calmix.data.remembering import READ
from calmix.data.texts import is_list
from calmix.errors import InputError

__all__ = ["Columns", "find_columns", "named_column", "unread_parts", "with_usual"]

# From the surest names to the least sure; two columns of one rank are a question for the user.
_PAIR_FIRST = ("text_a", "text1", "sentence1", "sentence_a", "sent1", "premise", "question1")
_TEXT = (
    ("text",),
    _PAIR_FIRST,
    ("sentence", "review", "content", "message", "comment", "tweet", "utterance", "document", "body",
     "question", "query", "passage", "article", "description"),
)  # fmt: skip
_IMAGE = (("image",), ("img", "images", "picture", "photo"))
_TEXT_OF_CHOICES = (("text",), ("startphrase", "ctx"), ("question", "context", "sentence", *_PAIR_FIRST))
_TEXT_B = (("text_b",), ("text2", "sentence2", "sentence_b", "sent2", "hypothesis", "question2"))
_CHOICES = (("choices", "endings", "options"),)
_NUMBERED_CHOICES = ("ending", "choice", "option")
_LABEL = (
    ("label",),
    ("labels", "class", "category", "target", "intent", "gold_label", "sentiment", "emotion", "topic"),
)
_LABEL_OF_CHOICES = (("label",), ("labels", "answer", "answer_index", "target", "gold", "correct"))
_ID = (("id",), ("guid", "uid"))
_ID_IF_UNIQUE = (("idx", "index"),)


@dataclass(frozen=True)
class Columns:
    """The names of a table's columns by the part they play; None (or empty) where no column plays it."""

    text: str  # empty where the rows are images
    text_b: str | None
    choices: tuple[str, ...]  # one column of lists, or one column per choice
    label: str | None
    id: str | None
    votes: str | None
    image: str | None = None


def with_usual(
    given: Mapping[str, str | None], usual: Mapping[str, str], names: Sequence[str]
) -> dict[str, str | None]:
    """The columns that are named, and the usual ones for others where they are there; of what is read, all or none."""
    columns = {_folded(name) for name in names} - {_folded(name) for name in given.values() if name is not None}
    there = {
        role: name
        for role, name in usual.items()
        # Of choices in numbered columns the beginning is named.
        if any(c == _folded(name) or (role == "choices" and c.startswith(_folded(name))) for c in columns)
    }
    if any(given.get(role) is not None or (role in usual and role not in there) for role in READ):
        there = {role: name for role, name in there.items() if role not in READ}
    return {role: name or (None if role == "votes" else there.get(role)) for role, name in given.items()}


def find_columns(
    table: pa.Table,
    origin: Origin,
    *,
    text: str | None = None,
    text_b: str | None = None,
    choices: str | None = None,
    label: str | None = None,
    id: str | None = None,
    votes: str | None = None,
    labelled: bool | None = True,
) -> Columns:
    """The columns to read: the named ones, and for the rest those with a usual name.

    Once `text` is named, only the named columns count as input: nothing is guessed for `text_b` and
    `choices`. Images are looked for only where there is no text. Raises `InputError` when a column is missing
    or several would do.
    """
    search, image = _Search(table, origin), None
    text, text_b = search.named(text, "--text"), search.named(text_b, "--text-b")
    label, id, votes = search.named(label, "--label"), search.named(id, "--id"), search.named(votes, "--votes")
    given = [name for name in (text, text_b, choices, label, id, votes) if name is not None]
    if len(set(given)) < len(given):
        raise origin.error(f"one column cannot be two things: {listed(given)}; name different ones")
    if text_b is not None and choices is not None:
        raise origin.error("give --text-b (pairs) or --choices (multiple choice), not both")
    named = {name for name in (text, text_b, label, id, votes) if name is not None}
    cells = search.named_choices(choices) if choices is not None else ()
    if text is None and text_b is None and choices is None:
        cells = search.usual_choices(named)
    named |= set(cells)
    if text is None:
        found = search.usual(_TEXT_OF_CHOICES if cells else _TEXT, named, "text", "--text")
        image = search.usual_image(named) if found is None and text_b is None and not cells else None
        if found is None and image is None:
            # Once the text is named, the others of a row's parts are not looked for.
            other = f", the choices with --choices {shown(cells[0])}" if len(cells) == 1 and choices is None else ""
            headless = ""
            if origin.header and any(map(_is_no_name, table.column_names)):
                headless = "; its first line looks like a row: put the names of the columns above it"
            elif origin.header and "" in table.column_names:
                headless = "; if its first line is a title, remove what is above the names of the columns"
            raise origin.error(
                f"no column looks like the text; name it with --text{other} (columns: {search.listed}){headless}"
            )
        text = found or ""
        named.add(image or text)
        if text_b is None and not cells and image is None:
            text_b = search.usual(_TEXT_B, named, "second text", "--text-b")
            named |= {text_b} if text_b else set()
    if labelled is False:
        label = votes = None
    elif label is None:
        ranks = _LABEL_OF_CHOICES if cells else _LABEL
        optional = labelled is None or votes is not None
        label = search.usual(ranks, named, "label", "--label", unsure_is_none=optional)
        if label is None and not optional:
            raise origin.error(f"no column looks like the label; name it with --label (columns: {search.listed})")
    named |= {label} if label else set()
    if id is None:
        id = search.usual(_ID, named, "id", "--id") or search.unique(_ID_IF_UNIQUE, named)
    return Columns(text=text, text_b=text_b, choices=cells, label=label, id=id, votes=votes, image=image)


def named_column(table: pa.Table, origin: Origin, name: str, option: str) -> str:
    """The column that the user named: exactly so, or the only one called so apart from case and blanks."""
    return _Search(table, origin).require(name, option)


def unread_parts(table: pa.Table) -> list[tuple[str, str]]:
    """The columns of a table of single texts that look like a part of its rows, each with the option that names it."""
    seconds = {name for rank in _TEXT_B for name in rank}
    found = [(name, "--text-b") for name in table.column_names if _folded(name) in seconds]
    with suppress(InputError):  # several would do, and none was asked for
        found += [(name, "--choices") for name in _Search(table, Origin("table")).usual_choices(())[:1]]
    return found


def _is_no_name(cell: str) -> bool:
    """Whether what stands where the name of a column should is a number, or a sentence."""
    return cell.strip().lstrip("+-").replace(".", "", 1).isdigit() or len(cell.split()) > 5


def _folded(name: str) -> str:
    # Messages have one line and single blanks: a name copied from there must do.
    return " ".join(name.split()).casefold()


class _Search:
    """Looking for columns of one table."""

    def __init__(self, table: pa.Table, origin: Origin) -> None:
        self._table, self._origin = table, origin
        self._names: list[str] = table.column_names
        self.listed = listed(self._names)

    def named(self, name: str | None, option: str) -> str | None:
        """The column that the user named, if he did."""
        return None if name is None else self.require(name, option)

    def require(self, name: str, option: str) -> str:
        """The column that the user named: exactly so, or the only one called so apart from case and blanks."""
        if name in self._names:
            return name
        alike = [other for other in self._names if _folded(other) == _folded(name)]
        if len(alike) != 1:
            raise self._origin.error(
                f"{option}: no column {shown(name)}{closest(name, self._names)} (columns: {self.listed})"
            )
        return alike[0]

    def usual(
        self,
        ranks: Sequence[Sequence[str]],
        taken: Collection[str],
        what: str,
        option: str,
        *,
        unsure_is_none: bool = False,
    ) -> str | None:
        """The free column of the best rank."""
        for rank in ranks:
            found = [name for name in self._names if name.strip().casefold() in rank and name not in taken]
            if len(found) > 1 and not unsure_is_none:
                raise self._origin.error(
                    f"several columns could be the {what} ({listed(found)}); name one with {option}"
                )
            if found:
                return found[0] if len(found) == 1 else None
        return None

    def unique(self, ranks: Sequence[Sequence[str]], taken: Collection[str]) -> str | None:
        """The free column of a usual name whose cells all differ."""
        name = self.usual(ranks, taken, "id", "--id", unsure_is_none=True)
        if name is None or pa.types.is_nested(self._table.schema.field(name).type):
            return None
        column = self._table[name]
        return name if not column.null_count and len(column.unique()) == len(column) else None

    def usual_image(self, taken: Collection[str]) -> str | None:
        """The column of a usual name that holds encoded images."""
        other = {name for name in self._names if not holds_images(self._table.schema.field(name).type)}
        return self.usual(_IMAGE, other | set(taken), "image", "'image' (rename it)")

    def named_choices(self, name: str) -> tuple[str, ...]:
        """The column of lists with this name, or the columns with this name and a number."""
        numbered = self._numbered(name)
        if name in self._names or len(numbered) < 2:
            return (self.require(name, "--choices"),)
        return numbered

    def usual_choices(self, taken: Collection[str]) -> tuple[str, ...]:
        """The columns of choices, if this is a table of multiple choice."""
        name = self.usual(_CHOICES, taken, "choices", "--choices")
        if name is not None and self._holds_lists(name):
            return (name,)
        for stem in _NUMBERED_CHOICES:
            numbered = self._numbered(stem)
            if len(numbered) >= 2:
                return numbered
        return ()

    def _numbered(self, stem: str) -> tuple[str, ...]:
        pattern = re.compile(rf"{re.escape(stem)}[ _]?(\d{{1,4}})", re.IGNORECASE)
        found = [(int(match[1]), name) for name in self._names if (match := pattern.fullmatch(name.strip()))]
        return tuple(name for _, name in sorted(found))

    def _holds_lists(self, name: str) -> bool:
        column = self._table[name]
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            return str(column[0].as_py() or "").lstrip().startswith("[")
        return is_list(column.type)
