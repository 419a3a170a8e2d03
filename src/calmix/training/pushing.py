"""A finished model on the Hugging Face hub."""

from pathlib import Path

from calmix.errors import InputError

__all__ = ["push"]


def push(model: Path, name: str) -> str:
    """Upload a checkpoint folder as `name` (organisation/model), private unless it exists; return its address."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    api = HfApi()
    try:
        api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=model, commit_message="Trained with calmix")
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{name}: the upload failed ({reason}); the model is safe in {model}. Log in with `hf auth login`, "
            f"then `hf upload {name} {model}`"
        ) from None
    return f"https://huggingface.co/{name}"
