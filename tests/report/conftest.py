"""Finished runs without training: folders as `calmix train`, `map` and `evaluate` leave them, and a browser."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from calmix.calibration import SelectiveThreshold, Temperature
from calmix.data import Examples, write_json, write_table, write_text
from calmix.dynamics import Dynamics
from calmix.training import intervals, json_safe, measure, prediction_table
from calmix.training.folder import begin_run
from calmix.training.mapping import write_map
from calmix.training.promises import promise_figures

CLASSES = ("animal", "food", "weather")
HOSTILE = (
    "<script>window.hacked = 1</script>",
    "</script><img src=x onerror='window.hacked = 1'>",
    '</SCRIPT ><svg onload="window.hacked = 1">',
    "\"quotes\" and 'quotes' and `ticks` ${window.hacked = 1}",
    "emoji 🦊👩‍👩‍👧 and accents é",
    "right to left: \u202eשלום עולם مرحبا",
    "a nul \x00 and a bell \x07 and a line\nbreak",
    '=HYPERLINK("http://evil")',
    "+1+1",
    "-2+3",
    "@SUM(A1)",
    "<!-- <script> -->",
    "&lt;b&gt; {{ 7 * 7 }} {% raw %}",
    "long " * 20_000,
)


def logits_of(n: int, seed: int, *, classes: int = 3, sharp: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels of a model that is somewhat too sure."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, classes)) * sharp
    probs = np.asarray(Temperature(1.8)(logits))
    labels = (probs.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return logits.astype(np.float32), labels.astype(np.int64)


def texts_of(n: int, hostile: bool) -> list[str]:
    plain = [f"sentence number {i} about {CLASSES[i % 3]}" for i in range(n)]
    if hostile:
        plain[: len(HOSTILE)] = HOSTILE
    return plain


def dynamics_of(labels: np.ndarray, *, ids: list[str], names: tuple[str, ...], wrong: int, seed: int = 0) -> Dynamics:
    """Dynamics in which all labels are learnt, more or less, but the first `wrong` ones."""
    rng = np.random.default_rng(seed)
    told, k = labels.copy(), max(len(names), int(labels.max()) + 1)
    told[:wrong] = (told[:wrong] + 1) % k
    logits = rng.normal(size=(4, len(labels), k)) * rng.uniform(0.3, 2.5, (1, len(labels), 1))
    logits[:, np.arange(len(labels)), told] += np.linspace(1, 4, 4)[:, None]
    logits[:, np.arange(wrong), told[:wrong]] += 4
    return Dynamics.from_logits(logits, labels, ids=ids, label_names=names)


def sets_of(names: tuple[str, ...], rows: int, classes: tuple[str, ...]) -> dict[str, tuple[Examples, np.ndarray]]:
    found = {}
    for seed, name in enumerate(names):
        logits, labels = logits_of(rows, seed, classes=len(classes), sharp=3.0 if name != "ood-far" else 5.0)
        table = pa.table({"id": [f"{name}-{i}" for i in range(rows)], "text": texts_of(rows, hostile=False)})
        found[name] = (Examples(table, labels, classes), logits)
    return found


@pytest.fixture
def hostile() -> tuple[str, ...]:
    """Texts that would like to be more than text."""
    return HOSTILE


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Return `make_run(name, …)`: the folder of a finished run that nobody had to train."""

    def make(
        name: str = "run",
        *,
        sets: tuple[str, ...] = ("dev", "test", "ood-far"),
        rows: int = 400,
        classes: tuple[str, ...] = CLASSES,
        samples: int = 60,
        hostile: bool = False,
        ids: list[str] | None = None,
        temperature: float = 1.5,
        guarantee: float | None = None,
        seed: int = 0,
        before: bool = False,
        epochs: int = 3,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        config = {"recipe": "erm", "model": "tiny", "seed": seed, "bins": 10, "options": {}, "lr": 5e-5}
        begin_run(folder, config, {"precision": "fp32"})
        splits: dict[str, Any] = {}
        for split, (examples, logits) in sets_of(sets, rows, classes).items():
            scaled = {"before": Temperature(1.0), "after": Temperature(temperature)}
            probs = {stage: np.asarray(scale(logits)) for stage, scale in scaled.items()}
            splits[split] = {
                stage: measure(p, examples.labels, bins=10) | {"intervals": intervals(p, examples.labels, bins=10)}
                for stage, p in probs.items()
            }
            table = prediction_table(examples, probs["after"], label_names=classes, logits=logits)
            write_table(table, folder / f"predictions-{split}.parquet")
        history = [
            {
                "epoch": e,
                "loss": 1 / e,
                "dev": {"nll": 0.9 / e, "nll-ts": 0.8 / e, "accuracy": 0.5 + e / 10, "ece": 0.1},
            }
            for e in range(1, epochs + 1)
        ]
        if before:
            dev = {"nll": 0.95, "nll-ts": 0.94, "accuracy": 0.583, "ece": 0.12, "mcc": 0.4, "temperature": 0.9}
            history.insert(0, {"epoch": 0, "step": 0, "loss": None, "dev": dev, "joint": [[0.5, 0.6]], "seconds": 1.0})
        write_text(folder / "log.jsonl", "".join(f"{json.dumps(entry)}\n" for entry in history))
        if samples:
            labels = np.arange(samples) % len(classes)
            made = Examples(
                pa.table({"id": ids or [f"s{i}" for i in range(samples)], "text": texts_of(samples, hostile)}),
                labels,
                classes,
            )
            write_map(folder, dynamics_of(labels, ids=made.ids, names=classes, wrong=samples // 6), made)
        metrics = {"temperature": temperature, "splits": splits, "best_epoch": epochs, "epochs": history, "notes": []}
        metrics["rows"] = {"train": samples} | dict.fromkeys(sets, rows)
        if guarantee is not None:
            dev = sets_of(sets, rows, classes)[sets[0]]
            kept = SelectiveThreshold.fit(np.asarray(scaled["after"](dev[1])), dev[0].labels, accuracy=guarantee)
            metrics["guarantee"] = {"threshold": kept.to_json()}
            on_dev = (np.asarray(scaled["after"](dev[1])), dev[0].labels)
            metrics["promises"] = promise_figures(kept, *on_dev, classes)
        write_json(folder / "metrics.json", json_safe(metrics))
        return folder

    return make


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A Chromium of this machine, started once."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium on this machine (Debian: apt install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Return `open_page(file, …)`: the page, drawn; in the end it must have said and asked for nothing."""
    opened: list[Any] = []
    heard: list[str] = []

    def opening(file: Path, *, width: int = 1280, height: int = 800, **options: Any) -> Any:
        context = chromium.new_context(viewport={"width": width, "height": height}, accept_downloads=True, **options)
        page = context.new_page()
        page.on("console", lambda message: heard.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: heard.append(f"error: {error}"))
        page.on("request", lambda r: r.url.startswith(("file:", "data:", "blob:")) or heard.append(f"request: {r.url}"))
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached", timeout=30_000)
        opened.append(context)
        return page

    yield opening
    for context in opened:
        assert context.pages[0].evaluate("window.hacked") is None
        context.close()
    assert heard == []


@pytest.fixture
def barriers(open_page: Callable[..., Any]) -> Callable[..., list[str]]:
    """Return `barriers(file, …)`: what axe-core finds in a page, everything unfolded, that keeps people out."""
    axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    engine = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")

    def found(file: Path, **options: Any) -> list[str]:
        page = open_page(file, bypass_csp=True, **options)
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        page.evaluate(engine)
        told = page.evaluate("axe.run()")
        assert len(told["passes"]) > 30
        return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in told["violations"]]

    return found
