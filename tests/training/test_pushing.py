"""Uploading a model, without a hub."""

from pathlib import Path
from typing import Any

import pytest

from calmix.errors import InputError
from calmix.training.pushing import check_name, push


class Hub:
    """Stands in for the hub's client."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.calls = error, []  # type: ignore[var-annotated]

    def create_repo(self, name: str, **options: Any) -> None:
        self.calls.append((name, options))

    def upload_folder(self, **options: Any) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append(options)


def test_a_model_is_uploaded_privately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub()
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: hub)
    assert push(tmp_path, "org/name") == "https://huggingface.co/org/name"
    (name, options), upload = hub.calls
    assert (name, options) == ("org/name", {"private": True, "exist_ok": True})
    assert (upload["repo_id"], upload["folder_path"]) == ("org/name", tmp_path)


@pytest.mark.parametrize("error", [OSError("no\nnetwork"), RuntimeError("strange"), ValueError("odd")])
def test_a_failed_upload_says_where_the_model_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: Hub(error))
    with pytest.raises(InputError, match=r"the upload failed .* the model is safe in") as caught:
        push(tmp_path, "org/name")
    assert "\n" not in str(caught.value)
    assert f"hf upload org/name {tmp_path}" in str(caught.value)


def test_names_that_cannot_be_are_refused_before_any_work() -> None:
    check_name("org/name")
    check_name("name")
    for bad in ("a/b/c", "org/na me", "-x", "org/", ""):
        with pytest.raises(InputError, match="must be ORG/NAME"):
            check_name(bad)
