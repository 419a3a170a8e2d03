"""Which columns were named when a model was trained or a table mapped, without loading anything."""

import json
from pathlib import Path
from typing import Any

__all__ = ["COLUMNS", "remembered_columns", "role_names"]

COLUMNS = "calmix_columns"
"""Where a model's config keeps which columns were named in training."""


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
