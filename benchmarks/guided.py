"""What guidance costs: guided recipes against plain training, per epoch and end to end, in turn on the same data.

    python benchmarks/guided.py --data pairs.jsonl --rows 20000 --json guided.json

Every run is a `calmix.train` in a process of its own, timed once everything is imported and the device is awake:
reading, tokenising, training, dev figures, temperature, saving. Medians over rounds; plain training is part of every
round. Targets: an epoch 1.10×, in two runs 2.1×, online 1.15×; partners over the whole set 1.05× of those in the batch.
"""

import argparse
import json
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

PLAIN: dict[str, Any] = {"recipe": "erm"}
AUM: dict[str, Any] = {"recipe": "aum-saliency"}
SET: dict[str, Any] = {"recipe": "aum-saliency", "options": {"search": "set"}}
# Name → what the run is, what is measured of it, against which other, and how much it may be.
RUNS: dict[str, tuple[dict[str, Any], str, str, float | None]] = {
    "erm": (PLAIN, "epoch", "erm", None),
    "aum-saliency, given a map": ({**AUM, "dynamics": "MAP"}, "epoch", "erm", 1.10),
    "informed-mixup, given a map": ({"recipe": "informed-mixup", "dynamics": "MAP"}, "epoch", "erm", 1.10),
    "tdmixup, given a map": ({"recipe": "tdmixup", "dynamics": "MAP"}, "sample", "erm", 1.10),
    "aum-saliency, whole set": ({**SET, "dynamics": "MAP"}, "epoch", "aum-saliency, given a map", 1.05),
    "aum-saliency, two runs": (AUM, "all", "erm", 2.1),
    "aum-saliency, online": ({**AUM, "online": True}, "all", "erm", 1.15),
    "aum-saliency, online, whole set": ({**SET, "online": True}, "all", "erm", 1.15),
    "tdmixup, online": ({"recipe": "tdmixup", "online": True}, "all", "erm", 1.15),
    "erm, recorded in a pass of its own": ({**PLAIN, "record": "evaluation"}, "all", "erm", None),
}


def timed(settings: dict[str, Any]) -> dict[str, float]:
    """Return the seconds of a whole run, of a median epoch after the first, and of a sample in it."""
    import torch

    from calmix.data import read_examples
    from calmix.data.gathering import sampled
    from calmix.models import load_for_training
    from calmix.training import train

    load_for_training(settings["model"], label_names=["no", "yes"])  # imports what it takes, which is not timed
    if torch.cuda.is_available():
        torch.zeros(1, device="cuda").sum().item()
    examples = sampled(read_examples(settings.pop("data")), settings.pop("rows"), 0)
    began = time.perf_counter()
    run = train(examples, **settings)
    whole = time.perf_counter() - began
    history = run.metrics["epochs"]
    if history[0]["epoch"] > 0:  # no head was fitted before
        history = [{"seconds": 0.0, "step": 0}, *history]
    ends, steps = [entry["seconds"] for entry in history], [entry["step"] for entry in history]
    later = range(1, len(ends) - 1) if len(ends) > 2 else range(len(ends) - 1)
    epochs = [(ends[e + 1] - ends[e], steps[e + 1] - steps[e]) for e in later]
    epoch = statistics.median(seconds for seconds, _ in epochs)
    step = statistics.median(seconds / count for seconds, count in epochs)
    return {"all": whole, "epoch": epoch, "sample": step / settings["batch_size"]}


def alone(settings: dict[str, Any]) -> dict[str, float]:
    """Return what `timed` finds in a process that has done nothing else."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(timed, settings).result()


def main() -> None:
    from calmix.data.corpus import corpus_path

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=str(corpus_path("train")))
    parser.add_argument("--rows", type=int, default=20_000, help="of the data, at most")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only",
        action="append",
        help="this run, or those with this in their names (and erm)",
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    about = {"device": device, "torch": torch.__version__, "epochs": options.epochs, "batch_size": options.batch_size}
    about["samples"] = options.rows
    print(", ".join(f"{name} {value}" for name, value in about.items()), flush=True)
    only = options.only or [""]
    named = {name for name in RUNS if any(name == part or (part in name and part not in RUNS) for part in only)}
    wanted = {name: run for name, run in RUNS.items() if name == "erm" or name in named}
    seconds: dict[str, list[dict[str, float]]] = {name: [] for name in wanted}
    common = {
        "data": options.data,
        "rows": options.rows,
        "model": options.model,
        "epochs": options.epochs,
        "batch_size": options.batch_size,
        "select": "none",
    }
    with tempfile.TemporaryDirectory() as scratch:
        for turn in range(options.rounds):
            for name, (run, *_) in wanted.items():
                # The plain run of the first round is the map that guides the others.
                given = {key: f"{scratch}/0-erm" if value == "MAP" else value for key, value in run.items()}
                out = f"{scratch}/{turn}-{name.replace(' ', '-')}"
                seconds[name].append(alone({**common, **given, "out": out}))
                found = seconds[name][-1]
                print(f"{name:36} whole {found['all']:8.2f} s   an epoch {found['epoch']:8.3f} s", flush=True)
    print("\n| run | measured | seconds | against | ratio | target |\n|---|---|---|---|---|---|")
    rows = []
    for name, (_, part, base, target) in wanted.items():
        if base not in wanted:
            continue
        mine = [found[part] for found in seconds[name]]
        ratio = statistics.median(a / b[part] for a, b in zip(mine, seconds[base], strict=True))
        rows.append({"run": name, "part": part, "seconds": mine, "against": base, "ratio": ratio, "target": target})
        wished = "" if target is None else f"{target:.2f}×"
        print(f"| {name} | {part} | {statistics.median(mine):.4g} | {base} | {ratio:.3f}× | {wished} |")
    if options.json:
        options.json.write_text(json.dumps({**about, "rows": rows, "seconds": seconds}, indent=1))


if __name__ == "__main__":
    main()
