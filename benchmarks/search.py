"""Seconds to find everyone's partners over a whole training set, and how many different partners that gives.

    python benchmarks/search.py --samples 550000

Synthetic logits of a trained classifier (most samples easy), halves at the median margin, as `search=set` of the
recipe `aum-saliency` has it: three classes by angle, more by comparing all pairs, two by the gradient of the head's
weights. The target is three classes: 5 % of an epoch, at 10,000 samples a second 2.5 s for 550,000 samples.
"""

import argparse
import json
import time
from typing import Any

import torch

from calmix.dynamics import distinct_partners, residual, saliency_map, set_partners, two_class_vectors


def synthetic(samples: int, classes: int, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return float32 logits, labels, and the half of each sample."""
    generator = torch.Generator(device).manual_seed(0)
    labels = torch.randint(classes, (samples,), generator=generator, device=device)
    logits = torch.randn(samples, classes, generator=generator, device=device)
    ease = 4 * torch.rand(samples, 1, generator=generator, device=device)
    logits += ease * torch.nn.functional.one_hot(labels, classes)
    gold = logits.gather(1, labels[:, None])
    margin = (gold - logits.scatter(1, labels[:, None], -torch.inf).amax(1, keepdim=True))[:, 0]
    return logits, labels, (margin >= margin.median()).to(torch.int8)


def measured(samples: int, classes: int, candidates: int, width: int, device: str) -> dict[str, Any]:
    logits, labels, halves = synthetic(samples, classes, device)
    generator = torch.Generator(device).manual_seed(1)
    hidden = torch.randn(samples, width, generator=generator, device=device) if classes == 2 else None

    def search() -> tuple[torch.Tensor, torch.Tensor]:
        if hidden is not None:
            vectors = two_class_vectors(residual(logits, labels), hidden)
        else:
            vectors = saliency_map(logits, labels)
        return set_partners(vectors, halves, generator=generator, candidates=candidates, three_classes=classes == 3)

    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        similar, dissimilar = search()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return {
        "samples": samples,
        "classes": classes,
        "candidates": candidates,
        "seconds": min(seconds),
        "share_of_an_epoch": min(seconds) / (samples / 10_000),
        "distinct_similar": distinct_partners(similar),
        "distinct_dissimilar": distinct_partners(dissimilar),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=550_000)
    parser.add_argument("--pairs", type=int, default=100_000, help="samples where all pairs are compared")
    parser.add_argument("--width", type=int, default=384, help="of the head's input, for two classes")
    parser.add_argument("--json")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{name}, torch {torch.__version__}; share: of an epoch at 10,000 samples/s")
    print("| samples | classes | drawn | seconds | share | distinct similar | distinct dissimilar |")
    print("|---|---|---|---|---|---|---|")
    found = []
    for samples, classes, candidates in (
        (options.samples, 3, 100),
        (options.samples, 3, 0),
        (options.pairs, 6, 100),
        (options.pairs, 2, 100),
    ):
        row = measured(samples, classes, candidates, options.width, device)
        found.append(row)
        print(
            f"| {samples:,} | {classes} | {candidates or 'none: the farthest of all'} | {row['seconds']:.2f} | "
            f"{row['share_of_an_epoch']:.1%} | {row['distinct_similar']:,} | {row['distinct_dissimilar']:,} |",
            flush=True,
        )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"device": name, "torch": torch.__version__, "rows": found}, file, indent=2)


if __name__ == "__main__":
    main()
