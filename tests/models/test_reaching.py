"""Models of the hub: whether a name can be followed there, and what was meant."""

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from calmix.errors import InputError
from calmix.models import reaching
from calmix.models.reaching import check_reachable, hub_files, meant


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty cache, and a hub that cannot be reached."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(reaching, "why_unreachable", lambda: "no route to host")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("lost")
def test_a_name_that_was_never_fetched_is_refused_where_the_hub_cannot_be_reached(tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"nobody: no such folder, .*cannot be reached \(no route to host\)$"):
        check_reachable("nobody")
    with pytest.raises(InputError, match="did you mean 'my-model'"):
        check_reachable("my-modle")


@pytest.mark.usefixtures("lost")
def test_a_name_that_the_hub_could_not_know_is_a_folders() -> None:
    with pytest.raises(InputError, match=r"^not a name!: no such folder$"):
        check_reachable("not a name!")


@pytest.mark.usefixtures("lost")
def test_what_was_fetched_before_needs_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: "/cache/config.json")
    check_reachable("nobody")


@pytest.mark.usefixtures("lost")
def test_a_hub_that_must_not_be_asked_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching, "why_unreachable", lambda: None)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"nobody: no such folder, .*\(HF_HUB_OFFLINE is set\)$"):
        check_reachable("nobody")


def test_a_hub_that_answers_is_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(reaching, "why_unreachable", lambda: None)
    check_reachable("nobody")


def test_a_hub_that_tells_no_files_has_none_for_us(monkeypatch: pytest.MonkeyPatch) -> None:
    class Api:
        def list_repo_files(self, name: str) -> list[str]:
            if name == "gone":
                raise OSError("no route to host")
            return ["config.json", "model.safetensors"]

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    hub_files.cache_clear()
    assert hub_files("there") == ("config.json", "model.safetensors")
    assert hub_files("gone") == ()
    hub_files.cache_clear()


def test_what_was_fetched_before_may_be_meant(lost: Any, tmp_path: Path) -> None:
    (tmp_path / "cache" / "models--distilbert--distilbert-base-uncased").mkdir(parents=True)
    assert meant("distilbert/distilbrt-base-uncased") == "; did you mean 'distilbert/distilbert-base-uncased'?"
    assert meant("minilmm") == "; did you mean 'minilm'?"
    assert meant("zzz") == ""


def test_a_folder_beside_the_one_that_was_named_may_be_meant(lost: Any, tmp_path: Path) -> None:
    for name in ("first", "other"):
        (tmp_path / "runs" / name / "model").mkdir(parents=True)
        (tmp_path / "runs" / name / "model" / "config.json").write_text("{}")
    assert meant("runs/frist") == "; did you mean 'runs/first'?"
    assert meant("./runs/ohter/") == "; did you mean './runs/other'?"
    assert meant(str(tmp_path / "runs" / "zzz")) == meant("nowhere/first") == ""
