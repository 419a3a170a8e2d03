"""`calmix report`: the page of a run, of several side by side, or of a study."""

from pathlib import Path
from typing import Annotated

import typer

from calmix.errors import InputError

__all__ = ["report"]


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, maps, evaluations; or of one study.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="HTML file. Default: RUN/report.html; of several, comparison.html.")
    ] = None,
) -> None:
    """Make the page of a run or a study, or compare several runs: one HTML file that opens anywhere, offline.

    Example: `calmix report run`, or `calmix report runs/erm runs/mixup --out comparison.html`
    """
    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--out {out}: a page is an HTML file; let the name end in .html")
    from calmix.report import write_comparison, write_run_page, write_study_page

    if len(runs) > 1:
        page = write_comparison(runs, out or "comparison.html")
    elif (runs[0] / "study.json").is_file():
        page = write_study_page(runs[0], out)
    else:
        page = write_run_page(runs[0], out)
    print(f"page: {page}")
