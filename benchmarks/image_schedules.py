"""Schedules for networks of images that begin at random, and an SVM on the pixels, on few images of Fashion-MNIST.

    python benchmarks/image_schedules.py --data FOLDER --out results/default/images.jsonl

FOLDER holds the IDX files of Fashion-MNIST (Debian: `dataset-fashion-mnist`). The seed draws the training images; a
tenth of them is dev data. What is in the file already is not made again.
"""

import argparse
import gzip
import json
import struct
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import calmix

Images = tuple[NDArray[np.uint8], NDArray[np.uint8]]
SCHEDULES: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "0.1.0": {"batch_size": 128, "epochs": 30},
    "batch 64": {"batch_size": 64, "epochs": 30},
    "batch 32": {"batch_size": 32, "epochs": 30},
    "batch 32, lr 0.01": {"batch_size": 32, "epochs": 30, "lr": 0.01},
    "batch 32, lr 0.05": {"batch_size": 32, "epochs": 30, "lr": 0.05},
    "batch 32, AdamW": {"batch_size": 32, "epochs": 30, "optimizer": "adamw"},
    "lr 0.05": {"batch_size": 128, "epochs": 30, "lr": 0.05},
    "60 epochs": {"batch_size": 128, "epochs": 60},
    "batch 64, 60 epochs": {"batch_size": 64, "epochs": 60},
    "batch 32, 60 epochs": {"batch_size": 32, "epochs": 60},
}
TEST = 2000


def drawn(data: Path, name: str, rows: int, seed: list[int]) -> Images:
    """Return some images of a set, and their classes."""
    pixels, labels = (numbers(next(data.glob(f"{name}-{what}*"))) for what in ("images", "labels"))
    chosen = np.random.default_rng(seed).permutation(len(labels))[:rows]
    return pixels[chosen], labels[chosen]


def numbers(path: Path) -> NDArray[np.uint8]:
    """Return what an IDX file of bytes holds."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    dimensions = content[3]
    shape = struct.unpack(f">{dimensions}I", content[4 : 4 + 4 * dimensions])
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def written(images: Images, folder: Path) -> Path:
    """Write images as IDX files, and return the one with the pixels."""
    pixels, labels = images
    folder.mkdir()
    (folder / "train-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, len(labels)) + labels.tobytes())
    file = folder / "train-images-idx3-ubyte"
    file.write_bytes(struct.pack(">IIII", 2051, *pixels.shape) + pixels.tobytes())
    return file


def svm(train: Images, test: Images) -> dict[str, float]:
    """Return how often a support vector machine on the pixels is right."""
    from sklearn.svm import SVC

    flat = [pixels.reshape(len(pixels), -1) / 255 for pixels, _ in (train, test)]
    return {"accuracy": float(SVC(C=10).fit(flat[0], train[1]).score(flat[1], test[1]))}


def run(train: Images, test: Images, seed: int, options: dict[str, Any]) -> dict[str, Any]:
    """Return what a ResNet-18 reaches on dev and test images."""
    with tempfile.TemporaryDirectory() as name:
        files = [written(images, Path(name) / part) for part, images in (("train", train), ("test", test))]
        out = Path(name) / "run"
        made = calmix.train(files[0], test=files[1], model="resnet18", out=out, seed=seed, lean=True, **options)
        best = made.metrics["best_epoch"]
        dev = next(entry["dev"] for entry in made.metrics["epochs"] if entry["epoch"] == best)
        figures = made.metrics["splits"]["test"]["after"]
    return {
        "dev": {figure: dev[figure] for figure in ("accuracy", "nll-ts")},
        "test": {figure: figures[figure] for figure in ("accuracy", "nll", "ece")},
        "best_epoch": best,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=[*SCHEDULES, "SVM"], help="this one; repeatable")
    options = parser.parse_args()
    test = drawn(options.data, "t10k", TEST, [1])
    lines = options.out.read_text().splitlines() if options.out.is_file() else []
    known = {(found["name"], found["rows"], found["seed"]) for found in map(json.loads, lines)}
    for seed, name in product(range(options.seeds), options.only or [*SCHEDULES, "SVM"]):
        if (name, options.rows, seed) in known:
            continue
        train = drawn(options.data, "train", options.rows, [0, seed])
        if name == "SVM":
            found: dict[str, Any] = {"test": svm(train, test)}
        else:
            found = {"options": SCHEDULES[name], **run(train, test, seed, SCHEDULES[name])}
        record = {"name": name, "rows": options.rows, "seed": seed, **found}
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        print(f"{name:20} {seed}  {100 * found['test']['accuracy']:.1f} %", flush=True)


if __name__ == "__main__":
    main()
