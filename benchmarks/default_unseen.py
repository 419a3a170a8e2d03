"""The default on data that nobody had looked at when it was fixed: sentiment in four domains, each judged on all.

    pip download --no-deps --no-binary :all: vaderSentiment==3.3.2
    tar xzf vaderSentiment-3.3.2.tar.gz && tar xzf vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz
    python benchmarks/default_unseen.py hutto_ICWSM_2014 --out OUT --seeds 3

The package has sentences from Amazon reviews, newspaper editorials, tweets and film reviews with the mean score of
twenty people (Hutto & Gilbert 2014): negative below −0.5, positive above 0.5, neutral between. `auto` is trained on
each domain, and judged there and on the three others. Plain training with a temperature is the same run as
transformers alone reads it, with a temperature fitted on dev: `auto` trains as `erm` does.

What is there of OUT is not made again.
"""

import argparse
import csv
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from default_figures import figures
from numpy.typing import NDArray

import calmix
from calmix.calibration import Temperature
from calmix.data import read_table

FILES = {"amazon": "amazonReviewSnippets", "editorials": "nytEditorialSnippets", "tweets": "tweets",
         "films": "movieReviewSnippets"}  # fmt: skip
CLASSES = ("negative", "neutral", "positive")
MOST = 8000
RESAMPLED = 1000
WAYS = ("erm", "erm + TS", "auto", "all seeds averaged + TS")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="hutto_ICWSM_2014")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    split_files(asked.folder, asked.out)
    for seed in range(asked.seeds):
        for name in FILES:
            make(asked.out, name, seed, asked.model)
    found = judge({name: [said(asked.out, name, seed) for seed in range(asked.seeds)] for name in FILES})
    print("\n".join(shown(found)))
    if asked.json:
        asked.json.write_text(json.dumps({"seeds": asked.seeds, "model": Path(asked.model).name, **found}, indent=1))


def split_files(folder: Path, out: Path) -> None:
    """Write train (60 %), dev (15 %) and test (25 %) of each domain, sentences said once."""
    out.mkdir(parents=True, exist_ok=True)
    for name, file in FILES.items():
        lines = (folder / f"{file}_GroundTruth.txt").read_bytes().decode("utf-8", "replace").split("\n")
        parts = [line.rstrip("\r").split("\t") for line in lines]
        rows = [(part[2].strip(), label(float(part[1]))) for part in parts if len(part) == 3 and part[2].strip()]
        rows = list(dict.fromkeys(rows))
        random.Random(0).shuffle(rows)
        rows = rows[:MOST]
        ends = {"train": (0, 0.6), "dev": (0.6, 0.75), "test": (0.75, 1)}
        for split, (start, end) in ends.items():
            with (out / f"{name}-{split}.csv").open("w", newline="", encoding="utf-8") as stream:
                writer = csv.writer(stream)
                writer.writerow(["text", "label"])
                writer.writerows(rows[int(start * len(rows)) : int(end * len(rows))])


def label(score: float) -> str:
    return "negative" if score < -0.5 else "positive" if score > 0.5 else "neutral"


def sets_of(name: str) -> dict[str, str]:
    """Return the files a run is judged on, by the names their predictions have in its folder."""
    elsewhere = {f"ood-{other}": f"{other}-test.csv" for other in FILES if other != name}
    return {"dev": f"{name}-dev.csv", "test": f"{name}-test.csv", **elsewhere}


def make(out: Path, name: str, seed: int, model: str) -> None:
    """Train one run, and keep what transformers alone reads in it."""
    run = out / "runs" / f"{name}-{seed}"
    if not (run / "metrics.json").is_file():
        files = {part: str(out / file) for part, file in sets_of(name).items()}
        ood = {part.removeprefix("ood-"): file for part, file in files.items() if part.startswith("ood-")}
        train = str(out / f"{name}-train.csv")
        calmix.train(
            train, dev=files["dev"], test=files["test"], ood=ood, model=model, recipe="auto", seed=seed, out=run
        )
    if not (run / "raw.npz").is_file():
        np.savez(run / "raw.npz", **{part: logits(run / "model", out / file) for part, file in sets_of(name).items()})
    print(f"{name}, seed {seed}", flush=True)


