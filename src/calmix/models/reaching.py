"""Whether a model's name can be followed to the Hugging Face hub, found out at once rather than after many attempts."""

import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path

from calmix.data.origin import closest
from calmix.errors import InputError

__all__ = ["check_reachable", "meant"]

_SECONDS = 5
_SHORT = ("minilm", "sentence-cnn")


def check_reachable(name: str) -> None:
    """Refuse a hub name that was never fetched while the hub cannot be reached: one try, a few seconds at most."""
    from huggingface_hub import constants, try_to_load_from_cache

    try:
        fetched = isinstance(try_to_load_from_cache(name, "config.json"), str)
    except ValueError:  # no name the hub could know: it says so better than we
        return
    if constants.HF_HUB_OFFLINE or fetched:
        return
    try:
        with urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=_SECONDS):
            return
    except urllib.error.HTTPError:
        return  # it answers
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLError):
            return  # whoever asks next may know other certificates
        raise InputError(
            f"{name}: is neither a folder here nor a model the Hugging Face hub gives us (it is not among those "
            f"fetched before, and {constants.ENDPOINT} cannot be reached: {reason}){meant(name)}"
        ) from None


def meant(name: str) -> str:
    """Return a question whether a model that is there was meant: a short name, a folder here, one fetched before."""
    from huggingface_hub import constants

    here = [entry.name for entry in os.scandir() if entry.is_dir() and _holds_model(Path(entry))]
    cache = Path(constants.HF_HUB_CACHE)
    fetched = [path.name.removeprefix("models--").replace("--", "/") for path in cache.glob("models--*")]
    return closest(name, [*_SHORT, *here, *fetched])


def _holds_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() or (folder / "model" / "config.json").is_file()
