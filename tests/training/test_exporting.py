"""A classifier exported to ONNX gives the original's calibrated probabilities."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from calmix.calibration import Isotonic
from calmix.data import Examples
from calmix.errors import InputError
from calmix.models import Beside, Classifier, fold, label_names_of, load_trained, read_beside
from calmix.training import exporting, measure
from calmix.training.correcting import guarded
from calmix.training.exporting import export_onnx

onnxruntime = pytest.importorskip("onnxruntime")


def classifier(folder: Path) -> Classifier:
    model, tokenizer = load_trained(folder)
    fold(model, 2.0)
    return Classifier(model, tokenizer, label_names_of(model), Beside())


def probabilities(folder: Path, texts: list[str], tokenizer: Any) -> np.ndarray:
    """Return what a user of onnxruntime alone would get."""
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    batch = tokenizer(texts, padding=True, return_tensors="np")
    return session.run(["probabilities"], {name: batch[name] for name in names})[0]


def test_the_graph_gives_the_calibrated_probabilities_for_other_batch_sizes_and_lengths(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    original = classifier(checkpoint("bert"))
    export_onnx(original, tiny.examples(20), out=tmp_path / "onnx")
    texts, _ = tiny.texts(7, seed=9, shortest=1, longest=20)
    found = probabilities(tmp_path / "onnx", texts, original.tokenizer)
    np.testing.assert_allclose(found, original.predict_proba(texts), atol=1e-5)


@pytest.mark.parametrize("kind", ["pair", "choices"])
def test_pairs_and_choices_export_too(kind: str, checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    original = classifier(checkpoint("bert", choices=kind == "choices"))
    # More rows than a batch holds, so that the last is of another size.
    figures = export_onnx(original, tiny.examples(40, kind=kind), out=tmp_path / "onnx")
    assert figures["onnx"]["largest_difference"] < 1e-5
    assert figures["onnx"]["changed_predictions"] == 0
    assert figures["left_out"] is None
    assert not (tmp_path / "onnx" / "calmix.json").exists()


def test_what_only_calmix_applies_is_named_and_counts_among_the_originals_figures(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    examples = tiny.examples(30)
    plain = classifier(checkpoint("bert"))
    corrected = replace(plain, beside=Beside(recalibrator=Isotonic.fit(plain.logits(examples), examples.labels)))
    figures = export_onnx(corrected, examples, out=tmp_path / "onnx")
    assert figures["left_out"] == "isotonic"
    assert figures["original"]["figures"] == measure(corrected.probabilities(examples), examples.labels)
    assert figures["onnx"]["figures"]["nll"] == pytest.approx(
        measure(plain.probabilities(examples), examples.labels)["nll"], abs=1e-5
    )
    assert figures["original"]["figures"]["nll"] < figures["onnx"]["figures"]["nll"]
    assert figures["onnx"]["largest_difference"] < 1e-5


def test_the_names_of_the_labels_can_be_read_without_transformers(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    original = classifier(checkpoint("bert"))
    export_onnx(original, tiny.examples(12), out=tmp_path / "onnx")
    assert json.loads((tmp_path / "onnx" / "labels.json").read_text()) == list(original.label_names)


@pytest.mark.slow
def test_every_architecture_exports(architecture: str, checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    figures = export_onnx(classifier(checkpoint(architecture)), tiny.examples(12), out=tmp_path / "onnx")
    assert figures["onnx"]["largest_difference"] < 1e-4


def test_int8_is_measured_against_labels_beside_the_original(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    figures = export_onnx(classifier(checkpoint("bert")), tiny.examples(30), out=tmp_path / "onnx", int8=True)
    assert (tmp_path / "onnx" / "model-int8.onnx").is_file()
    assert figures["int8"]["figures"]["n"] == figures["original"]["figures"]["n"] == 30
    assert figures["int8"]["largest_difference"] > figures["onnx"]["largest_difference"]


def promising(folder: Path, examples: Examples) -> tuple[Classifier, Examples]:
    """Return a model with a threshold, and examples labelled so that it is right on most of them."""
    plain = classifier(folder)
    labels = plain.logits(examples).argmax(1).astype(np.int64)
    labels[::9] = (labels[::9] + 1) % 3
    examples = replace(examples, labels=labels)
    beside = guarded(plain.probabilities(examples), labels, 0.6)
    assert beside.threshold is not None
    return replace(plain, beside=beside), examples


def test_int8_has_a_threshold_of_its_own_fitted_to_labelled_rows(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    model, examples = promising(checkpoint("bert"), tiny.examples(90))
    figures = export_onnx(model, examples, out=tmp_path / "onnx", int8=True)
    # Quantised activations depend on who shares a batch: in the same batches.
    packed = model.encode(examples)
    probs = exporting._run(onnxruntime, tmp_path / "onnx" / "model-int8.onnx", packed, 3)
    own = guarded(probs / probs.sum(1, keepdims=True), examples.labels, 0.6)
    kept = json.loads((tmp_path / "onnx" / "calmix-int8.json").read_text())
    assert kept == figures["int8"]["guarantee"]
    assert kept["threshold"] == own.threshold.to_json()
    assert kept["sets"] == own.sets.to_json()
    beside = read_beside(tmp_path / "onnx")  # of the graph in floats
    assert (beside.threshold, beside.sets) == (model.beside.threshold, model.beside.sets)
    was = model.accepted(model.probabilities(examples))
    now = model.beside.threshold(probs / probs.sum(1, keepdims=True))
    assert figures["int8"]["changed_decisions"] == int((was != now).sum())
    assert figures["onnx"]["changed_decisions"] == 0
    assert "guarantee" not in figures["onnx"]


@pytest.mark.parametrize("why", ["not labelled", "trained on", "no threshold"])
def test_int8_has_no_threshold_that_rows_cannot_tell(checkpoint: Callable[..., Path], tmp_path: Path, why: str) -> None:
    model, examples = promising(checkpoint("bert"), tiny.examples(90))
    if why == "not labelled":
        examples = replace(examples, labels=np.full(90, -1))
    elif why == "no threshold":
        model = replace(model, beside=Beside())
    figures = export_onnx(model, examples, out=tmp_path / "onnx", int8=True, held_out=why != "trained on")
    assert "guarantee" not in figures["int8"]
    assert not (tmp_path / "onnx" / "calmix-int8.json").exists()
    assert ("changed_decisions" in figures["int8"]) == (why != "no threshold")


def test_a_graph_that_differs_is_not_kept(
    checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "_TOLERANCE", -1.0)
    with pytest.raises(InputError, match="differs from the model"):
        export_onnx(classifier(checkpoint("bert")), tiny.examples(12), out=tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


def test_a_folder_in_use_is_refused(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep me")
    with pytest.raises(InputError, match="not empty"):
        export_onnx(classifier(checkpoint("bert")), tiny.examples(12), out=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]
