"""The page of a run, without a browser: its parts, its numbers, and that texts stay texts."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from calmix.data import Examples
from calmix.dynamics import Dynamics, label_issues
from calmix.metrics import ece
from calmix.report import read_run, write_run_page
from calmix.report.run_page import FIGURES, run_page
from calmix.training.learning_notes import UNFINISHED
from calmix.training.mapping import map_notes, write_map


class Text(HTMLParser):
    """Cells of the table of figures by (set, stage, figure), ids, and all text outside scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.cells: dict[tuple[str, str, str], str] = {}
        self.ids: list[str] = []
        self.words: list[str] = []
        self._row: tuple[str, str] | None = None
        self._cell: tuple[str, str, str] | None = None
        self._quiet = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self._quiet = tag in ("script", "style")
        if found.get("id"):
            self.ids.append(str(found["id"]))
        if "data-stage" in found:
            self._row = (str(found["data-set"]), str(found["data-stage"]))
        if "data-figure" in found and self._row:
            self._cell = (*self._row, str(found["data-figure"]))
            self.cells[self._cell] = ""

    def handle_endtag(self, tag: str) -> None:
        self._cell = None if tag == "td" else self._cell
        self._quiet = False

    def handle_data(self, data: str) -> None:
        if not self._quiet:
            self.words.append(data)
        if self._cell:
            self.cells[self._cell] += f" {data}"


def data_of(html: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, flags=re.DOTALL)
    assert found
    return json.loads(found[1])


def test_every_figure_is_that_of_metrics_json(make_run: Any) -> None:
    folder = make_run()
    metrics = json.loads((folder / "metrics.json").read_text())
    cells = Text(run_page(read_run(folder))).cells
    assert len(cells) == 3 * 2 * len(FIGURES)
    for (name, stage, key), shown in cells.items():
        found = metrics["splits"][name][stage]
        share = {k: s for k, _, s in FIGURES}[key]
        text = (f"{100 * found[key]:.1f} %" if share else f"{found[key]:.3f}").replace("-", "−")
        assert text in shown
        if key in found["intervals"]:
            low, high = found["intervals"][key]
            limits = f"{100 * low:.1f}–{100 * high:.1f}" if share else f"{low:.3f}–{high:.3f}"
            assert shown.split() == [*text.split(), limits]


def test_the_diagrams_errors_are_those_of_metrics_json(make_run: Any) -> None:
    folder = make_run()
    metrics = json.loads((folder / "metrics.json").read_text())
    for one in data_of(run_page(read_run(folder)))["sets"]:
        for stage, curve in one["reliability"].items():
            assert curve["ece"] == pytest.approx(metrics["splits"][one["name"]][stage]["ece"], abs=1e-6)
            assert sum(curve["rows"]) == metrics["splits"][one["name"]][stage]["n"]


def test_curves_by_class_are_of_the_rows_predicted_so(make_run: Any) -> None:
    run = read_run(make_run())
    test, shown = run.judged[0], data_of(run_page(run))["sets"][0]
    assert [one["name"] for one in shown["classes"]] == ["animal", "food", "weather"]
    probs = test.probs["after"]
    rows = probs.argmax(axis=1) == 1
    curve = shown["classes"][1]["reliability"]["after"]
    assert curve["ece"] == pytest.approx(ece(probs[rows], test.labels[rows], bins=10))
    assert sum(curve["rows"]) == rows.sum()


def test_the_page_has_every_part_and_every_id_once(make_run: Any) -> None:
    text = Text(run_page(read_run(make_run(guarantee=0.6))))
    for part in ("trust", "human", "figures", "confusion", "training", "map", "made"):
        assert part in text.ids
    assert len(set(text.ids)) == len(text.ids)
    words = " ".join(text.words)
    for expected in ("On average it claims", "of the time; out of domain", "taken for", "precision = "):
        assert expected in words


