"""How the settings of a run differ from those of another, in words."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["difference"]

# What is known by its content: a hash of it, and whether a teacher is taken without its temperature.
_HASH = re.compile(r"([0-9a-f]{16,})( unscaled)?")
_UNSCALED = " unscaled"
# Differences that are told; the others are counted.
_MOST = 4


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return which settings differ, and how; of what is known by its content, only that it does."""
    found = list(_changes(old, new))
    more = f"; and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return "; ".join(found[:_MOST]) + more if found else "made by another version"


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    # Data come last: of what they are, other settings are often the cause.
    for name in sorted(dict.fromkeys([*new, *old]), key="data".__eq__):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        if name == "model_hash":
            if old.get("model") == new.get("model"):  # else that is told
                yield "model is not the same as it was"
        elif all(each is None or isinstance(each, Mapping) for each in (before, after)):
            yield from (f"{name}: {inner}" for inner in _changes(before or {}, after or {}))
        else:
            yield _change(name, before, after)


def _change(name: str, before: Any, after: Any) -> str:
    if not (_is_content(before) or _is_content(after)):
        return f"{name} was {_short(before)}, is {_short(after)}"
    if before is None or after is None:
        return f"{name} was {'not ' if before is None else ''}given, is {'not ' if after is None else ''}given"
    if _scaled(before) == _scaled(after):
        return f"{name} was {_scaling(before)}, is {_scaling(after)}"
    return f"{name} is not the same as it was"


def _is_content(value: Any) -> bool:
    values = value if isinstance(value, list) and value else [value]
    return all(isinstance(one, str) and _HASH.fullmatch(one) for one in values)


def _each(value: Any) -> list[str]:
    return [str(one) for one in (value if isinstance(value, list) else [value])]


def _scaled(value: Any) -> list[str]:
    return [one.removesuffix(_UNSCALED) for one in _each(value)]


def _scaling(value: Any) -> str:
    return "unscaled" if any(one.endswith(_UNSCALED) for one in _each(value)) else "scaled"


def _short(value: Any) -> str:
    text = "not given" if value is None else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
