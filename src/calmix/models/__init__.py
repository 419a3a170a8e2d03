"""Checkpoints in and out, and where in them the embeddings, layers and head are."""

from calmix.models.anatomy import Anatomy, anatomy, averages_scores, head_of, reads_pixels, scale_head
from calmix.models.averaging import columns_for, mean_logits
from calmix.models.beside import Beside, read_beside, write_beside
from calmix.models.classifier import KIND, Classifier, checkpoint_of, load_one, log_probabilities
from calmix.models.dropping import Dropout
from calmix.models.encoding import Packed, counts_from_padding, depends_on_padding, encode, usable_length
from calmix.models.ensembles import Ensemble, Predictor, load, save_ensemble
from calmix.models.fitted_head import FACTOR, FittedHead, HeadStart, fit_head_to
from calmix.models.fitting import HeadFit, fit_head
from calmix.models.folding import fold, folded_temperature
from calmix.models.loading import (
    SMALL,
    begins_random,
    identity,
    is_multiple_choice,
    label_names_of,
    load_for_training,
    load_trained,
    load_with_head,
    resolve,
    save,
    width_of,
)
from calmix.models.mean_pooling import Pooling, add_mean_pooling
from calmix.models.outlining import outline
from calmix.models.pixels import Augment, Pixels, Preparation, measured, pack_images
from calmix.models.predicting import Arithmetic, predict_logits
from calmix.models.reading import read_for
from calmix.models.sites import Edit, Site, head_input, last_tokens, pooled, rewriting, site_of_layer
from calmix.models.vision import load_for_images, preparation_for
from calmix.models.vocabulary import spelling_notes
from calmix.models.wordlevel import is_sentence_cnn, with_vectors, word_notes

__all__ = [
    "FACTOR",
    "KIND",
    "SMALL",
    "Anatomy",
    "Arithmetic",
    "Augment",
    "Beside",
    "Classifier",
    "Dropout",
    "Edit",
    "Ensemble",
    "FittedHead",
    "HeadFit",
    "HeadStart",
    "Packed",
    "Pixels",
    "Pooling",
    "Predictor",
    "Preparation",
    "Site",
    "add_mean_pooling",
    "anatomy",
    "averages_scores",
    "begins_random",
    "checkpoint_of",
    "columns_for",
    "counts_from_padding",
    "depends_on_padding",
    "encode",
    "fit_head",
    "fit_head_to",
    "fold",
    "folded_temperature",
    "head_input",
    "head_of",
    "identity",
    "is_multiple_choice",
    "is_sentence_cnn",
    "label_names_of",
    "last_tokens",
    "load",
    "load_for_images",
    "load_for_training",
    "load_one",
    "load_trained",
    "load_with_head",
    "log_probabilities",
    "mean_logits",
    "measured",
    "outline",
    "pack_images",
    "pooled",
    "predict_logits",
    "preparation_for",
    "read_beside",
    "read_for",
    "reads_pixels",
    "resolve",
    "rewriting",
    "save",
    "save_ensemble",
    "scale_head",
    "site_of_layer",
    "spelling_notes",
    "usable_length",
    "width_of",
    "with_vectors",
    "word_notes",
    "write_beside",
]
