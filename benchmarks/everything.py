"""Every benchmark of speed, one after the other, and one table of all their ratios.

    python benchmarks/everything.py --data pairs.jsonl --out speed          (on a GPU: about half an hour)
    python benchmarks/everything.py --quick --out speed                     (a few minutes, for a first look)

Each is a script of its own, in a process of its own, whose competitors take turns or follow each other in one run; what
it found is OUT/NAME.json. Which ones there are depends on the machine: with a GPU those of captured steps, without one
those of the processor.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from calmix.data.corpus import corpus_path

HERE = Path(__file__).parent

Ratio = tuple[str, str, float]
"""What was measured, against what, and how many times that it is."""

RIVALS = ["Hugging Face Trainer", "plain torch loop"]


def against_rivals(rates: dict[str, float], rivals: Sequence[str]) -> Iterator[Ratio]:
    """Samples per second of each against the rivals before it, and of recipes against plain training."""
    for name, rate in rates.items():
        bases = rivals[: rivals.index(name)] if name in rivals else [*rivals, "erm"]
        for base in bases:
            if base in rates and base != name:
                yield f"{name}, samples/s", base, rate / rates[base]


def of_training(found: dict[str, Any]) -> Iterator[Ratio]:
    """Recipes against the Trainer, a plain loop and plain training."""
    rates = {name: value["samples_per_second"] for name, value in found.items() if isinstance(value, dict)}
    return against_rivals(rates, RIVALS)


def of_cpu(found: dict[str, Any]) -> Iterator[Ratio]:
    """The same, of a processor: beside rivals in float32 and in bf16."""
    for arithmetic, figures in found["beside_trainer_in"].items():
        rates = {name: value["samples_per_processor_second"] for name, value in figures.items()}
        yield from against_rivals(rates, [f"{rival}, {arithmetic}" for rival in RIVALS])


def of_guided(found: dict[str, Any]) -> Iterator[Ratio]:
    """Time of guided recipes: whole runs, epochs or samples."""
    for row in found["rows"]:
        if row["run"] != row["against"]:
            yield f"{row['run']}, time of {row['part']}", row["against"], row["ratio"]


def of_seeds(found: dict[str, Any]) -> Iterator[Ratio]:
    """Samples per second of several seeds together, in steps and in whole runs, and their time."""
    for count, ways in found.get("steps", {}).items():
        for way, rate in ways.items() if isinstance(ways, dict) else ():
            yield f"steps of {count} seeds, {way}, samples/s", "one seed", rate / found["steps"]["1"]
    for count, figures in found.items():
        if count.isdigit():
            yield f"{count} seeds together, samples/s", "one at a time", figures["gain"]
            yield f"{count} seeds together, whole time", "as many runs", figures["share_of_separate_runs"]


def of_commands(found: dict[str, Any]) -> Iterator[Ratio]:
    """Time of a study of several seeds."""
    yield f"calmix study of {found['seeds']} seeds, time", "as many calmix train", found["share_of_commands"]


def of_prediction(found: dict[str, Any]) -> Iterator[Ratio]:
    """Texts per second."""
    for name, figures in found["results"].items():
        if name.startswith("calmix"):
            yield f"{name} predicts, texts/s", f"transformers.{found['best']}", figures["against_best_pipeline"]


def of_metrics(found: dict[str, Any]) -> Iterator[Ratio]:
    """Speed of the calibration error, and memory beyond the input."""
    for size in sorted({(row["rows"], row["classes"], row["threads"]) for row in found["results"]}):
        rows = {row["way"]: row for row in found["results"] if (row["rows"], row["classes"], row["threads"]) == size}
        for mine in ("fast", "plain"):
            for base in ("torchmetrics", "netcal"):
                if mine in rows and base in rows:
                    what = f"ECE of {size[0]:,} × {size[1]:,}, {size[2]} thread{'s' * (size[2] > 1)}, {mine}, speed"
                    yield what, base, rows[base]["processor"] / max(rows[mine]["processor"], 1e-9)


def of_growth(found: dict[str, Any]) -> Iterator[Ratio]:
    """Exponents: 1 is linear."""
    for name, figures in found["growth"].items():
        for what, slope in figures["exponents"].items():
            if what in ("seconds", "read", "tokenise", "MiB"):
                yield f"{name}, {what}", f"grows with the power, up to {figures['sizes'][-1]:,}", slope


def of_distillation(found: dict[str, Any]) -> Iterator[Ratio]:
    """Time of a step with a teacher."""
    for name in ("cached", "asked in every step"):
        yield f"teacher {name}, time of a step", "plain training", found[name]["times_plain"]


def of_images(found: dict[str, Any]) -> Iterator[Ratio]:
    """Images per second."""
    rates = found["images_per_second"]
    for name, rate in rates.items():
        if name != "Hugging Face Trainer":
            yield f"{name}, images/s", "Hugging Face Trainer", rate / rates["Hugging Face Trainer"]
    if "input_mixup_costs" in found:
        yield "input-mixup on images, time", "erm", found["input_mixup_costs"]


def of_limits(found: dict[str, Any]) -> Iterator[Ratio]:
    """Time of a step against what the device could do."""
    for limit in ("arithmetic", "memory"):
        yield (
            f"a step of {found['recipe']}, time",
            f"its {limit} alone",
            found["step_ms"] / found[f"limit_of_{limit}_ms"],
        )


def of_study(found: dict[str, Any]) -> Iterator[Ratio]:
    """Time of a study of small runs."""
    yield f"a study of {found['runs']} runs, time", "its training loops", 1 + found["wall"]["beyond"]


@dataclass(frozen=True)
class Benchmark:
    """A script, how it is asked for a quick look, where it makes sense, and what its figures are."""

    ratios: Callable[[dict[str, Any]], Iterator[Ratio]]
    quick: Sequence[str]
    where: Sequence[str] = ("cuda", "cpu")
    takes: Sequence[str] = ("data", "model")
    needs: str | None = None
    """A package that is not among ours."""


BENCHMARKS = {
    "training": Benchmark(of_training, ["--warmup", "20", "--steps", "50"], where=("cuda",)),
    "cpu": Benchmark(of_cpu, ["--rows", "128"], where=("cpu",)),
    "limits": Benchmark(of_limits, ["--warmup", "2", "--steps", "5", "--side", "512"]),
    "guided": Benchmark(of_guided, ["--rows", "200", "--epochs", "2", "--rounds", "1"]),
    "seeds": Benchmark(
        of_seeds, ["--rows", "200", "--epochs", "1", "--seeds", "2", "--warmup", "5", "--steps", "5"], where=("cuda",)
    ),
    "commands": Benchmark(of_commands, ["--rows", "200", "--epochs", "1", "--seeds", "2"], where=("cuda",)),
    "distillation": Benchmark(of_distillation, ["--warmup", "3", "--steps", "3", "--rounds", "3"]),
    "prediction": Benchmark(of_prediction, ["--rows", "64", "--batch-sizes", "1,8"]),
    "images": Benchmark(
        of_images,
        ["--images", "512", "--side", "8", "--warmup", "2", "--steps", "10", "--workers", "0"],
        where=("cuda",),
        takes=(),
    ),
    "metrics": Benchmark(of_metrics, ["--rounds", "2", "--share", "0.01"], takes=(), needs="torchmetrics"),
    "study": Benchmark(of_study, ["--runs", "10"], takes=()),
    "growth": Benchmark(of_growth, ["--largest", "30000"], takes=()),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=str(corpus_path("train")), help="texts or pairs with labels")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--only", action="append", choices=list(BENCHMARKS), help="this one; repeatable")
    parser.add_argument("--quick", action="store_true", help="little of everything: whether it runs, not how fast")
    parser.add_argument("--out", type=Path, required=True, help="folder for what each of them found")
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options.out.mkdir(parents=True, exist_ok=True)
    failed, lines = [], ["| measured | against | ratio |", "|---|---|---|"]
    for name, benchmark in BENCHMARKS.items():
        if name not in (options.only or BENCHMARKS) or device not in benchmark.where:
            continue
        if benchmark.needs is not None and importlib.util.find_spec(benchmark.needs) is None:
            print(f"{name}: left out, since {benchmark.needs} is not installed\n", flush=True)
            continue
        file, began = options.out / f"{name}.json", time.perf_counter()
        words = [f"--{word}={getattr(options, word)}" for word in benchmark.takes]
        words += [*(benchmark.quick if options.quick else ()), f"--json={file}"]
        print(f"{name}: {' '.join(words)}", flush=True)
        ended = subprocess.run([sys.executable, HERE / f"{name}.py", *words], check=False)
        print(f"{name}: {time.perf_counter() - began:.0f} s\n", flush=True)
        if ended.returncode:
            failed.append(name)
            continue
        found = json.loads(file.read_text(encoding="utf-8"))
        lines += [f"| {what} | {base} | {ratio:.3g} |" for what, base, ratio in benchmark.ratios(found)]
    print("\n".join(lines))
    if failed:
        print(f"not measured, since they failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