def test_every_part_its_script_looks_for_is_there(make_run: Any) -> None:
    from calmix.report.comparison import comparison_page
    from calmix.report.page import _ASSETS, _SCRIPTS

    one = read_run(make_run())
    pages = [run_page(one), comparison_page([one, read_run(make_run("other"))])]
    there = {id_ for page in pages for id_ in Text(page).ids}
    there |= set(re.findall(r'id="([\w-]+)"', (_ASSETS / "study.html").read_text(encoding="utf-8")))
    for name in _SCRIPTS:
        wanted = set(re.findall(r'byId\("([\w-]+)"\)', (_ASSETS / name).read_text(encoding="utf-8")))
        assert wanted <= there, name


def test_a_map_alone_has_only_what_it_has(make_run: Any) -> None:
    folder = make_run(sets=())
    text = Text(run_page(read_run(folder)))
    assert "map" in text.ids
    assert "trust" not in text.ids
    assert "confusion" not in text.ids


def test_a_run_without_a_map_has_no_explorer(make_run: Any) -> None:
    assert "map" not in Text(run_page(read_run(make_run(samples=0)))).ids


def test_hostile_names_are_text(make_run: Any) -> None:
    classes = ("<script>alert(1)</script>", "\x00nul", "=1+1")
    folder = make_run("<b>run", classes=classes, hostile=True)
    html = run_page(read_run(folder))
    assert "<script>alert" not in html
    assert "<b>run" not in html
    assert html.count("<script") == 2
    assert "\x00" not in html
    words = "".join(Text(html).words)
    assert "<script>alert(1)</script>" in words
    assert "␀nul" in words


def test_many_classes_are_listed_by_their_mistakes(make_run: Any) -> None:
    classes = tuple(f"class {k}" for k in range(80))
    html = run_page(read_run(make_run(classes=classes, samples=200)))
    assert 'class="matrix"' not in html
    assert "taken for" in html
    assert len(data_of(html)["sets"][0]["classes"]) <= 60


def test_it_is_written_into_the_folder_or_where_one_says(make_run: Any, tmp_path: Path) -> None:
    folder = make_run()
    assert write_run_page(folder) == folder / "report.html"
    elsewhere = write_run_page(folder, tmp_path / "there" / "page.html")
    assert elsewhere.read_bytes() == (folder / "report.html").read_bytes()


def test_figures_that_do_not_exist_are_dashes(make_run: Any) -> None:
    folder = make_run()
    metrics = json.loads((folder / "metrics.json").read_text())
    metrics["splits"]["test"]["after"]["nll"] = None
    metrics["splits"]["test"]["after"]["intervals"]["nll"] = [None, None]
    del metrics["splits"]["test"]["before"]["intervals"]
    (folder / "metrics.json").write_text(json.dumps(metrics))
    cells = Text(run_page(read_run(folder))).cells
    assert cells["test", "after", "nll"].split() == ["–"]
    assert "–" not in cells["test", "before", "ece"]


def test_notes_that_inform_look_other_than_those_that_warn(make_run: Any) -> None:
    from calmix.training.guiding import record_notes

    folder = make_run()
    metrics = json.loads((folder / "metrics.json").read_text())
    informing = ["dev: 40 rows split off the training set (9 stay), stratified by label", *record_notes("evaluation")]
    warning = ["train: 3 of 9 rows repeat another", "test: 2 of 9 rows are also in train: they inflate its scores"]
    metrics["notes"] = informing + warning
    (folder / "metrics.json").write_text(json.dumps(metrics))
    html = run_page(read_run(folder))
    for notes, kind in ((informing, "info"), (warning, "caveat")):
        for note in notes:
            assert re.search(rf'<p class="{kind}"><span aria-hidden="true">.</span> <bdi>{re.escape(note)}</bdi>', html)


def test_the_page_of_a_map_begins_with_it(make_run: Any) -> None:
    folder = make_run(sets=())
    html = run_page(read_run(folder))
    assert html.index('<section id="training"') < html.index('<section id="map"')
    settings = (folder / "run.toml").read_text().replace('recipe = "erm"', 'command = "map"')
    (folder / "run.toml").write_text(settings)
    html = run_page(read_run(folder))
    assert html.index('<section id="map"') < html.index('<section id="training"')
    assert html.index('href="#map"') < html.index('href="#training"')


