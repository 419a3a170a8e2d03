"""The picture in the README, from the runs that `calmix demo` leaves.

python tools/readme_picture.py demo-run docs/img/demo.png
"""

import sys
from pathlib import Path

import numpy as np

from calmix.calibration import Temperature
from calmix.data import read_examples, read_table
from calmix.data.corpus import corpus_path
from calmix.report import draw_reliability, prepare_reliability

PANELS = {
    "formal messages (in domain)": ("test", "test"),
    "colloquial messages (out of domain)": ("ood-colloquial", "ood"),
}
RECIPES = {"plain training": "erm", "mixup": "input-mixup"}


def main(runs: Path, picture: Path) -> None:
    """Draw the reliability of both runs, before temperature scaling, in and out of domain."""
    panels = {}
    for title, (name, split) in PANELS.items():
        labels = read_examples(corpus_path(split)).labels
        panels[title] = {}
        for shown, recipe in RECIPES.items():
            logits = np.array(read_table(runs / recipe / f"predictions-{name}.parquet")["logits"].to_pylist())
            panels[title][shown] = prepare_reliability(np.asarray(Temperature(1.0)(logits)), labels, bins=10)
    picture.parent.mkdir(parents=True, exist_ok=True)
    draw_reliability(panels).savefig(picture, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
