"""How large a page with many training samples is, how soon it can be used, and how smoothly its map moves.

python benchmarks/page.py --rows 100000 --texts train.jsonl.xz

Needs Chromium and playwright. Dynamics are drawn at random; texts are those of the given table, over and over, or
made up of words in Zipf's proportions.
"""

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from calmix.data import Examples, read_table
from calmix.dynamics import Dynamics
from calmix.report import write_run_page
from calmix.training.folder import begin_run
from calmix.training.mapping import write_map

CLASSES = ("account", "billing", "cancellation", "complaint", "delivery", "refund")
PAN = """async () => {
  const canvas = document.getElementById("points"), box = canvas.getBoundingClientRect(), frames = [];
  const at = (type, k) => canvas.dispatchEvent(new PointerEvent(type, {
    pointerId: 1, bubbles: true, clientX: box.left + 200 + k, clientY: box.top + 200 + k / 2 }));
  canvas.setPointerCapture = () => {};
  at("pointerdown", 0);
  let last = performance.now();
  for (let k = 1; k <= 60; k++) {
    at("pointermove", k);
    await new Promise((done) => requestAnimationFrame(done));
    const now = performance.now();
    frames.push(now - last);
    last = now;
  }
  at("pointerup", 60);
  return frames;
}"""


def made_up(rows: int, rng: np.random.Generator) -> list[str]:
    words = np.array(["".join(rng.choice(list("etaoinshrdlu"), rng.integers(2, 9))) for _ in range(20_000)])
    lengths = rng.integers(5, 60, rows)
    drawn = np.minimum(rng.zipf(1.3, lengths.sum()) - 1, len(words) - 1)
    return [" ".join(words[part]) for part in np.split(drawn, lengths.cumsum()[:-1])]


def write_samples(folder: Path, rows: int, epochs: int, source: str | None) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, len(CLASSES), rows)
    logits = rng.standard_normal((epochs, rows, len(CLASSES)), dtype=np.float32)
    logits *= rng.gamma(2, 1, (1, rows, 1)).astype(np.float32)
    logits[:, np.arange(rows), labels] += np.linspace(1.0, 5.0, epochs)[:, None] * (rng.random(rows) > 0.08)
    columns = {"text": made_up(rows, rng)}
    if source is not None:
        table = read_table(source)
        places = np.arange(rows) % table.num_rows
        columns = {n: table[n].take(pa.array(places)) for n in ("text", "text_b") if n in table.column_names}
    examples = Examples(pa.table({"id": [f"row-{i}" for i in range(rows)], **columns}), labels, CLASSES)
    begin_run(folder, {"command": "map", "model": "none", "rows": rows}, {})
    dynamics = Dynamics.from_logits(logits, labels, ids=examples.ids, label_names=CLASSES)
    write_map(folder, dynamics, examples)
    (folder / "metrics.json").write_text(json.dumps({"n": rows}))


def opened(page: Path) -> dict[str, float]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1280, "height": 800})
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-ready]", state="attached", timeout=120_000)
        ready = float(tab.evaluate("document.documentElement.dataset.ready"))
        tab.locator("#cloud").evaluate("e => e.scrollIntoView({block: 'center', behavior: 'instant'})")
        frames = np.array(tab.evaluate(PAN))
        begun = time.perf_counter()
        tab.locator("#by-words").fill("the")
        tab.locator("#tab-view").click()
        browser.close()
    return {
        "ready_s": ready / 1000,
        "pan_frame_ms_median": float(np.median(frames)),
        "pan_frame_ms_95": float(np.quantile(frames, 0.95)),
        "first_search_s": time.perf_counter() - begun,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, nargs="+", default=[100_000, 500_000])
    arguments.add_argument("--epochs", type=int, default=3)
    arguments.add_argument("--texts")
    given = arguments.parse_args()
    for rows in given.rows:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "map"
            folder.mkdir()
            write_samples(folder, rows, given.epochs, given.texts)
            begun = time.perf_counter()
            page = write_run_page(folder)
            found = {
                "rows": rows,
                "epochs": given.epochs,
                "write_s": time.perf_counter() - begun,
                "mb": page.stat().st_size / 1e6,
            }
            print(json.dumps({name: round(value, 2) for name, value in (found | opened(page)).items()}), flush=True)


if __name__ == "__main__":
    main()