def test_a_figure_below_zero_has_a_minus(make_run: Any) -> None:
    folder = make_run()
    metrics = json.loads((folder / "metrics.json").read_text())
    metrics["splits"]["test"]["after"]["debiased_ece"] = -0.021
    (folder / "metrics.json").write_text(json.dumps(metrics))
    html = run_page(read_run(folder))
    assert Text(html).cells["test", "after", "debiased_ece"].split() == ["−2.1", "%"]
    assert "below 0 where the gaps are smaller than chance alone makes them" in html


def test_a_debiased_ece_below_zero_is_explained_below_the_table_and_only_then(make_run: Any) -> None:
    folder = make_run()
    metrics = json.loads((folder / "metrics.json").read_text())
    for found in (stage for data in metrics["splits"].values() for stage in data.values()):
        found["debiased_ece"] = 0.021
    for value, shown in ((0.021, False), (-0.021, True)):
        metrics["splits"]["test"]["after"]["debiased_ece"] = value
        (folder / "metrics.json").write_text(json.dumps(metrics))
        assert ("A debiased ECE below 0 is no error" in run_page(read_run(folder))) == shown


def test_the_command_that_applies_decisions_names_the_columns(make_run: Any) -> None:
    folder = make_run()
    assert "calmix map TABLE --apply decisions.csv" in "".join(Text(run_page(read_run(folder))).words)
    metrics = json.loads((folder / "metrics.json").read_text())
    columns = {"label": "queue", "text": "<b> it's", "votes": "v"}
    (folder / "metrics.json").write_text(json.dumps({**metrics, "columns": columns}))
    words = "".join(Text(run_page(read_run(folder))).words)
    assert """calmix map TABLE --text '<b> it'"'"'s' --label queue --apply decisions.csv --out clean.csv""" in words


def test_an_evaluation_is_called_by_what_was_evaluated_on_what(make_run: Any) -> None:
    run = read_run(make_run("run-0123456789abcdef"))
    assert run.heading == "run-0123456789abcdef"
    config = {"model": "runs/one", "ensemble": ["runs/two"], "data": {"a/test.csv": "0", "more.csv": "1"}}
    asked = replace(run, kind="evaluate", settings={"config": config})
    assert "<h1><bdi>one + two on test.csv, more.csv</bdi></h1>" in run_page(asked)


def test_accuracy_stands_beside_the_commonest_class_and_the_head_before_fine_tuning(make_run: Any) -> None:
    with_head, without = read_run(make_run(before=True)), read_run(make_run("without"))
    words = " ".join(" ".join(Text(run_page(with_head)).words).split())
    for found in (one for one in with_head.judged if not one.aside):
        shares = [float((found.labels == k).mean()) for k in range(3)]
        assert f"{found.title}; commonest class: {100 * max(shares):.1f} %" in words
    assert words.index("Always answering the commonest class") < words.index("On average it claims")
    assert "accuracy before fine-tuning 58.3 % dev; now: 80.0 %" in words
    assert "before fine-tuning" not in " ".join(Text(run_page(without)).words)


def test_a_network_that_has_hardly_learnt_is_called_that_and_not_green(make_run: Any) -> None:
    run = read_run(make_run())
    main = run.judged[0]
    constant = np.full_like(main.probs["after"], 1 / 3)
    told = replace(run, judged=(replace(main, probs={"after": constant}),))
    html = run_page(told)
    assert re.search(
        r'<section class="verdict tone-bad".*?<h2 id="verdict-title">It has hardly learnt', html, re.DOTALL
    )


def test_a_run_without_fine_tuning_has_no_curves_and_no_map_and_says_why(make_run: Any) -> None:
    run = read_run(make_run(before=True, epochs=0, samples=0))
    text = Text(run_page(run))
    assert not {"training", "map"} & set(text.ids)
    assert "nothing was fine-tuned" in " ".join(text.words)


def with_metrics(folder: Path, **more: Any) -> Path:
    metrics = json.loads((folder / "metrics.json").read_text())
    (folder / "metrics.json").write_text(json.dumps(metrics | more))
    return folder


