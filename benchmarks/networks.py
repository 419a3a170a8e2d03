"""Networks of the usual sizes with random weights, to measure speed where nothing can be downloaded.

    python benchmarks/networks.py roberta-base build/networks/roberta-base

The tokenizer is that of the model given as --tokenizer: texts become as long as they are for MiniLM.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from calmix.models import resolve

_BASE = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
}
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert-base": ("bert", {**_BASE, "vocab_size": 30_522}),
    "roberta-base": ("roberta", {**_BASE, "vocab_size": 50_265, "max_position_embeddings": 514, "type_vocab_size": 1}),
    "distilbert-base": ("distilbert", {"vocab_size": 30_522}),
    "mpnet-base": ("mpnet", {**_BASE, "vocab_size": 30_527, "max_position_embeddings": 514}),
    "modernbert-base": ("modernbert", {}),
    "deberta-v3-base": (
        "deberta-v2",
        {
            **_BASE,
            "vocab_size": 128_100,
            "relative_attention": True,
            "position_buckets": 256,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
            "max_relative_positions": -1,
            "type_vocab_size": 0,
        },
    ),
    "qwen3-0.6b": (
        "qwen3",
        {
            "vocab_size": 30_522,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
        },
    ),
}
"""By name: the architecture, and where its configuration differs from the library's default. Sizes as released, but
for the decoder's vocabulary, which is the tokenizer's."""


def build(name: str, out: Path, *, tokenizer: str = "minilm") -> None:
    """Write a checkpoint of a network with random weights."""
    kind, settings = NETWORKS[name]
    words = AutoTokenizer.from_pretrained(resolve(tokenizer))
    torch.manual_seed(0)
    special = {"pad_token_id": words.pad_token_id, "bos_token_id": None, "eos_token_id": words.sep_token_id}
    if kind == "modernbert":
        special |= {"cls_token_id": words.cls_token_id, "sep_token_id": words.sep_token_id, "bos_token_id": 101}
    config = AutoConfig.for_model(kind, num_labels=3, **settings, **special)
    model = AutoModelForSequenceClassification.from_config(config)
    words.model_max_length = min(words.model_max_length, 512)
    model.save_pretrained(out)
    words.save_pretrained(out)
    print(f"{out}: {name}, {sum(p.numel() for p in model.parameters()):,} parameters")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokenizer", default="minilm")
    options = parser.parse_args()
    build(options.network, options.out, tokenizer=options.tokenizer)


if __name__ == "__main__":
    main()
