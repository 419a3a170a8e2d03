"""Tiny random models of every supported architecture, with a tokenizer, and data to go with them.

Two layers, width 16, about a hundred words: a forward takes a millisecond, and every name and shape is that of
the real architecture. `build` writes an ordinary checkpoint folder.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn

from calmix.data import Examples

ARCHITECTURES = ("bert", "roberta", "distilbert", "electra", "deberta-v2", "modernbert", "mpnet", "llama")
"""What calmix is tested on; all but `llama` also have a multiple-choice model."""

ENCODERS = ARCHITECTURES[:-1]

LABELS = ("animal", "food", "weather")
"""The classes of `examples`, each told by words of its own."""

_TOPICS = {
    "animal": "cat dog horse cow sheep goat hen duck owl crow fox wolf bear deer hare mole",
    "food": "bread butter cheese apple pear plum soup stew rice bean cake pie salt honey onion carrot",
    "weather": "rain snow wind storm cloud sun fog hail frost thunder breeze mist heat ice drizzle gale",
}
_FILLERS = (
    "the a my your this that some every old new big small near far today often never always we they you she he it "
    "saw liked wanted found lost had was is and or with without under over by at for from into after before not ?"
)
WORDS: tuple[str, ...] = tuple(" ".join([*_TOPICS.values(), _FILLERS]).split())
WIDTH = 16
POSITIONS = 64


def texts(n: int, *, seed: int = 0, shortest: int = 3, longest: int = 12) -> tuple[list[str], list[str]]:
    """Return sentences of uneven length and their labels: the topic of some of their words."""
    rng = np.random.default_rng(seed)
    fillers = _FILLERS.split()
    sentences, labels = [], []
    for i in range(n):
        label = LABELS[i % len(LABELS)]
        topic = _TOPICS[label].split()
        words = [
            str(rng.choice(fillers if rng.random() < 0.5 else topic)) for _ in range(rng.integers(shortest, longest))
        ]
        sentences.append(" ".join([*words, str(rng.choice(topic))]))
        labels.append(label)
    return sentences, labels


def examples(n: int, *, kind: str = "text", seed: int = 0, counts: Sequence[int] = (2, 3, 4)) -> Examples:
    """Return labelled examples of a kind: `text`, `pair` or `choices` (row i has `counts[i % len]` of them)."""
    sentences, labels = texts(n, seed=seed)
    if kind == "text":
        return Examples.from_texts(sentences, labels)
    if kind == "pair":
        others, _ = texts(n, seed=seed + 1, shortest=1, longest=8)
        return Examples.from_texts(sentences, labels, text_b=others)
    rng = np.random.default_rng(seed + 2)
    choices, right = [], []
    for i, label in enumerate(labels):
        wrong = [name for name in LABELS if name != label]
        count = counts[i % len(counts)]
        at = int(rng.integers(count))
        topics = [label if k == at else wrong[k % len(wrong)] for k in range(count)]
        choices.append([" ".join(rng.choice(_TOPICS[t].split(), rng.integers(1, 4))) for t in topics])
        right.append(at)
    table = pa.table({"id": [f"q{i}" for i in range(n)], "text": sentences, "choices": choices})
    return Examples(table, np.array(right, dtype=np.int64), (), source="tiny choices")


def tokenizer(architecture: str = "bert") -> Any:
    """Return a fast word tokenizer with the special tokens of an architecture."""
    from transformers import PreTrainedTokenizerFast

    decoder = architecture == "llama"
    specials = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[unused0]"]
    if decoder:
        specials = ["[UNK]", "<s>", "</s>", "[PAD]"]
    elif architecture in ("roberta", "mpnet"):  # their positions are counted from the padding token, whose id is 1
        specials = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[unused0]"]
    ids = {token: i for i, token in enumerate([*specials, *dict.fromkeys(WORDS)])}
    core = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    if decoder:
        core.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>",
            pair="<s> $A </s> $B </s>",
            special_tokens=[("<s>", ids["<s>"]), ("</s>", ids["</s>"])],
        )
        return PreTrainedTokenizerFast(
            tokenizer_object=core,
            unk_token="[UNK]",
            bos_token="<s>",
            eos_token="</s>",
            pad_token="[PAD]",
            model_max_length=POSITIONS,
            model_input_names=["input_ids", "attention_mask"],
        )
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    names = ["input_ids", "attention_mask"]
    if architecture in ("bert", "electra", "deberta-v2"):
        names.insert(1, "token_type_ids")
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        model_max_length=POSITIONS,
        model_input_names=names,
    )


def config(architecture: str, *, layers: int = 2, classes: int = len(LABELS), heads: int = 2) -> Any:
    """Return the configuration of a tiny model, everything else as in the real ones."""
    from transformers import AutoConfig

    words = tokenizer(architecture)
    shape: dict[str, Any] = {
        "vocab_size": len(words),
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": POSITIONS,
        "pad_token_id": words.pad_token_id,
        "num_labels": classes,
    }
    if architecture == "distilbert":
        shape = {
            **{key: shape[key] for key in ("vocab_size", "max_position_embeddings", "pad_token_id", "num_labels")},
            "dim": WIDTH,
            "hidden_dim": 2 * WIDTH,
            "n_layers": layers,
            "n_heads": heads,
        }
    if architecture in ("roberta", "mpnet"):
        shape["max_position_embeddings"] = POSITIONS + 2
    if architecture == "electra":
        shape["embedding_size"] = WIDTH // 2
    if architecture == "deberta-v2":  # as DeBERTa-v3
        shape |= {
            "relative_attention": True,
            "position_buckets": 8,
            "pos_att_type": ["p2c", "c2p"],
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "position_biased_input": False,
            "type_vocab_size": 0,
        }
    if architecture == "modernbert":
        shape |= {"local_attention": 8, "global_attn_every_n_layers": 2}
        shape |= {"bos_token_id": None, "eos_token_id": None, "cls_token_id": words.cls_token_id}
        shape |= {"sep_token_id": words.sep_token_id}
    if architecture == "llama":
        shape |= {"num_key_value_heads": 1, "bos_token_id": words.bos_token_id, "eos_token_id": words.eos_token_id}
    return AutoConfig.for_model(architecture, **shape)


def build(
    architecture: str,
    folder: Path,
    *,
    choices: bool = False,
    layers: int = 2,
    classes: int = len(LABELS),
    heads: int = 2,
    seed: int = 0,
) -> Path:
    """Write a checkpoint of a classifier with random weights, and return its folder."""
    from transformers import AutoModelForMultipleChoice, AutoModelForSequenceClassification

    auto = AutoModelForMultipleChoice if choices else AutoModelForSequenceClassification
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = auto.from_config(config(architecture, layers=layers, classes=classes, heads=heads))
        spread(model)
    if not choices and classes == len(LABELS):
        model.config.id2label = dict(enumerate(LABELS))
        model.config.label2id = {name: i for i, name in enumerate(LABELS)}
    model.save_pretrained(folder)
    tokenizer(architecture).save_pretrained(folder)
    return folder


IMAGE_ARCHITECTURES = ("convnet", "resnet", "vit", "convnext")
"""Networks of images: our own, and those of transformers."""

SIDE = 8


def pixels(n: int, *, grey: bool = False, seed: int = 0) -> tuple[list[np.ndarray], list[str]]:
    """Return noisy images of 8 × 8 pixels, a bright bar in them, and their labels: where the bar is."""
    rng = np.random.default_rng(seed)
    found = rng.integers(0, 100, (n, SIDE, SIDE) if grey else (n, SIDE, SIDE, 3)).astype(np.uint8)
    for i, image in enumerate(found):
        at = 1 + 2 * (i % len(LABELS))
        image[at : at + 2] += 150
    return list(found), [LABELS[i % len(LABELS)] for i in range(n)]


def images(n: int, *, grey: bool = False, seed: int = 0) -> Examples:
    """Return labelled examples of such images."""
    return Examples.from_images(*pixels(n, grey=grey, seed=seed))


def image_folder(folder: Path, n: int, *, seed: int = 0) -> Path:
    """Write such images as PNG files, a folder for each class, and return the folder of all."""
    from PIL import Image

    for i, (image, label) in enumerate(zip(*pixels(n, seed=seed), strict=True)):
        (folder / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / label / f"{i:03}.png")
    return folder


def build_image(
    architecture: str, folder: Path, *, classes: int = len(LABELS), channels: int = 3, seed: int = 0
) -> Path:
    """Write a checkpoint of a classifier of tiny images with random weights, and return its folder."""
    from transformers import AutoConfig, AutoModelForImageClassification

    from calmix.models.convnets import ConvNetConfig
    from calmix.models.pixels import Preparation

    common: dict[str, Any] = {"num_channels": channels, "num_labels": classes}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if architecture == "convnet":
            config = ConvNetConfig(depths=[1, 1], widths=[8, 16], **common)
        elif architecture == "vit":
            shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
            config = AutoConfig.for_model("vit", image_size=SIDE, patch_size=4, **shape, **common)
        elif architecture == "resnet":
            shape = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
            config = AutoConfig.for_model("resnet", **shape, **common)
        else:
            shape = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "patch_size": 2}
            config = AutoConfig.for_model("convnext", image_size=SIDE, **shape, **common)
        model = AutoModelForImageClassification.from_config(config)
    if classes == len(LABELS):
        model.config.id2label = dict(enumerate(LABELS))
        model.config.label2id = {name: i for i, name in enumerate(LABELS)}
    model.save_pretrained(folder)
    Preparation(SIDE, SIDE, (0.4,) * channels, (0.3,) * channels).save_pretrained(folder)
    return folder


def spread(model: nn.Module) -> None:
    """Draw weights large enough that inputs matter: at the usual 0.02 all logits of a tiny model look alike."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.3)
            elif name.endswith("bias"):
                weight.normal_(std=0.1)


def without_dropout(model: nn.Module) -> nn.Module:
    """Set every dropout to 0, in place: a model in training mode then computes the same thing each time."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0  # type: ignore[assignment]
    return model
