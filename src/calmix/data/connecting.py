"""Whether the Hugging Face hub answers, found out at once rather than after many attempts."""

import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["from_cache_if_unreachable", "why_unreachable"]

_SECONDS = 5
# What was found out in this process: endpoint → why it does not answer, None where it does.
_FOUND: dict[str, str | None] = {}


def why_unreachable() -> str | None:
    """Return why the hub cannot be reached, None where it answers or must not be asked: one try, a few seconds at most.

    Who asked once is told the same again.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return None
    if constants.ENDPOINT not in _FOUND:
        _FOUND[constants.ENDPOINT] = _tried(constants.ENDPOINT)
    return _FOUND[constants.ENDPOINT]


@contextmanager
def from_cache_if_unreachable() -> Iterator[None]:
    """Inside the block, a hub that is known not to answer is not asked: its libraries would try six times each time."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or not _FOUND.get(constants.ENDPOINT):
        yield
        return
    config = getattr(sys.modules.get("datasets"), "config", None)  # it has its own copy
    try:
        constants.HF_HUB_OFFLINE = True
        if config is not None:
            config.HF_HUB_OFFLINE = True
        yield
    finally:
        constants.HF_HUB_OFFLINE = False
        if config is not None:
            config.HF_HUB_OFFLINE = False


def _tried(endpoint: str) -> str | None:
    try:
        with urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=_SECONDS):
            return None
    except urllib.error.HTTPError:
        return None  # it answers
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        # Whoever asks next may know other certificates.
        if isinstance(reason, ssl.SSLError):
            return None
        return getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