@torch.inference_mode()
def logits(checkpoint: Path, file: Path, batch: int = 64) -> NDArray[np.float32]:
    """Return what transformers alone makes of the texts: the network with one temperature for all."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(checkpoint).eval()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    texts = read_table(file)["text"].to_pylist()
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    found = np.empty((len(texts), len(CLASSES)), dtype=np.float32)
    for start in range(0, len(texts), batch):
        rows = order[start : start + batch]
        how = {"padding": True, "truncation": True, "max_length": 256, "return_tensors": "pt"}
        found[rows] = model(**tokenizer([texts[row] for row in rows], **how)).logits.numpy()
    return found


def said(out: Path, name: str, seed: int) -> dict[str, tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]]:
    """Return plain logits, the default's probabilities and labels of each file."""
    run = out / "runs" / f"{name}-{seed}"
    raw, found = np.load(run / "raw.npz"), {}
    for part in sets_of(name):
        table = read_table(run / f"predictions-{part}.parquet")
        probs = np.stack([table[f"p_{each}"].to_numpy() for each in CLASSES], 1)
        labels = np.array([CLASSES.index(each) for each in table["label"].to_pylist()])
        found[part] = (raw[part].astype(np.float64), probs, labels)
    return found


def judge(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the figures of every way on every file, and differences of the means with intervals by resampled rows."""
    rng, rows, means = np.random.default_rng(0), [], {}
    for name, seeds in runs.items():
        fits = [Temperature.fit(sets["dev"][0], sets["dev"][2]) for sets in seeds]
        average = {part: np.log(np.mean([softmax(sets[part][0]) for sets in seeds], axis=0)) for part in seeds[0]}
        together = Temperature.fit(average["dev"], seeds[0]["dev"][2])
        for part in seeds[0]:
            if part == "dev":
                continue
            labels = seeds[0][part][2]
            ways = {
                "erm": [softmax(sets[part][0]) for sets in seeds],
                "erm + TS": [np.asarray(fit(sets[part][0])) for fit, sets in zip(fits, seeds, strict=True)],
                "auto": [sets[part][1] for sets in seeds],
                "all seeds averaged + TS": [np.asarray(together(average[part]))],
            }
            drawn = [np.arange(len(labels)), *rng.integers(0, len(labels), (RESAMPLED, len(labels)))]
            for way, each in ways.items():
                whole = [figures(probs, labels) for probs in each]
                figure = {
                    key: float(np.mean([one[key] for one in whole])) for key in ("accuracy", "ece", "nll", "brier")
                }
                judged = name if part == "test" else part.removeprefix("ood-")
                rows.append({"trained_on": name, "judged_on": judged, "way": way, **figure})
                losses = [-np.log(probs[np.arange(len(labels)), labels]) for probs in each]
                means[name, part, way] = np.mean([[loss[pick].mean() for pick in drawn] for loss in losses], axis=0)
    return {"figures": rows, "nll_differences": [difference(means, *pair) for pair in pairs()]}


def pairs() -> list[tuple[str, str, bool]]:
    return [("auto", other, elsewhere) for elsewhere in (False, True) for other in ("erm + TS", WAYS[-1])]


def difference(means: dict[tuple[str, str, str], Any], way: str, other: str, elsewhere: bool) -> dict[str, Any]:
    """Return the mean difference in NLL of two ways, in domain or elsewhere, with a 95 % interval."""
    places = {(name, part) for name, part, _ in means if (part != "test") == elsewhere}
    gaps = np.mean([means[(*place, way)] - means[(*place, other)] for place in sorted(places)], axis=0)
    low, high = np.quantile(gaps[1:], (0.025, 0.975))
    where = "elsewhere" if elsewhere else "in domain"
    return {
        "where": where,
        "way": way,
        "against": other,
        "mean": float(gaps[0]),
        "low": float(low),
        "high": float(high),
    }


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(Temperature(1.0)(scores))


def shown(found: dict[str, Any]) -> list[str]:
    lines = ["| | | accuracy | ECE | NLL |", "|---|---|---|---|---|"]
    for where in ("in domain", "elsewhere"):
        for way in WAYS:
            rows = [row for row in found["figures"] if row["way"] == way]
            rows = [row for row in rows if (row["trained_on"] == row["judged_on"]) == (where == "in domain")]
            accuracy, ece, nll = (np.mean([row[key] for row in rows]) for key in ("accuracy", "ece", "nll"))
            lines.append(f"| {where} | {way} | {100 * accuracy:.2f} | {100 * ece:.2f} | {nll:.4f} |")
    for gap in found["nll_differences"]:
        lines.append(f"NLL {gap['where']}, {gap['way']} minus {gap['against']}: {gap['mean']:+.4f} "
                     f"[{gap['low']:+.4f}, {gap['high']:+.4f}]")  # fmt: skip
    return lines


if __name__ == "__main__":
    main()
