"""The pages about recipes, maps and pages: their code runs, and their tables are those of the code."""

import csv
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from pages import DOCS, blocks, commands, exit_code, follow
from transformers import AutoModelForSequenceClassification

from calmix.data import read_examples
from calmix.dynamics import Dynamics
from calmix.mixing import RECIPES, Recipe, choose, choosing, options_of

RECIPES_PAGE = (DOCS / "recipes.md").read_text(encoding="utf-8")
METHOD_PAGE = (DOCS / "your-own-method.md").read_text(encoding="utf-8")
MAP_PAGE = (DOCS / "map.md").read_text(encoding="utf-8")
DYNAMICS_PAGE = (DOCS / "dynamics.md").read_text(encoding="utf-8")
SELECTIVE_PAGE = (DOCS / "selective.md").read_text(encoding="utf-8")


def _blocks(page: str, language: str) -> list[str]:
    return [code for kind, code in blocks(page) if kind == language]


@pytest.fixture
def desk(checkpoint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A folder with tables, decisions and `my.py`, a tiny model for `minilm`, and the names a loop of one's own has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for place in ("pipeline", "surveying"):
        monkeypatch.setattr(f"calmix.training.{place}.resolve", lambda _name: str(checkpoint("bert")))
    for seed, name in enumerate(("train.csv", "test.csv")):
        with (tmp_path / name).open("w", newline="") as out:
            writer = csv.writer(out)
            writer.writerow(["text", "label"])
            writer.writerows(zip(*tiny.texts(60, seed=seed), strict=True))
    (tmp_path / "decisions.csv").write_text(f"id,decision\n{read_examples('train.csv').ids[0]},drop\n")
    (tmp_path / "my.py").write_text(_blocks(METHOD_PAGE, "python")[0])
    tokenizer = tiny.tokenizer("bert")
    batch = tokenizer(tiny.texts(6)[0], padding=True, return_tensors="pt")
    texts, labels = tiny.texts(30)
    recorded = np.random.default_rng(0).normal(size=(2, 30, 3)).astype(np.float32)
    (tmp_path / "erm-run").mkdir()
    Dynamics.from_logits(recorded, np.arange(30) % 3).save(tmp_path / "erm-run" / "datamap.parquet")
    yield {
        "texts": texts,
        "labels": labels,
        "model": AutoModelForSequenceClassification.from_pretrained(checkpoint("bert")),
        "batch": {**batch, "labels": torch.tensor([0, 1, 2, 0, 1, 2])},
        "generator": torch.Generator().manual_seed(0),
        "tokenizer": tokenizer,
        "positions": torch.arange(6),
    }
    sys.modules.pop("my", None)


@pytest.mark.parametrize("page", [RECIPES_PAGE, METHOD_PAGE], ids=["recipes", "your-own-method"])
def test_the_python_of_a_page_runs(desk: dict[str, Any], page: str) -> None:
    for code in _blocks(page, "python"):
        names = dict(desk)
        exec(compile(code, "<page>", "exec"), names)
        if "run" in names:
            assert (names["run"].folder / "metrics.json").is_file()
        if "loss" in names:
            assert names["loss"].isfinite()


def test_the_python_of_the_page_about_abstaining_runs_from_top_to_bottom(desk: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(3), 200)
    names = desk | {"probs": probs, "labels": probs.argmax(1), "new_probs": probs[:5], "texts": tiny.texts(4)[0]}
    for code in _blocks(SELECTIVE_PAGE, "python"):
        exec(compile(code, "<page>", "exec"), names)
    assert len(names["answers"]) == len(names["accepted"]) == len(names["possible"]) == 4


def test_the_python_of_the_page_about_dynamics_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    inputs, labels = torch.randn(30, 4), torch.arange(30) % 2
    model = torch.nn.Linear(4, 2)
    logits = torch.randn(30, 3)
    names: dict[str, Any] = {
        "torch": torch,
        "train_set": range(30),
        "device": "cpu",
        "loader": [(inputs[part], labels[part], part) for part in torch.arange(30).split(8)],
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "high": torch.arange(30) < 15,
        "hidden": torch.randn(30, 5),
    }
    for code in _blocks(DYNAMICS_PAGE, "python"):
        if "batch_partners" in code:
            names |= {"logits": logits, "labels": torch.arange(30) % 3}
        exec(compile(code, "<page>", "exec"), names)
    assert (names["farthest"] < 30).all()
    assert len(names["first"]) > 0


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("page", [RECIPES_PAGE, METHOD_PAGE, MAP_PAGE], ids=["recipes", "your-own-method", "map"])
def test_the_commands_of_a_page_run(page: str) -> None:
    found = [words for block in _blocks(page, "") for words in commands(block)]
    assert found
    for words in found:
        assert exit_code(words[1:]) == 0, " ".join(words)


def test_the_page_about_distillation_runs_from_top_to_bottom(desk: dict[str, Any]) -> None:
    follow("distil", **desk)
    assert (Path("informed-student") / "metrics.json").is_file()
    assert (Path("mixed-student") / "metrics.json").is_file()


def test_the_page_about_scikit_learn_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    follow("sklearn", smaller={"epochs=10": "epochs=1"})
    assert list(tmp_path.iterdir()) == []


def test_the_arguments_on_the_page_about_scikit_learn_are_those_there_are() -> None:
    from calmix import TextClassifier

    page = (DOCS / "sklearn.md").read_text(encoding="utf-8")
    table = page.split("| argument | default |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE)
    written = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(written) == sorted(TextClassifier().get_params())


def test_the_page_about_pages_runs_from_top_to_bottom(desk: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib")
    follow("report", **desk)
    for file in ("run", "map", "judged"):
        assert (Path(file) / "report.html").is_file()
    for file in ("comparison.html", "fig.pdf", "corrected.csv", "reliability.svg"):
        assert Path(file).is_file()


@pytest.mark.parametrize("name", ["contrast", "focal", "twice"])
@pytest.mark.parametrize("rows", [1, 5])
def test_the_methods_of_the_page_do_what_they_say(make_tiny_step: Any, tmp_path: Path, name: str, rows: int) -> None:
    code = next(block for block in _blocks(METHOD_PAGE, "python") if f"def {name}(" in block)
    file = tmp_path / "method.py"
    file.write_text(code)
    recipe = choose(f"{file}:{name}")
    assert isinstance(recipe, Recipe)
    losses = recipe.loss(make_tiny_step(rows))
    assert losses.shape == (rows,)
    assert losses.isfinite().all()
    maker = getattr(sys.modules["calmix_recipe_method"], name)
    if name == "contrast":
        partner = sys.modules["calmix_recipe_method"].other_class(make_tiny_step(6))
        targets = make_tiny_step(6).targets
        assert (targets[partner] * targets).sum() == 0
    if name == "focal":
        step = make_tiny_step(rows)
        plain = torch.nn.functional.cross_entropy(step.logits, step.targets.argmax(1), reduction="none")
        torch.testing.assert_close(maker(gamma=0.0).loss(step), plain)
        torch.testing.assert_close(losses, (1 - (-plain).exp()) ** 2 * plain)


@pytest.fixture
def make_tiny_step(checkpoint: Any) -> Any:
    from calmix.mixing import Step, fill_tokens
    from calmix.models import encode, load_trained

    def make(rows: int) -> Step:
        model, tokenizer = load_trained(checkpoint("bert"))
        examples = tiny.examples(rows)
        packed = encode(examples, tokenizer, max_length=64)
        return Step(
            model=model,
            inputs=packed.batch(torch.arange(rows), width=24),
            targets=torch.nn.functional.one_hot(torch.from_numpy(examples.labels), 3).float(),
            generator=torch.Generator().manual_seed(0),
            fill=fill_tokens(tokenizer),
        )

    return make


def _section(name: str) -> str:
    found = re.search(rf"^## {re.escape(name)}\n(.*?)(?=^## )", RECIPES_PAGE, flags=re.DOTALL | re.MULTILINE)
    assert found, f"docs/recipes.md has no section {name}"
    return found[1]


@pytest.mark.parametrize("name", RECIPES)
def test_the_options_of_a_recipe_are_those_of_its_section_with_their_defaults(name: str) -> None:
    written = dict(re.findall(r"^\| `(\w+)` \| ?(.*?) ?\|", _section(name), flags=re.MULTILINE))
    options = options_of(RECIPES[name])
    assert list(written) == [option.name for option in options]
    for option in options:
        text = "" if written[option.name] == "all" else written[option.name]
        assert choosing._read(name, option, text) == option.default, option.name


def test_every_recipe_has_its_formula() -> None:
    table = RECIPES_PAGE.split("| recipe | loss of sample i |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", table, flags=re.MULTILINE) == list(RECIPES)


def test_the_paddings_and_masks_are_those_there_are() -> None:
    from typing import get_args

    from calmix.mixing.levels import Mask, Padding

    for kind, literal in (("padding", Padding), ("mask", Mask)):
        table = RECIPES_PAGE.split(f"| `{kind}` | the ")[1].split("\n\n")[0]
        assert set(re.findall(r"^\| `([\w-]+)` \|", table, flags=re.MULTILINE)) == set(get_args(literal))
