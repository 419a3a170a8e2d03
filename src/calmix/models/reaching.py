"""Models of the Hugging Face hub: whether a name can be followed there, what is there, and what was meant."""

import os
from functools import cache
from pathlib import Path

from calmix.data.connecting import why_unreachable
from calmix.data.origin import closest
from calmix.errors import InputError

__all__ = ["check_reachable", "hub_files", "meant"]

_SHORT = ("minilm", "sentence-cnn")


def check_reachable(name: str) -> None:
    """Refuse a hub name that was never fetched while the hub cannot be reached."""
    from huggingface_hub import constants, try_to_load_from_cache

    try:
        fetched = isinstance(try_to_load_from_cache(name, "config.json"), str)
    except ValueError:  # no name the hub could know: it says so better than we
        return
    reason = why_unreachable()
    if reason is not None and not fetched:
        raise InputError(
            f"{name}: is neither a folder here nor a model the Hugging Face hub gives us (it is not among those "
            f"fetched before, and {constants.ENDPOINT} cannot be reached: {reason}){meant(name)}"
        )


@cache
def hub_files(name: str) -> tuple[str, ...]:
    """Return the names of the files of a model on the hub; none where it does not tell."""
    from huggingface_hub import HfApi

    try:
        return tuple(HfApi().list_repo_files(name))
    except Exception:  # whoever loads it next says better what is wrong
        return ()


def meant(name: str) -> str:
    """Return a question whether a model that is there was meant: a short name, a folder here, one fetched before."""
    from huggingface_hub import constants

    here = [entry.name for entry in os.scandir() if entry.is_dir() and _holds_model(Path(entry))]
    cache = Path(constants.HF_HUB_CACHE)
    fetched = [path.name.removeprefix("models--").replace("--", "/") for path in cache.glob("models--*")]
    return closest(name, [*_SHORT, *here, *fetched])


def _holds_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() or (folder / "model" / "config.json").is_file()
