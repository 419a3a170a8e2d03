"""A calibrated classifier as ONNX, for onnxruntime, checked against the original."""

import logging
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calmix.calibration import Temperature
from calmix.data import Examples, write_json
from calmix.errors import InputError
from calmix.models import Classifier, Packed, Pixels, write_beside
from calmix.training.correcting import guarded
from calmix.training.evaluating import measure
from calmix.training.folder import PART, claim_empty

__all__ = ["export_onnx"]

# Float32 arithmetic in another order; anything above is a wrong export, not rounding.
_TOLERANCE = 1e-3
_BATCH = 32


class _Exported(nn.Module):
    """What the graph computes: calibrated logits and their softmax."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.model(**dict(zip(self.names, inputs, strict=True))).logits
        return logits, torch.softmax(logits, dim=-1)


def export_onnx(
    classifier: Classifier, examples: Examples, *, out: Path, int8: bool = False, held_out: bool = True
) -> dict[str, Any]:
    """Write `model.onnx`, the tokenizer and the labels to `out`; return how far it is from the original.

    The graph takes what the tokenizer gives, of any batch size and length (or pixels, of any batch size), and returns
    `logits` and `probabilities`, both calibrated. It is run on `examples` and refused if it differs from the original.
    `int8` adds `model-int8.onnx` with quantised weights: smaller, faster, and calibrated differently, so its
    figures are measured as well wherever the examples are labelled. A recalibrator beside the weights is not in the
    graph (`left_out` names it): probabilities are compared without it, the original's figures are with it.

    A threshold and prediction sets are copied beside `model.onnx` (`calmix.json`). They promise nothing of other
    confidences: those of `model-int8.onnx` are fitted to the examples, if they are labelled and were `held_out` from
    training, and written beside it (`calmix-int8.json`); otherwise it has none.
    """
    runtime = _runtime()
    packed = classifier.encode(examples)
    model = classifier.model.cpu().float()
    with claim_empty(out):
        logits = classifier.logits(examples)
        expected = np.asarray(Temperature(1.0)(logits))
        batch = next(_batches(packed))[1]
        scratch = out / PART
        scratch.mkdir()
        try:
            _export(model, batch, scratch / "model.onnx")
            files = {"onnx": scratch / "model.onnx"}
            if int8:
                files["int8"] = scratch / "model-int8.onnx"
                _quantise(runtime, files["onnx"], files["int8"])
            figures: dict[str, Any] = {"n": len(examples), "left_out": _left_out(classifier)}
            for name, file in files.items():
                probs = _run(runtime, file, packed, expected.shape[1])
                figures[name] = _compare(probs, expected, examples, file.stat().st_size)
                figures[name] |= _decided(probs, classifier, logits)
                if name == "int8" and held_out:
                    figures[name] |= _promised(probs, examples, classifier)
            if figures["onnx"]["largest_difference"] > _TOLERANCE:
                raise InputError(
                    f"the exported graph differs from the model by {figures['onnx']['largest_difference']:.2g} in "
                    "probability, so it was not kept: this architecture cannot be exported by this version of torch"
                )
            classifier.tokenizer.save_pretrained(scratch)
            model.config.save_pretrained(scratch)  # type: ignore[operator, union-attr]
            if classifier.label_names:  # a config leaves out names that are transformers' own, LABEL_0 and LABEL_1
                write_json(scratch / "labels.json", list(classifier.label_names))
            write_beside(scratch, classifier.beside)
            if "guarantee" in figures.get("int8", {}):
                write_json(scratch / "calmix-int8.json", figures["int8"]["guarantee"])
            for file in scratch.iterdir():
                file.rename(out / file.name)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    if (examples.labels >= 0).all():
        figures["original"] = {"figures": measure(classifier.beside.probabilities(logits), examples.labels)}
    return figures


def _left_out(classifier: Classifier) -> str | None:
    """Return the kind of the recalibrator that only calmix applies, if there is one."""
    recalibrator = classifier.beside.recalibrator
    return None if recalibrator is None else str(recalibrator.to_json()["kind"])


def _export(model: nn.Module, batch: dict[str, Tensor], path: Path) -> None:
    names = list(batch)
    dims = [torch.export.Dim(name) for name in ("batch", "choices", "length")]
    if "pixel_values" in batch:
        axes = {0: dims[0]}
        batch = {"pixel_values": batch["pixel_values"].contiguous()}
    else:
        axes = {0: dims[0], 1: dims[2]} if batch["input_ids"].dim() == 2 else {0: dims[0], 1: dims[1], 2: dims[2]}
    with _quiet():
        program = torch.onnx.export(
            _Exported(model, names).eval(),
            tuple(batch.values()),
            dynamo=True,
            dynamic_shapes=(tuple(axes for _ in names),),
            input_names=names,
            output_names=["logits", "probabilities"],
            verbose=False,
        )
        assert program is not None
        program.save(path)


def _quantise(runtime: Any, source: Path, target: Path) -> None:
    import onnx

    graph = onnx.load(str(source))
    # The exporter's notes on shapes between nodes disagree with what the quantiser infers for transposed weights.
    del graph.graph.value_info[:]
    with _quiet():
        runtime.quantization.quantize_dynamic(graph, target)


def _run(runtime: Any, file: Path, packed: Packed | Pixels, columns: int) -> NDArray[np.float64]:
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    probs = np.zeros((len(packed), columns))
    for rows, batch in _batches(packed):
        found = session.run(["probabilities"], {name: tensor.numpy() for name, tensor in batch.items()})[0]
        probs[rows, : found.shape[1]] = found
    return probs


def _batches(packed: Packed | Pixels) -> Iterator[tuple[NDArray[np.int64], dict[str, Tensor]]]:
    counts = np.zeros(len(packed), dtype=np.int64) if packed.counts is None else packed.counts
    for count in np.unique(counts):
        rows = np.flatnonzero(counts == count)
        for start in range(0, len(rows), _BATCH):
            part = rows[start : start + _BATCH]
            choices = None if packed.counts is None else int(count)
            yield part, packed.batch(torch.from_numpy(part), width=packed.width(part), choices=choices)


def _compare(
    probs: NDArray[np.float64], expected: NDArray[np.float64], examples: Examples, size: int
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "bytes": size,
        "largest_difference": float(np.abs(probs - expected).max()),
        "changed_predictions": int((probs.argmax(1) != expected.argmax(1)).sum()),
    }
    if (examples.labels >= 0).all():
        found["figures"] = measure(_normalised(probs), examples.labels)
    return found


def _decided(probs: NDArray[np.float64], classifier: Classifier, logits: NDArray[np.float32]) -> dict[str, Any]:
    """Return how many decisions to accept are others than the original's, by its threshold; nothing without one."""
    threshold = classifier.beside.threshold
    if threshold is None:
        return {}
    here, there = threshold(_normalised(probs)), threshold(classifier.beside.probabilities(logits))
    return {"changed_decisions": int(np.count_nonzero(here != there))}


def _promised(probs: NDArray[np.float64], examples: Examples, classifier: Classifier) -> dict[str, Any]:
    """Return a threshold and sets for these probabilities that promise what the original's do, if labels tell."""
    threshold = classifier.beside.threshold
    if threshold is None or not (examples.labels >= 0).all():
        return {}
    beside = guarded(_normalised(probs), examples.labels, threshold.accuracy)
    return {"guarantee": {key: value.to_json() for key, value in vars(beside).items() if value is not None}}


def _normalised(probs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return probabilities that sum to 1 in float64, too."""
    return np.asarray(probs / probs.sum(1, keepdims=True))


def _runtime() -> Any:
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxruntime.quantization
        import onnxscript  # noqa: F401
    except ImportError:
        raise InputError("exporting needs onnx, onnxscript and onnxruntime: pip install 'calmix[export]'") from None
    return onnxruntime


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back the exporters' notes to their own developers."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
