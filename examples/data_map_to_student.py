"""From a data map to a calibrated student, after Hosseini & Caragea: map, informed-mixup teacher, distillation.

    python examples/data_map_to_student.py --out runs/emotions

Each stage is a folder below --out, and is not made again when it is there: stop and go on as you like.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import calmix
from calmix.data import read_examples
from calmix.data.corpus import corpus_path
from calmix.training import FinishedRun, survey


def main(arguments: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=str(corpus_path("train")), help="a table with a text and a label column")
    parser.add_argument("--dev", default=str(corpus_path("dev")), help="data to choose epochs and temperatures by")
    parser.add_argument("--ood", default=str(corpus_path("ood")), help="data from elsewhere, to judge by")
    parser.add_argument("--mapper", default="minilm", help="the model that makes the map; the paper: roberta-base")
    parser.add_argument("--teacher", default="minilm", help="the model that becomes the teacher")
    parser.add_argument("--student", default="minilm", help="the model that becomes the student")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(arguments)
    common: dict[str, Any] = {"epochs": args.epochs, "lr": args.lr}
    judged: dict[str, Any] = {"dev": args.dev, "ood": {"elsewhere": args.ood}, "bins": 10}

    # Which samples are easy, ambiguous or hard: told by a model that has nothing to do with the others.
    try:
        survey(read_examples(args.data), model=args.mapper, out=args.out / "map", **common)
    except FinishedRun:
        print(f"{args.out / 'map'}: is there")

    # The teacher: all samples, and mixes of easy with ambiguous ones; labels smoothed, temperature folded in.
    teacher = calmix.train(
        args.data,
        model=args.teacher,
        recipe="informed-mixup",
        options={"smoothing": 0.1},
        dynamics=args.out / "map",
        out=args.out / "teacher",
        on_note=print,
        **common,
        **judged,
    )

    # The student: nothing mixed, nothing smoothed; it learns from the labels and from the teacher.
    student = calmix.distil(
        teacher.folder, args.data, student=args.student, alpha=0.5, out=args.out / "student", **common, **judged
    )
    for name, figures in student.metrics["splits"].items():
        raw = figures["before"]
        print(f"{name}: accuracy {raw['accuracy']:.1%}, ECE {raw['ece']:.1%} before its own temperature")
    return float(student.metrics["splits"]["dev"]["before"]["nll"])


if __name__ == "__main__":
    main()
