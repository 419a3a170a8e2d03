"""A finished model on the Hugging Face hub."""

from pathlib import Path

from calmix.errors import InputError

__all__ = ["check_name", "push"]


def check_name(name: str) -> None:
    """Refuse what cannot be a model's name on the hub, before any work is done for it."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError:
        raise InputError(f"--push-to-hub {name}: must be ORG/NAME, of letters, digits, '-', '_' and '.'") from None


def push(model: Path, name: str) -> str:
    """Upload a checkpoint folder as `name` (organisation/model), private unless it exists; return its address."""
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=model, commit_message="Trained with calmix")
    except Exception as error:  # whatever the network, the hub or its client came up with: the model is what matters
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{name}: the upload failed ({reason}); the model is safe in {model}. Log in with `hf auth login`, "
            f"then `hf upload {name} {model}`"
        ) from None
    return f"https://huggingface.co/{name}"
