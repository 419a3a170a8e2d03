"""Draw the pictures of README and docs anew, from what `calmix demo` left.

python tools/pictures.py demo-run

Needs matplotlib, playwright and Chromium.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from calmix.report import draw_reliability, prepare_reliability, read_run, save_figure, write_run_page

IMAGES = Path(__file__).parents[1] / "docs" / "img"
RUNS = {"plain": "plain fine-tuning", "calmix": "calmix"}
SETS = {"test": "formal messages (in domain)", "ood-colloquial": "colloquial messages (out of domain)"}


def draw_demo(demo: Path) -> None:
    """Draw the reliability of both as a user gets them, with a temperature, in and out of domain."""
    panels: dict[str, dict[str, Any]] = {title: {} for title in SETS.values()}
    for recipe, name in RUNS.items():
        for judged in read_run(demo / recipe).judged:
            if judged.name in SETS:
                curve = prepare_reliability(judged.probs["after"], judged.labels, bins=10)
                panels[SETS[judged.name]][name] = curve
    save_figure(draw_reliability(panels), IMAGES / "demo.png")


def draw_start(demo: Path) -> None:
    """Draw the dev loss of both after each epoch, the fitted head's before the first."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.2), layout="constrained")
    axes = figure.subplots()
    for run, name in RUNS.items():
        history = json.loads((demo / run / "metrics.json").read_text(encoding="utf-8"))["epochs"]
        epochs = [entry["epoch"] for entry in history]
        axes.plot(epochs, [entry["dev"]["nll-ts"] for entry in history], marker="o", label=name)
    axes.set(xlabel="epoch (0: the head alone, before fine-tuning)", ylabel="dev NLL after temperature", ylim=(0, None))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)
    save_figure(figure, IMAGES / "head-start.png")


def photograph(page_file: Path) -> None:
    """Take the page of a run from above, and its data map in the dark with the pointer on a suspect."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, height, scheme in (("report", 1120, "light"), ("report-map", 1000, "dark")):
            page = browser.new_context(viewport={"width": 1280, "height": height}, color_scheme=scheme).new_page()
            page.goto(page_file.absolute().as_uri())
            page.wait_for_selector("html[data-ready]", state="attached")
            if name == "report-map":
                page.locator("#map").evaluate("e => e.scrollIntoView({block: 'start', behavior: 'instant'})")
                point(page)
            page.screenshot(path=IMAGES / f"{name}.png")
        browser.close()


def point(page: Any) -> None:
    """Move the pointer over the lower half of the map until it meets a sample."""
    box = page.locator("#points").bounding_box()
    for step in range(80, 400, 5):
        page.mouse.move(box["x"] + step, box["y"] + 0.8 * box["height"])
        if page.locator("#hover").is_visible():
            return


if __name__ == "__main__":
    demo = Path(sys.argv[1])
    draw_demo(demo)
    draw_start(demo)
    photograph(write_run_page(demo / "calmix"))
