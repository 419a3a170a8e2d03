"""The page in a real browser: it says nothing, asks for nothing, and does what it offers."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calmix.data import Examples, apply_decisions, read_decisions
from calmix.data.decisions import decided_columns
from calmix.dynamics import Dynamics
from calmix.report import prepare_reliability, read_run, write_run_page
from calmix.report.datamap import fitting_limits
from calmix.training.mapping import write_map

pytestmark = pytest.mark.usefixtures("chromium")
SIZES = [(1280, 800, "light"), (390, 844, "light"), (1280, 800, "dark")]


@pytest.mark.parametrize(("width", "height", "scheme"), SIZES)
def test_it_fits_every_screen(open_page: Any, make_run: Any, width: int, height: int, scheme: str) -> None:
    page = open_page(write_run_page(make_run()), width=width, height=height, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 200) == (scheme == "dark")
    assert page.locator("#reliability figure svg").count() == 2
    assert page.locator("#failure").is_hidden()


@pytest.mark.parametrize(("width", "height", "scheme"), SIZES)
def test_it_keeps_nobody_out(barriers: Any, make_run: Any, width: int, height: int, scheme: str) -> None:
    page = write_run_page(make_run(guarantee=0.6))
    assert barriers(page, width=width, height=height, color_scheme=scheme) == []


def test_diagrams_follow_their_choices(open_page: Any, make_run: Any) -> None:
    page = open_page(write_run_page(make_run()))
    lines = page.locator("#reliability figure").first.locator("path.line")
    assert lines.count() == 2
    page.select_option("#stage", "after")
    assert lines.count() == 1
    before = lines.first.get_attribute("d")
    page.select_option("#class", label="predicted as food")
    assert lines.first.get_attribute("d") != before
    page.locator("#aside").check()
    assert page.locator("#reliability figure").count() == 3
    page.select_option("#confusion-set", label="far, out of domain")
    assert page.locator(".confusion:visible").count() == 1


def test_bins_of_a_handful_of_rows_are_pale_and_not_joined(open_page: Any, make_run: Any) -> None:
    folder = make_run()
    page, test = open_page(write_run_page(folder)), read_run(folder).judged[0]
    curve = prepare_reliability(test.probs["after"], test.labels, bins=10)
    few = int((curve.rows < 10).sum())
    assert 0 < few < len(curve.rows)
    page.select_option("#stage", "after")
    panel = page.locator("#reliability figure").first
    assert panel.locator(".dot.few").count() == few
    assert panel.locator("path.line").get_attribute("d").count("L") == len(curve.rows) - few - 1


def test_it_prints_whole_and_with_its_map(open_page: Any, make_run: Any) -> None:
    page = open_page(write_run_page(make_run()), width=703, height=994)
    page.emulate_media(media="print")
    page.pdf(format="A4", print_background=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 703
    right = page.evaluate("[...document.querySelectorAll('table')].map((t) => t.getBoundingClientRect().right)")
    assert max(right) <= 703
    assert page.locator(".controls").first.is_hidden()
    # A canvas that was resized and not drawn again is black.
    paper = page.evaluate("[...document.getElementById('points').getContext('2d').getImageData(2, 2, 1, 1).data]")
    assert paper == [255, 255, 255, 255]


def test_the_slider_tells_what_is_answered_and_what_goes_to_a_human(open_page: Any, make_run: Any) -> None:
    folder = make_run()
    page = open_page(write_run_page(folder))
    test = read_run(folder).judged[0]
    confidence = test.probs["after"].max(axis=1)
    right = test.probs["after"].argmax(axis=1) == test.labels
    seen = set()
    for threshold in (0.0, 0.555, 0.9, 1.0):
        page.locator("#threshold").fill(str(threshold))
        answered = confidence >= threshold
        shown = page.locator("#answered").inner_text()
        assert shown == f"{answered.sum():,} of 400 rows"
        assert page.locator("#to-human").inner_text() == f"{(~answered).sum():,}"
        expected = f"{100 * right[answered].mean():.1f} %" if answered.any() else "–"
        assert page.locator("#accuracy").inner_text() == expected
        seen.add(shown)
    assert len(seen) >= 3
    page.locator("#threshold").fill("0")
    told = json.loads((folder / "metrics.json").read_text())["splits"]["test"]["after"]["accuracy"]
    assert page.locator("#accuracy").inner_text() == f"{100 * told:.1f} %"
    page.locator("#threshold").fill("0.7")
    page.locator("#threshold").press("ArrowRight")
    assert page.locator("#threshold-shown").inner_text() == "0.705"


def test_the_slider_begins_where_something_is_answered(open_page: Any, make_run: Any) -> None:
    page = open_page(write_run_page(make_run()))
    assert page.locator("#threshold-shown").inner_text() == "0.800"
    folder = make_run("modest", temperature=20.0)
    page = open_page(write_run_page(folder))
    confidence = read_run(folder).judged[0].probs["after"].max(axis=1)
    assert confidence.max() < 0.8
    shown = float(page.locator("#threshold-shown").inner_text())
    assert abs(shown - np.median(confidence)) < 0.01
    assert page.locator("#answered").inner_text() != "0 of 400 rows"


def test_a_guarantee_sets_the_slider_and_is_put_into_words(open_page: Any, make_run: Any) -> None:
    page = open_page(write_run_page(make_run(guarantee=0.5)))
    said = page.locator("#guarantee").inner_text()
    assert "keeps accuracy ≥ 50 %" in said
    assert "says nothing" not in said
    assert "can be promised" not in said


def test_a_guarantee_that_cannot_be_given_is_said_with_what_can(open_page: Any, make_run: Any) -> None:
    run = make_run(guarantee=0.999)
    possible = json.loads((run / "metrics.json").read_text())["promises"]["possible"]
    said = open_page(write_run_page(run)).locator("#guarantee").inner_text()
    assert "An accuracy of 99.9 % cannot be promised" in said
    share = f"{100 * possible['accuracy']:.4g} % on {100 * possible['coverage']:.0f} %"
    assert f"What can be promised from these rows: {share} of the texts." in said


def test_a_guarantee_that_the_commonest_label_keeps_is_said_to_say_nothing(open_page: Any, make_run: Any) -> None:
    page = open_page(write_run_page(make_run(guarantee=0.2)))
    assert "That says nothing: always answering “" in page.locator("#guarantee").inner_text()


def place_of(page: Any, run: Any, row: int) -> tuple[float, float]:
    """Return where on the screen a sample of the map is."""
    box = page.locator("#points").bounding_box()
    shown = fitting_limits(run.dynamics.variability, run.dynamics.confidence)
    x = 56 + run.dynamics.variability[row] / (1.02 * shown.right) * (box["width"] - 56 - 12)
    high = (run.dynamics.confidence[row] - shown.bottom) / (1.02 * (shown.top - shown.bottom))
    y = box["height"] - 40 - high * (box["height"] - 12 - 40)
    return box["x"] + x, box["y"] + y


def to_map(page: Any) -> None:
    page.locator("#cloud").evaluate("e => e.scrollIntoView({block: 'center', behavior: 'instant'})")


def test_hovering_shows_the_text_the_labels_and_the_history(open_page: Any, make_run: Any) -> None:
    folder = make_run()
    page, run = open_page(write_run_page(folder)), read_run(folder)
    to_map(page)
    assert page.locator("#hover").is_hidden()
    row = int(np.argmax(run.dynamics.variability))  # on its own
    page.mouse.move(*place_of(page, run, row))
    shown = page.locator("#hover").inner_text()
    assert run.texts["text"][row].as_py() in shown
    assert f"label {run.dynamics.label_names[run.dynamics.labels[row]]}" in shown
    assert f"right in {round(4 * run.dynamics.correctness[row])} of 4 epochs" in shown
    history = run.dynamics.history
    assert f"label at {100 * history.probability[row, 0]:.0f} % → {100 * history.probability[row, 3]:.0f} %" in shown
    told = "; ".join(
        f"epoch {e + 1}: {100 * history.probability[row, e]:.0f} %, {'right' if history.right[row, e] else 'wrong'}"
        for e in range(4)
    )
    spark = page.locator("#hover svg.spark")
    assert spark.get_attribute("aria-label") == f"Probability of the label: {told}"
    assert spark.locator("circle.hit").count() == history.right[row].sum()
    assert spark.locator("circle").count() == 4
    assert spark.bounding_box()["height"] < 50
    page.mouse.move(5, 5)
    assert page.locator("#hover").is_hidden()


def test_the_list_shows_the_history_too_and_a_map_without_one_does_not(open_page: Any, make_run: Any) -> None:
    page = open_page(write_run_page(make_run()))
    assert page.locator("#list > li").count() == page.locator("#list > li svg.spark").count() > 0
    folder = make_run("old")
    table = pq.read_table(folder / "datamap.parquet")
    about = json.loads(table.schema.metadata[b"calmix.dynamics"])
    del about["history"]
    bare = table.drop_columns(["history"]).replace_schema_metadata({"calmix.dynamics": json.dumps(about)})
    pq.write_table(bare, folder / "datamap.parquet")
    page = open_page(write_run_page(folder))
    assert page.locator("#list > li").count() > 0
    assert page.locator("svg.spark").count() == 0


def test_the_lasso_lists_the_samples_inside(open_page: Any, make_run: Any) -> None:
    folder = make_run()
    page, run = open_page(write_run_page(folder)), read_run(folder)
    to_map(page)
    box = page.locator("#points").bounding_box()
    # All samples below half of the height of the map.
    corners = [(57, 0.5), (box["width"] - 4, 0.5), (box["width"] - 4, 0.98), (57, 0.98), (57, 0.5)]
    page.locator("#lasso").click()
    for k, (x, share) in enumerate(corners):
        page.mouse.move(box["x"] + x, box["y"] + share * box["height"])
        if k == 0:
            page.mouse.down()
    page.mouse.up()
    places = [place_of(page, run, row) for row in range(60)]
    inside = {row for row, (x, y) in enumerate(places) if y > box["y"] + box["height"] / 2 and x > box["x"] + 57}
    assert 3 < len(inside) < 60
    assert page.locator("#n-selected").inner_text() == str(len(inside))
    assert page.locator("#tab-selected").get_attribute("aria-selected") == "true"
    listed = {int(e.get_attribute("data-row")) for e in page.locator("#list > li").all()}
    assert listed <= inside
    assert len(listed) == min(25, len(inside))


def test_filters_narrow_the_map_and_the_lists(open_page: Any, make_run: Any) -> None:
    page = open_page(write_run_page(make_run()))
    page.locator("#tab-view").click()
    assert page.locator("#n-view").inner_text() == "60"
    page.select_option("#by-label", label="food (20)")
    assert page.locator("#n-view").inner_text() == "20"
    page.locator("#by-words").fill("NUMBER 1")
    page.wait_for_selector("#n-view:not(:text-is('20'))")  # typing is waited for
    shown = [e.inner_text() for e in page.locator("#list > li p.text").all()]
    assert shown
    assert all("1" in text and "food" in text for text in shown)
    page.locator("#by-words").fill("nowhere")
    page.wait_for_selector("#n-view:text-is('0')")
    page.locator("#tab-suspects").click()
    assert "suspects passes the filters above" in page.locator("#list").inner_text()
    page.locator("#tab-view").click()
    page.locator("#clear").click()
    assert page.locator("#n-view").inner_text() == "60"
    legend = page.locator("#legend").inner_text()
    page.select_option("#colour", "label")
    assert "weather" in page.locator("#legend").inner_text() != legend


def test_the_map_is_moved_by_keys_and_its_view_can_be_listed(open_page: Any, make_run: Any) -> None:
    page = open_page(write_run_page(make_run()))
    page.locator("#points").focus()
    for key in ("+", "+", "+", "ArrowDown", "ArrowLeft"):
        page.keyboard.press(key)
    page.keyboard.press("Enter")
    assert int(page.locator("#n-view").inner_text()) < 60
    assert page.evaluate("document.activeElement.id") == "tab-view"
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.id") == "tab-selected"


def decided(page: Any, folder: Path) -> list[dict[str, str]]:
    with page.expect_download() as download:
        page.locator("#download").click()
    file = folder / "decisions.csv"
    download.value.save_as(file)
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def test_marks_are_downloaded_as_a_table_and_remembered(open_page: Any, make_run: Any, tmp_path: Path) -> None:
    page = open_page(write_run_page(make_run()))
    assert page.locator("#download").is_disabled()
    items = page.locator("#list > li")
    rows = [int(items.nth(k).get_attribute("data-row")) for k in range(4)]
    items.nth(0).get_by_label("keep").check()
    items.nth(1).get_by_label("relabel").check()
    items.nth(2).get_by_label("drop").check()
    items.nth(3).get_by_label("drop").check()
    items.nth(3).get_by_label("drop").click()  # taken back
    assert page.locator("#decided").inner_text() == "3 marked: 1 keep, 1 relabel, 1 drop."
    found = {line["id"]: line for line in decided(page, tmp_path)}
    assert set(found) == {f"s{row}" for row in rows[:3]}
    assert found[f"s{rows[0]}"]["decision"] == "keep"
    assert found[f"s{rows[0]}"]["new_label"] == ""
    assert found[f"s{rows[1]}"]["decision"] == "relabel"
    assert found[f"s{rows[1]}"]["new_label"] != found[f"s{rows[1]}"]["label"]
    assert found[f"s{rows[2]}"]["decision"] == "drop"
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    assert page.locator("#decided").inner_text() == "3 marked: 1 keep, 1 relabel, 1 drop."
    page.locator("#forget").click()
    assert page.locator("#decided").inner_text() == "Nothing is marked yet."


def test_hostile_texts_are_shown_and_run_nothing(
    open_page: Any, make_run: Any, hostile: tuple[str, ...], tmp_path: Path
) -> None:
    ids = ["=1+1", "+a", "-b", "@c", "\td", '"quoted", comma', "</script>", "a\nb", *(f"s{i}" for i in range(52))]
    classes = ("<img src=x onerror='window.hacked = 1'>", "=cmd()", "\u202ertl")
    page = open_page(write_run_page(make_run(hostile=True, ids=ids, classes=classes)))
    page.select_option("#sort", "row")
    page.locator("#tab-view").click()
    items = page.locator("#list > li")
    for row, text in enumerate(hostile):
        shown = items.nth(row).locator("p.text").first.text_content()
        assert shown.replace("␀", "\0").replace("␇", "\a") == text[:2000]
        assert items.nth(row).locator("p.text").first.evaluate("e => e.children.length") == 0
    for row in range(8):
        items.nth(row).get_by_label("relabel").check()
    lines = decided(page, tmp_path)
    for line, id_ in zip(lines, ids, strict=False):
        assert line["id"] == (f"'{id_}" if id_[0] in "=+-@\t" else id_)
        assert line["new_label"][0] not in "=+-@\t\r"
    assert len(lines) == 8


def test_decisions_about_hostile_samples_are_applied_to_their_table(
    open_page: Any, make_run: Any, hostile: tuple[str, ...], tmp_path: Path
) -> None:
    ids = ["=1+1", "+a", "-b", "@c", "\td", '"quoted", comma', "</script>", "a\nb", *(f"s{i}" for i in range(22))]
    classes = ("<b>", "=cmd()", "\u202ertl")
    page = open_page(write_run_page(make_run(hostile=True, ids=ids, classes=classes, samples=30)))
    page.select_option("#sort", "row")
    page.locator("#tab-view").click()
    for row in range(4):
        page.locator("#list > li").nth(2 * row).get_by_label("drop").check()
        page.locator("#list > li").nth(2 * row + 1).locator("select").select_option(index=0)
    page.locator("#list > li").nth(8).get_by_label("keep").check()
    decided(page, tmp_path)
    texts = [*hostile, *(f"text {i}" for i in range(30))][:30]
    table = pa.table({"id": ids, "text": texts, "label": [classes[i % 3] for i in range(30)]})
    examples = Examples(table, np.arange(30) % 3, classes)
    decisions = read_decisions(tmp_path / "decisions.csv", examples)
    done = apply_decisions(table, examples, decisions, label="label")
    assert (done.kept, done.relabelled, done.dropped) == (1, 4, 4)
    assert done.table["id"].to_pylist() == [*ids[1:8:2], *ids[8:]]
    assert done.table["label"].to_pylist()[:4] == ["<b>", "=cmd()", "<b>", "<b>"]


def test_decisions_name_the_columns_that_were_named_for_the_map(open_page: Any, make_run: Any, tmp_path: Path) -> None:
    folder = make_run()
    columns = {"text": 'the "body", raw', "label": "=queue"}
    metrics = json.loads((folder / "metrics.json").read_text())
    (folder / "metrics.json").write_text(json.dumps({**metrics, "columns": columns}))
    page = open_page(write_run_page(folder))
    for row in range(2):
        page.locator("#list > li").nth(row).get_by_label("drop").check()
    decided(page, tmp_path)
    assert decided_columns(tmp_path / "decisions.csv") == columns


def test_what_is_copied_is_how_it_was_made(open_page: Any, make_run: Any) -> None:
    folder = make_run()
    page = open_page(write_run_page(folder), permissions=["clipboard-read", "clipboard-write"])
    page.locator("[data-copy=record]").click()
    page.wait_for_selector("text=Copied")
    assert page.evaluate("navigator.clipboard.readText()") == (folder / "run.toml").read_text()


def test_charts_have_tables_and_controls_have_names(open_page: Any, make_run: Any) -> None:
    page = open_page(write_run_page(make_run()))
    for group in ("#reliability-tables", "#risk-table", "#curves-table"):
        assert page.locator(f"{group} table caption").count() >= 1
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("select, input, button, canvas, svg[role=img]")]
          .filter((e) => !(e.labels && e.labels.length) && !e.getAttribute("aria-label") && !e.textContent.trim())
          .map((e) => e.outerHTML)"""
    )
    assert unnamed == []


