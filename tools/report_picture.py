"""The pictures of pages in README and docs, taken in Chromium from the runs that `calmix demo` leaves.

python tools/report_picture.py demo-run docs/img
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from calmix.report import write_run_page


def main(runs: Path, pictures: Path) -> None:
    """Take the top of a run's page, and its data map in the dark."""
    file = write_run_page(runs / "erm")
    pictures.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])

        def opened(width: int, height: int, scheme: str = "light") -> Page:
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            page = context.new_page()
            page.goto(file.absolute().as_uri())
            page.wait_for_selector("html[data-ready]", state="attached")
            return page

        opened(1280, 1120).screenshot(path=pictures / "report.png")
        page = opened(1280, 1000, "dark")
        page.locator("#map").evaluate("e => e.scrollIntoView({block: 'start', behavior: 'instant'})")
        box = page.locator("#points").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.8 * box["height"])
        page.screenshot(path=pictures / "report-map.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
