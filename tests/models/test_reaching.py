"""Whether the hub can be reached."""

import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from calmix.errors import InputError
from calmix.models.reaching import check_reachable, meant


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """An empty cache, a hub that may be asked, and what it answers: an error, or nothing."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
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


def test_a_hub_that_cannot_be_reached_is_asked_once_and_said(asked: dict[str, Any], tmp_path: Path) -> None:
    asked["error"] = urllib.error.URLError(socket.gaierror(-2, "Name or service not known"))
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"nobody: .*cannot be reached: .*Name or service not known\)$"):
        check_reachable("nobody")
    with pytest.raises(InputError, match="did you mean 'my-model'"):
        check_reachable("my-modle")
    assert asked["times"] == 2


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
    check_reachable("nobody")


def test_offline_and_for_impossible_names_nothing_is_asked(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_reachable("not a name!")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    check_reachable("nobody")
    assert asked["times"] == 0


def test_what_was_fetched_before_may_be_meant(asked: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "cache" / "models--distilbert--distilbert-base-uncased").mkdir(parents=True)
    assert meant("distilbert/distilbrt-base-uncased") == "; did you mean 'distilbert/distilbert-base-uncased'?"
    assert meant("minilmm") == "; did you mean 'minilm'?"
    assert meant("zzz") == ""
