"""What all tests share: one torch thread, no network, and tiny checkpoints of every architecture."""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no defect.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Before torch and transformers are imported, and for every process a test starts: nothing may be fetched, and
# tiny tensors lose more to waiting threads than they gain.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Two runs that are compared must not decide differently what is faster.
os.environ["ACCELERATE_MIXED_PRECISION"] = "no"
sys.path.insert(0, str(Path(__file__).parent))  # for `import tiny`
# Whoever runs tests in the background may have had Ctrl-C ignored, for every process a test starts, too.
signal.signal(signal.SIGINT, signal.default_int_handler)

Checkpoint = Callable[..., Path]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Whatever was imported before this file, torch uses one thread."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Return `checkpoint(architecture, choices=False, classes=3, layers=2, heads=2)`: the folder of a tiny model.

    Built once per session: copy it before you change it.
    """
    import tiny

    root = tmp_path_factory.mktemp("checkpoints")

    @cache
    def folder(
        architecture: str = "bert", *, choices: bool = False, classes: int = 3, layers: int = 2, heads: int = 2
    ) -> Path:
        name = f"{architecture}-{'choices' if choices else classes}-{layers}" + (f"-{heads}" if heads != 2 else "")
        shape = {"classes": classes, "layers": layers, "heads": heads}
        return tiny.build(architecture, root / name, choices=choices, **shape)

    return folder


@pytest.fixture(scope="session")
def headless(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Return `headless(architecture)`: the folder of a tiny encoder as pretrained ones come, without a head."""
    from safetensors.torch import load_file, save_file

    @cache
    def folder(architecture: str = "bert") -> Path:
        place = shutil.copytree(checkpoint(architecture), tmp_path_factory.mktemp("headless") / architecture)
        file = place / "model.safetensors"
        held = {name: values for name, values in load_file(file).items() if not name.startswith("classifier.")}
        save_file(held, file, {"format": "pt"})
        return place

    return folder


@pytest.fixture(scope="session")
def checkpoint_of(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Return `checkpoint_of(kind)`: the folder of a tiny model of any type of transformers'. Copy it before changes."""
    import architectures

    root = tmp_path_factory.mktemp("any-checkpoints")
    return cache(lambda kind: architectures.build(kind, root / kind))


@pytest.fixture(scope="session")
def image_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Return `image_checkpoint(architecture, classes=3, channels=3)`: the folder of a tiny classifier of images."""
    import tiny

    root = tmp_path_factory.mktemp("image-checkpoints")

    @cache
    def folder(architecture: str = "convnet", *, classes: int = 3, channels: int = 3) -> Path:
        name = f"{architecture}-{classes}-{channels}"
        return tiny.build_image(architecture, root / name, classes=classes, channels=channels)

    return folder


@pytest.fixture(params=["convnet", "resnet", "vit", "convnext"])
def image_architecture(request: pytest.FixtureRequest) -> str:
    """Each kind of network of images in turn."""
    return str(request.param)


@pytest.fixture(params=["bert", "roberta", "distilbert", "electra", "deberta-v2", "modernbert", "mpnet", "llama"])
def architecture(request: pytest.FixtureRequest) -> str:
    """Each supported architecture in turn."""
    return str(request.param)


@pytest.fixture(params=["bert", "roberta", "distilbert", "electra", "deberta-v2", "modernbert", "mpnet"])
def encoder(request: pytest.FixtureRequest) -> str:
    """Each architecture that also has a multiple-choice model."""
    return str(request.param)
