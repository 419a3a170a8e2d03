"""Models of the Hugging Face hub: whether a name can be followed there, what is there, and what was meant."""

from functools import cache
from pathlib import Path

from calmix.data.connecting import why_unreachable
from calmix.data.origin import closest, neighbour
from calmix.errors import InputError

__all__ = ["check_reachable", "hub_files", "meant"]

_SHORT = ("minilm", "sentence-cnn")


def check_reachable(name: str) -> None:
    """Refuse a name that is no folder here if it is none the hub could know, or was never fetched and cannot be now."""
    from huggingface_hub import constants, try_to_load_from_cache

    try:
        fetched = isinstance(try_to_load_from_cache(name, "config.json"), str)
    except ValueError:  # no name the hub could know
        raise InputError(f"{name}: no such folder{meant(name)}") from None
    reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else why_unreachable()
    if reason is not None and not fetched:
        raise InputError(
            f"{name}: no such folder, nor was a model of that name fetched before, and the hub cannot be reached "
            f"({reason}){meant(name)}"
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

    cache = Path(constants.HF_HUB_CACHE)
    fetched = [path.name.removeprefix("models--").replace("--", "/") for path in cache.glob("models--*")]
    return neighbour(name, _holds_model) or closest(name, [*_SHORT, *fetched])


def _holds_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() or (folder / "model" / "config.json").is_file()
