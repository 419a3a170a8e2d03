"""A head is fitted to every architecture of transformers' text classifiers, and the network then says what it says."""

from pathlib import Path

import architectures
import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from calmix.errors import InputError
from calmix.models import anatomy, encode, fit_head_to, load_with_head, predict_logits

pytestmark = pytest.mark.slow

AVERAGED = {
    *("bert", "camembert", "electra", "ernie", "roberta", "roc_bert", "xlm-roberta", "distilbert", "data2vec-text"),
    *("ibert", "layoutlm", "layoutlmv3", "lilt", "luke", "markuplm", "rembert", "roformer", "tapas"),
}
"""Those that docs say are given a layer that takes the mean."""


def _bare(kind: str, folder: Path) -> Path:
    """Write a tiny network of a kind without its head, as pretrained ones come."""
    architectures.build(kind, folder)
    model = load_with_head(str(folder), label_names=tiny.LABELS).model
    file, head = folder / "model.safetensors", anatomy(model).head
    save_file({k: v for k, v in load_file(file).items() if not k.startswith(f"{head}.")}, file, {"format": "pt"})
    return folder


@pytest.mark.parametrize("kind", [kind for kind in architectures.types() if kind != "layoutlmv2"])
def test_a_network_says_what_its_fitted_head_says(kind: str, tmp_path: Path) -> None:
    examples = tiny.examples(24)
    try:
        folder = _bare(kind, tmp_path / "model")
        before = len(anatomy(load_with_head(str(folder), label_names=examples.label_names).model).layers)
    except InputError:  # those that are not trained at all
        return
    loaded = load_with_head(str(folder), label_names=examples.label_names, pooling="mean")
    packed = encode(examples, loaded.tokenizer, max_length=64)
    labels = torch.from_numpy(examples.labels)
    head = fit_head_to(loaded.model, packed, labels, dev=(packed, examples.labels), set_inner=True)
    head.put_into(loaded.model)
    said, expected = predict_logits(loaded.model, packed), head.dev_logits
    assert expected is not None
    np.testing.assert_allclose(said, expected, rtol=1e-3, atol=2e-3 * float(np.ptp(expected)))
    assert loaded.is_bare
    assert len(anatomy(loaded.model).layers) - before == (1 if kind in AVERAGED else 0)
