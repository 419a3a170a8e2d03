"""A tiny random text classifier of every architecture that transformers has."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tiny
import torch
from transformers import AutoModelForSequenceClassification

from calmix.models import counts_from_padding

_SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "d_ff", "d_inner"), 48),
    **dict.fromkeys(("n_inner", "dff", "hidden_dim", "moe_intermediate_size", "ffn_hidden_size"), 48),
    **dict.fromkeys(("shared_expert_intermediate_size", "feed_forward_size"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_decoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "num_self_attention_heads", "num_cross_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "attention_head_size", "v_head_dim"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "rotary_dim", "qk_head_dim"), 4),
    **dict.fromkeys(("embedding_size", "classifier_hidden_size", "input_embedding_size", "pooler_hidden_size"), 32),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "adapter_rank"), 8),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "n_shared_experts", "n_group", "topk_group"), 1),
    **dict.fromkeys(
        ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "original_max_position_embeddings"), 128
    ),
    **dict.fromkeys(("layer_types", "mlp_layer_types", "no_rope_layers"), None),
    **dict.fromkeys(("sliding_window", "local_attention", "window_size"), 16),
}
"""What a size is called, here and there, and what it is made."""

_LATENT = {"num_key_value_heads": 4, "v_head_dim": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "head_dim": 4}
_LINEAR = ["linear_attention", "full_attention"]
_OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("axk2", "deepseek_v3", "minicpm3", "mistral4"), _LATENT),
    "axk1": {**_LATENT, "n_group": 1, "topk_group": 1, "n_routed_experts": 4},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
    "deepseek_v2": {**_LATENT, "num_experts_per_tok": 1},
    "esmc": {"num_key_value_heads": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4, "input_size": 32},
    "lilt": {"hidden_size": 48, "num_attention_heads": 4},
    "luke": {"entity_vocab_size": 8, "entity_emb_size": 8},
    "nemotron": {"num_key_value_heads": 2},
    "perceiver": {"d_latents": 32, "num_latents": 8, "num_self_attends_per_block": 2},
    "qwen3_5_text": {"layer_types": _LINEAR},
    "qwen3_next": {"layer_types": _LINEAR},
    "reformer": {
        "attn_layers": ["local", "lsh"],
        "axial_pos_embds_dim": [16, 16],
        "axial_pos_shape": [8, 16],
        "local_attn_chunk_length": 16,
        "lsh_attn_chunk_length": 16,
    },
    "roc_bert": {
        "pronunciation_vocab_size": 8,
        "shape_vocab_size": 8,
        "shape_embed_dim": 8,
        "pronunciation_embed_dim": 8,
    },
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "layers_block_type": ["mamba", "mamba", "hybrid", "hybrid"],
    },
    "zamba2": {"layers_block_type": ["mamba", "hybrid"], "num_key_value_heads": 4},
}


def types() -> list[str]:
    """Return the model types that a text classifier can have."""
    return sorted(_classes())


def tokenizer(kind: str) -> Any:
    """Return a tokenizer for a model type, which hands out segments whether its network reads them or not."""
    words = tiny.tokenizer("roberta" if counts_from_padding(SimpleNamespace(model_type=kind)) else "bert")
    words.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return words


def config(kind: str) -> Any:
    """Return the configuration of a tiny model, everything else as transformers has it by default."""
    words, cls = tokenizer(kind), _classes()[kind]
    shape = _shrunk(cls().to_dict(), _OWN.get(kind, {}))
    ids = {
        "vocab_size": len(words) + 4,  # some tokenizers are read with a token more
        "pad_token_id": words.pad_token_id,
        "bos_token_id": words.cls_token_id,
        "cls_token_id": words.cls_token_id,
        "eos_token_id": words.sep_token_id,
        "sep_token_id": words.sep_token_id,
        "decoder_start_token_id": words.cls_token_id,
    }
    for part in ("text_config", "encoder", "decoder"):
        if part in shape:
            shape[part] |= ids
            if "text_config" in shape[part]:
                shape[part]["text_config"] |= ids
    return cls(**ids, **shape, num_labels=len(tiny.LABELS))


def build(kind: str, folder: Path, *, seed: int = 0) -> Path:
    """Write a checkpoint of a classifier with random weights, and return its folder."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForSequenceClassification.from_config(config(kind))
        tiny.spread(model)
    assert sum(p.numel() for p in model.parameters()) < 3_000_000, f"{kind} is not tiny"
    model.config.id2label = dict(enumerate(tiny.LABELS))
    model.config.label2id = {name: i for i, name in enumerate(tiny.LABELS)}
    model.save_pretrained(folder)
    tokenizer(kind).save_pretrained(folder)
    return folder


def _classes() -> dict[str, Any]:
    mapping = AutoModelForSequenceClassification._model_mapping
    return {config.model_type: config for config in mapping.keys()}  # noqa: SIM118 (it iterates over nothing else)


def _shrunk(values: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and "model_type" in value:
            found[name] = _shrunk(value, _OWN.get(value["model_type"], {})) | {"model_type": value["model_type"]}
        elif name in _SIZES and (value is not None or name.endswith("head_dim")):
            found[name] = _SIZES[name]
    return found | own
