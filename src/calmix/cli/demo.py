"""`calmix demo`: the default beside plain fine-tuning, on messages whose true probabilities are known."""

from pathlib import Path
from typing import Annotated, Any

import typer

from calmix.cli.showing import console_for, note, print_json, training_bar

__all__ = ["demo"]

# What most people do: the settings of the Hugging Face Trainer, and a head that starts from random numbers.
_PLAIN: dict[str, Any] = {"head": "random", "pooling": "first", "epochs": 3, "batch_size": 8, "lr": 5e-5}
_RUNS: dict[str, dict[str, Any]] = {"plain": _PLAIN, "calmix": {}}
_SHOWN = {"plain": "plain fine-tuning", "calmix": "calmix"}


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the two runs.")] = Path("demo-run"),
    model: Annotated[str, typer.Option(help="Pretrained encoder.")] = "minilm",
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the data, of both. Default: what each chooses.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides everything random.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Train on the shipped customer messages, plainly and as calmix does by default, and compare with the truth.

    Plainly is with a random head, three epochs at 5e-5 in batches of 8, as the Hugging Face Trainer has it. Both get a
    temperature. The true probabilities of every message are known, so the last column measures what others can only
    estimate: how far the predicted probabilities are from the true ones.
    """
    from calmix.data.corpus import corpus_path
    from calmix.training import train

    figures: dict[str, Any] = {}
    for name, settings in _RUNS.items():
        if not as_json:
            note(f"training: {_SHOWN[name]}")
        with training_bar(quiet=as_json) as bar:
            run = train(
                corpus_path("train"),
                dev=corpus_path("dev"),
                test=corpus_path("test"),
                ood={"colloquial": corpus_path("ood")},
                model=model,
                seed=seed,
                out=out / name,
                on_progress=bar,
                on_note=lambda _: None,
                **{**settings, **({} if epochs is None else {"epochs": epochs})},
            )
        figures[name] = _with_truth(run.folder, run.metrics)
    page = _pages(out)
    if as_json:
        print_json(figures)
        return
    _print(figures)
    print(f"both on one page: {page} (and report.html of each run)")
    print(f"runs and models: {out}")


def _pages(out: Path) -> Path:
    """Write the page of each run, and of both; return the last."""
    from calmix.report import write_comparison, write_run_page

    for name in _RUNS:
        write_run_page(out / name)
    return write_comparison([out / name for name in _RUNS], out / "comparison.html")


def _with_truth(folder: Path, metrics: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of both test sets, before and after temperature, with the distance to the truth."""
    import numpy as np

    from calmix.calibration import Temperature
    from calmix.data import read_examples
    from calmix.data.corpus import corpus_path, truth
    from calmix.metrics import truth_distance
    from calmix.training import read_predictions

    found: dict[str, Any] = {}
    for name, split in (("test", "test"), ("ood-colloquial", "ood")):
        true = truth(read_examples(corpus_path(split)))
        probs, _, table = read_predictions(folder / f"predictions-{name}.parquet")
        raw = Temperature(1.0)(np.array(table["logits"].to_pylist()))
        for stage, said in (("before", raw), ("after", probs)):
            distance = truth_distance(said, true)
            found.setdefault(name, {})[stage] = {**metrics["splits"][name][stage], "truth_distance": distance}
    return found


def _print(figures: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("messages", "training"):
        table.add_column(name)
    for name in ("accuracy", "ECE", "NLL", "to truth"):
        table.add_column(name, justify="right")
    for split, shown in (("test", "formal"), ("ood-colloquial", "colloquial")):
        for run, found in figures.items():
            f = found[split]["after"]
            cells = (f"{f['accuracy']:.1%}", f"{f['ece']:.1%}", f"{f['nll']:.3f}", f"{f['truth_distance']:.3f}")
            table.add_row(shown, _SHOWN[run], *cells)
        table.add_section()
    console_for(table)[0].print(table)
    print(
        "Both with a temperature fitted on dev. formal: as in training; colloquial: out of domain. to truth: mean "
        "distance (total variation) between predicted and true class probabilities."
    )
