"""Checkpoints in and out, and where in them the embeddings, layers and head are."""

from calmix.models.anatomy import Anatomy, anatomy, head_of
from calmix.models.encoding import Packed, encode, usable_length
from calmix.models.folding import fold, folded_temperature
from calmix.models.loading import (
    identity,
    is_multiple_choice,
    label_names_of,
    load_for_training,
    load_trained,
    resolve,
    save,
)
from calmix.models.predicting import predict_logits
from calmix.models.sites import Edit, Site, head_input, pooled, rewriting, site_of_layer

__all__ = [
    "Anatomy",
    "Edit",
    "Packed",
    "Site",
    "anatomy",
    "encode",
    "fold",
    "folded_temperature",
    "head_input",
    "head_of",
    "identity",
    "is_multiple_choice",
    "label_names_of",
    "load_for_training",
    "load_trained",
    "pooled",
    "predict_logits",
    "resolve",
    "rewriting",
    "save",
    "site_of_layer",
    "usable_length",
]
