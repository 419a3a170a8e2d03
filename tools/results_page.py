"""Write docs/results.md from the outcomes of the studies: `python tools/results_page.py`.

For each study in `studies/` that has an outcome in `results/NAME/` (its `--out`), the page takes the tables of
`study.md`, in which a paper's figures stand beside ours, and in front of them what is said about them in
`results/NAME/verdict.md`, if that is there.
"""

import json
import sys
from pathlib import Path

from calmix.data import write_text

ROOT = Path(__file__).resolve().parents[1]
HEAD = """# Results

The papers' tables, asked again with a small encoder and the training sizes that are stated. A figure in brackets is the paper's. Every section says which command made it; the figures of single runs are in `results/`.
"""  # noqa: E501


def section(name: str, folder: Path) -> str:
    """Return one study's part of the page."""
    outcome = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    title, _, body = (folder / "study.md").read_text(encoding="utf-8").partition("\n")
    models = ", ".join(Path(model).name for model in outcome["study"]["models"])
    made = f"`calmix study studies/{name}.toml --out results/{name}`, {models}, seeds "
    made += f"{', '.join(map(str, outcome['study']['seeds']))}; calmix {outcome['calmix']}, "
    made += "; ".join(
        f"torch {found['torch']}" + f" on {found['gpu']}" * ("gpu" in found) for found in outcome["made_with"]
    )
    made += "."
    verdict = folder / "verdict.md"
    said = verdict.read_text(encoding="utf-8").strip() + "\n" if verdict.is_file() else ""
    # Headings of the tables go below the study's own.
    return "\n".join(
        [f"## {title.removeprefix('# ')}", "", made, "", said, body.replace("\n## ", "\n### ").strip(), ""]
    )


def main(root: Path = ROOT) -> None:
    """Write the page."""
    names = [path.stem for path in sorted((root / "studies").glob("*.toml"))]
    there = [name for name in names if (root / "results" / name / "study.json").is_file()]
    if not there:
        sys.exit("no study has an outcome in results/ yet")
    write_text(root / "docs" / "results.md", HEAD + "\n" + "\n".join(section(n, root / "results" / n) for n in there))
    print(f"docs/results.md: {', '.join(there)}")


if __name__ == "__main__":
    main()
