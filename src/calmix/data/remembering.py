"""Which columns were named when a model was trained or calibrated, or a table mapped, without loading anything."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calmix.data.files import write_text

__all__ = ["COLUMNS", "READ", "remember_columns", "remembered_columns", "role_names"]

COLUMNS = "calmix_columns"
"""Where a model's config keeps which columns were named in training."""

READ = ("text", "text_b", "choices")
"""What a row is read from: once one of these is named, the others are not those of before."""


def remember_columns(folder: Path, named: Mapping[str, str | None]) -> None:
    """Have a checkpoint or ensemble that was just written know which columns were named, beside those it knew."""
    given = {role: name for role, name in named.items() if name is not None}
    for config in (folder / "config.json", *sorted(folder.glob("member-*/config.json"))) if given else ():
        if config.is_file():
            state = json.loads(config.read_text(encoding="utf-8"))
            known = role_names(state.get(COLUMNS))
            if any(role in given for role in READ):
                known = {role: name for role, name in known.items() if role not in READ}
            # Not `write_json`: a configuration of others may hold infinities.
            write_text(config, json.dumps(state | {COLUMNS: known | given}, indent=2) + "\n")


def remembered_columns(folder: str | Path) -> dict[str, str]:
    """Return the columns that were named for a run, checkpoint, ensemble or map in a folder, by what they hold.

    None where there is no such folder, or nothing was named: what is wrong with a model is for those to say who load
    it.
    """
    path = Path(folder)
    for config in (path / "model" / "config.json", path / "config.json", path / "member-1" / "config.json"):
        if config.is_file():
            return role_names(_value(config, COLUMNS))
    return role_names(_value(path / "metrics.json", "columns"))


def role_names(found: Any) -> dict[str, str]:
    """Return what a file says about columns, as far as it can be used: names by roles."""
    known = found.items() if isinstance(found, dict) else ()
    return {role: name for role, name in known if isinstance(role, str) and isinstance(name, str)}


def _value(file: Path, key: str) -> Any:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found.get(key) if isinstance(found, dict) else None