def as_map(folder: Path, command: str | None = None) -> Path:
    settings = (folder / "run.toml").read_text().replace('recipe = "erm"', 'command = "map"')
    settings = re.sub("^command = .*\n", "", settings, count=1, flags=re.MULTILINE) if command else settings
    (folder / "run.toml").write_text((f'command = "{command}"\n' if command else "") + settings)
    return folder


def test_many_notes_are_folded_but_those_on_training(make_run: Any) -> None:
    told = ["training: still learning", *(f"note {k}" for k in range(7))]
    html = run_page(read_run(with_metrics(make_run(), notes=told)))
    open_part, folded = html.split('<details class="notes">', 1)
    assert "training: still learning" in open_part
    assert "<summary>7 notes on your data and this run</summary>" in folded
    assert [f"note {k}" in open_part for k in range(7)] == [False] * 7
    few = run_page(read_run(with_metrics(make_run("few"), notes=["note 0", "note 1"])))
    assert '<details class="notes">' not in few
    assert "note 1" in few


def test_the_page_of_a_map_begins_with_how_many_labels_look_wrong(make_run: Any) -> None:
    folder = as_map(make_run(sets=()))
    suspects = int(label_issues(read_run(folder).dynamics).flagged.sum())  # type: ignore[arg-type]
    html = run_page(read_run(folder))
    assert suspects > 1
    assert f'<h2 id="suspects-title">{suspects} of 60 labels look wrong.</h2>' in html
    assert html.index("suspects-title") < html.index('<section id="map"')
    assert "suspects-title" not in run_page(read_run(make_run("other")))


def test_the_command_that_applies_decisions_names_the_table_that_was_mapped(make_run: Any) -> None:
    folder = as_map(make_run(sets=()), command="calmix map 'my data.csv' --out map")
    words = "".join(Text(run_page(read_run(folder))).words)
    assert "calmix map 'my data.csv' --apply decisions.csv" in words


def test_a_guarantee_is_the_first_tile(make_run: Any) -> None:
    kept = {"accuracy": 0.95, "threshold": 0.858, "coverage": 0.91, "error": 0.05}
    words = " ".join(Text(run_page(read_run(with_metrics(make_run(), guarantee={"threshold": kept})))).words)
    told = " ".join(words.split())
    assert "answered at accuracy ≥ 95 % 91 % confidence ≥ 0.858 keeps it (with 95 % confidence)" in told
    assert told.index("answered at accuracy") < told.index("commonest class: ")
    nothing = with_metrics(make_run("none"), guarantee={"threshold": {**kept, "threshold": None, "coverage": 0.0}})
    assert "accuracy ≥ 95 % cannot be" in " ".join(Text(run_page(read_run(nothing))).words)


def test_what_the_headline_says_is_not_said_again_as_a_note(make_run: Any) -> None:
    run = read_run(with_metrics(make_run(), notes=[f"{UNFINISHED} (…)", "training: other"], temperature=0.05))
    assert "<bdi>training: the network was still learning" not in run_page(run)
    assert "<bdi>training: other" in run_page(run)
    learnt = read_run(with_metrics(make_run("learnt"), notes=[f"{UNFINISHED} (…)"]))
    assert "<bdi>training: the network was still learning" in run_page(learnt)
    folder = as_map(make_run("map", sets=(), samples=0))
    labels = np.arange(60) % 3
    dynamics = Dynamics.from_logits(np.zeros((2, 60, 3)), labels, label_names=("a", "b", "c"))
    made = Examples(pa.table({"id": list(dynamics.ids), "text": ["x"] * 60}), labels, ("a", "b", "c"))
    write_map(folder, dynamics, made)
    notes = map_notes(dynamics)
    html = run_page(read_run(with_metrics(folder, notes=notes)))
    assert notes[0].startswith("map: the model had hardly learnt")
    assert "<bdi>map: the model" not in html
    assert "The model had hardly learnt anything" in html


def test_no_option_is_broken_after_its_hyphens(make_run: Any) -> None:
    html = run_page(read_run(with_metrics(make_run(), notes=["try --epochs 9, not a--b <--x> --<i>"])))
    assert 'try <span class="flag">--epochs</span> 9, not a--b &lt;--x&gt; --&lt;i&gt;' in html