def test_choices_are_shown_and_relabelled_by_number(open_page: Any, make_run: Any, tmp_path: Path) -> None:
    import tiny

    folder = make_run(samples=0)
    examples: Examples = tiny.examples(9, kind="choices")
    counts = examples.choice_counts
    assert counts is not None
    logits = np.where(np.arange(4) < counts[:, None], np.random.default_rng(0).normal(size=(3, 9, 4)), -np.inf)
    write_map(folder, Dynamics.from_logits(logits, examples.labels, ids=examples.ids), examples)
    page = open_page(write_run_page(folder))
    page.select_option("#sort", "row")
    page.locator("#tab-view").click()
    for row, count in enumerate(counts):
        item = page.locator("#list > li").nth(row)
        shown = item.inner_text()
        assert all(choice in shown for choice in examples.column("choices")[row])
        assert item.locator("select option").count() == count - 1
    page.locator("#list > li").nth(2).locator("select").select_option(index=0)
    decided(page, tmp_path)
    (decision,) = read_decisions(tmp_path / "decisions.csv", examples)
    assert (decision.row, decision.action) == (2, "relabel")
    assert decision.label != examples.labels[2]


def test_it_prints_light_without_controls(open_page: Any, make_run: Any) -> None:
    page = open_page(write_run_page(make_run()), color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(27, 31, 36)"
    assert page.locator("nav").is_hidden()
    assert page.locator("#threshold").is_hidden()
    assert page.locator("#reliability svg").first.is_visible()


def test_curves_show_what_was_before_fine_tuning_as_a_point_of_its_own(open_page: Any, make_run: Any) -> None:
    page = open_page(write_run_page(make_run(before=True)))
    accuracy = page.locator("#curves figure").nth(1)
    assert accuracy.locator(".dot").count() == 4
    assert accuracy.locator("path.line").get_attribute("d").count("L") == 2
    assert accuracy.locator(".dot title").first.text_content().startswith("dev accuracy, before fine-tuning: 58.3")
    assert "before" in accuracy.locator("svg text").all_text_contents()
    page.locator("#training details summary").click()
    assert page.locator("#curves-table tbody th").first.inner_text() == "before fine-tuning"
    assert page.locator("#curves-table tbody td").first.inner_text() == "–"


def test_the_map_of_a_network_that_has_hardly_begun_fills_its_axes(open_page: Any, make_run: Any) -> None:
    folder = make_run(samples=0)
    labels = np.arange(300) % 50
    logits = np.random.default_rng(0).normal(scale=0.3, size=(3, 300, 50))
    classes = tuple(f"class {k}" for k in range(50))
    examples = Examples(pa.table({"id": [f"s{i}" for i in range(300)], "text": ["a"] * 300}), labels, classes)
    write_map(folder, Dynamics.from_logits(logits, labels, ids=examples.ids, label_names=classes), examples)
    page, run = open_page(write_run_page(folder)), read_run(folder)
    to_map(page)
    box = page.locator("#points").bounding_box()
    places = np.array([place_of(page, run, row) for row in range(300)]) - (box["x"], box["y"])
    assert np.ptp(places[:, 0]) > box["width"] / 3
    assert np.ptp(places[:, 1]) > box["height"] / 3
    row = int(np.argmax(run.dynamics.variability))
    page.mouse.move(*place_of(page, run, row))
    assert f"variability {run.dynamics.variability[row]:.2f}" in page.locator("#hover").inner_text()
    assert "The axes fit the points" in page.locator("#map").inner_text()
    page.locator("#tab-view").click()
    assert page.locator("#n-view").inner_text() == "300"
    page.locator("#tab-suspects").click()
    assert "No label is called wrong: the model had hardly learnt anything" in page.locator("#list").inner_text()


def test_a_single_diagram_has_its_table_beside_it(open_page: Any, make_run: Any) -> None:
    page = open_page(write_run_page(make_run(sets=("dev", "test"))))
    chart, table = page.locator("#reliability").bounding_box(), page.locator("#reliability-tables").bounding_box()
    assert table["x"] >= chart["x"] + chart["width"]
    assert table["y"] < chart["y"] + chart["height"] / 2
    assert table["height"] <= chart["height"] + 40
    page.locator("#aside").check()  # two diagrams fill the page, and their tables are folded
    assert page.locator("#reliability-tables").is_hidden()
    narrow = open_page(write_run_page(make_run("narrow", sets=("dev", "test"))), width=390)
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 390


def test_numbers_below_zero_have_a_minus(open_page: Any, make_run: Any) -> None:
    page = open_page(write_run_page(make_run()))
    shown = page.locator("#list > li").first.inner_text()
    assert "margin −" in shown
    assert "margin -" not in shown
    assert "final prediction: " in shown
