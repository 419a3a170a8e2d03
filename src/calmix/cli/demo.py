"""`calmix demo`: plain training and mixup side by side, on messages whose true probabilities are known."""

from pathlib import Path
from typing import Annotated, Any

import typer

from calmix.cli.showing import console_for, note, print_json, training_bar

__all__ = ["demo"]

_RECIPES = ("erm", "input-mixup")


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the two runs.")] = Path("demo-run"),
    model: Annotated[str, typer.Option(help="Pretrained encoder.")] = "minilm",
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 3,
    seed: Annotated[int, typer.Option(help="Decides everything random.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Train on the shipped customer messages, plainly and with mixup, and compare with the truth.

    The true probabilities of every message are known, so the last columns measure what others can only estimate:
    how far the predicted probabilities are from the true ones.
    """
    from calmix.data.corpus import corpus_path
    from calmix.training import train

    figures: dict[str, Any] = {}
    for recipe in _RECIPES:
        if not as_json:
            note(f"training with {recipe}")
        with training_bar(quiet=as_json) as bar:
            run = train(
                corpus_path("train"),
                dev=corpus_path("dev"),
                test=corpus_path("test"),
                ood={"colloquial": corpus_path("ood")},
                model=model,
                recipe=recipe,
                epochs=epochs,
                lr=2e-4,
                seed=seed,
                out=out / recipe,
                on_progress=bar,
                on_note=lambda _: None,
            )
        figures[recipe] = _with_truth(run.folder, run.metrics)
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

    for recipe in _RECIPES:
        write_run_page(out / recipe)
    return write_comparison([out / recipe for recipe in _RECIPES], out / "comparison.html")


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
    for name in ("messages", "recipe", "scaled"):
        table.add_column(name)
    for name in ("accuracy", "ECE", "OE", "NLL", "to truth"):
        table.add_column(name, justify="right")
    for split, shown in (("test", "formal"), ("ood-colloquial", "colloquial")):
        for recipe, found in figures.items():
            for stage, temperature in (("before", "no"), ("after", "yes")):
                f = found[split][stage]
                table.add_row(
                    shown,
                    recipe,
                    temperature,
                    f"{f['accuracy']:.1%}",
                    f"{f['ece']:.1%}",
                    f"{f['oe']:.1%}",
                    f"{f['nll']:.3f}",
                    f"{f['truth_distance']:.3f}",
                )
        table.add_section()
    console_for(table)[0].print(table)
    print(
        "formal: as in training; colloquial: out of domain. scaled: by the temperature fitted on dev. to truth: mean "
        "distance (total variation) between predicted and true class probabilities."
    )
