"""Whether the hub answers."""

import socket
import ssl
import sys
import urllib.error
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants

from calmix.data import connecting
from calmix.data.connecting import from_cache_if_unreachable, why_unreachable

REFUSED = urllib.error.URLError(socket.gaierror(-2, "Name or service not known"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A hub that may be asked, and what it answers: an error, or nothing."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(connecting, "_FOUND", {})
    told: dict[str, Any] = {"error": None, "times": 0}

    class Answer:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: Any) -> None: ...

    def answer(*_: Any, **__: Any) -> Answer:
        told["times"] += 1
        if told["error"] is not None:
            raise told["error"]
        return Answer()

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    return told


def test_a_hub_that_cannot_be_reached_is_asked_once_and_then_left_alone(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = SimpleNamespace(config=SimpleNamespace(HF_HUB_OFFLINE=False))
    monkeypatch.setitem(sys.modules, "datasets", own)  # type: ignore[arg-type]
    asked["error"] = REFUSED
    assert why_unreachable() == why_unreachable() == "Name or service not known"
    assert asked["times"] == 1
    with from_cache_if_unreachable():
        assert constants.is_offline_mode()
        assert own.config.HF_HUB_OFFLINE
    assert not constants.is_offline_mode()
    assert not own.config.HF_HUB_OFFLINE


@pytest.mark.parametrize(
    "error",
    [
        None,
        urllib.error.HTTPError("https://huggingface.co", 503, "busy", None, None),  # type: ignore[arg-type]
        urllib.error.URLError(ssl.SSLError("unknown certificate")),
    ],
)
def test_a_hub_that_answers_anything_is_left_to_the_library(asked: dict[str, Any], error: Any) -> None:
    asked["error"] = error
    assert why_unreachable() is None
    with from_cache_if_unreachable():
        assert not constants.is_offline_mode()


def test_offline_nothing_is_asked(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert why_unreachable() is None
    with from_cache_if_unreachable():
        assert constants.is_offline_mode()
    assert constants.is_offline_mode()
    assert asked["times"] == 0
