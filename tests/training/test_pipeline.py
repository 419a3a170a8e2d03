"""From files to a finished run folder."""

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny
import torch
from safetensors.torch import load_file

import calmix
from calmix.data import Examples, write_table
from calmix.errors import InputError
from calmix.recipes import RECIPES, Recipe, Step, clean, erm, input_mixup
from calmix.training import train
from calmix.training.loop import predict_everywhere


def written(examples: Examples, path: Path) -> Path:
    labels = [examples.label_names[k] for k in examples.labels] if examples.label_names else examples.labels.tolist()
    table = examples.table.append_column("label", pa.array(labels))
    if path.suffix == ".csv":
        table = table.drop_columns(["id"])
    write_table(table, path)
    return path


def probabilities(file: Path) -> np.ndarray:
    table = pq.read_table(file)
    return np.stack([table[f"p_{name}"].to_numpy() for name in tiny.LABELS], axis=1)


def test_files_become_a_run_folder_with_everything_in_it(tmp_path: Path, checkpoint: Any) -> None:
    files = {n: str(written(tiny.examples(30, seed=i), tmp_path / f"{n}.csv")) for i, n in enumerate(("a", "b", "c"))}
    out = tmp_path / "runs" / "one"
    sets = {"dev": files["b"], "test": files["c"], "ood": {"x": files["b"]}}
    run = train(files["a"], **sets, model=str(checkpoint("bert")), epochs=3, out=out)
    assert run.folder == out
    assert sorted(p.name for p in out.iterdir()) == [
        "datamap.parquet",
        "label_issues.csv",
        "log.jsonl",
        "metrics.json",
        "model",
        "predictions-dev.parquet",
        "predictions-ood-x.parquet",
        "predictions-test.parquet",
        "run.toml",
    ]
    assert run.metrics == json.loads((out / "metrics.json").read_text())
    assert run.metrics["rows"] == {"train": 30, "dev": 30, "test": 30, "ood-x": 30}
    assert [entry["epoch"] for entry in run.metrics["epochs"]] == [0, 1, 2, 3]
    assert [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()] == run.metrics["epochs"]
    settings = tomllib.loads((out / "run.toml").read_text())
    assert settings["config"]["recipe"] == "erm"
    assert settings["decided"] == {"precision": "fp32", "threads": 1}
    card = (out / "model" / "README.md").read_text()
    assert "best of 3 epochs" in card
    assert "| ood-x | 30 |" in card


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_transformers_alone_gives_the_calibrated_probabilities(quick: Any, precision: str) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    test = tiny.examples(20, seed=5)
    run = quick(test=test, precision=precision, lr=3e-2)
    model = AutoModelForSequenceClassification.from_pretrained(run.model).eval()
    tokenizer = AutoTokenizer.from_pretrained(run.model)
    with torch.no_grad():
        logits = model(**tokenizer(test.column("text"), padding=True, return_tensors="pt")).logits
    ours = probabilities(run.folder / "predictions-test.parquet")
    np.testing.assert_allclose(torch.softmax(logits.double(), -1), ours, atol=1e-5)
    assert model.config.id2label == dict(enumerate(tiny.LABELS))
    assert run.metrics["temperature"] != 1.0
    np.testing.assert_allclose(calmix.load(run.folder).probabilities(test), ours, atol=1e-5)


def test_the_temperature_is_the_one_that_fits_the_dev_predictions(quick: Any) -> None:
    from calmix.recalibration import Temperature

    dev = tiny.examples(12, seed=1)
    run = quick(dev=dev)
    table = pq.read_table(run.folder / "predictions-dev.parquet")
    fitted = Temperature.fit(np.array(table["logits"].to_pylist()), dev.labels)
    assert run.metrics["temperature"] == pytest.approx(fitted.temperature)
    assert run.metrics["splits"]["dev"]["after"]["nll"] <= run.metrics["splits"]["dev"]["before"]["nll"]


@pytest.mark.parametrize("architecture", ["bert", "distilbert"])
def test_the_same_rows_get_the_same_predictions_in_every_set(quick: Any, checkpoint: Any, architecture: str) -> None:
    """Whatever precision was trained in: the figures are those of the finished model."""
    rows = tiny.examples(40, seed=1)
    run = quick(model=checkpoint(architecture), dev=rows, test=rows, precision="bf16")
    assert any("test: 40 of 40 rows are also in dev" in note for note in run.metrics["notes"])
    dev, test = (probabilities(run.folder / f"predictions-{name}.parquet") for name in ("dev", "test"))
    assert dev.tolist() == test.tolist()


def test_what_the_best_epoch_said_of_dev_data_is_not_asked_again(quick: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def predicted(model: Any, packed: Any, accelerator: Any) -> np.ndarray:
        asked.append(len(packed))
        return predict_everywhere(model, packed, accelerator)

    monkeypatch.setattr("calmix.training.pipeline.predict_everywhere", predicted)
    quick(dev=tiny.examples(12, seed=1), test=tiny.examples(20, seed=2))
    assert asked == [20]


def test_without_dev_data_a_share_is_split_off_and_said(quick: Any) -> None:
    heard: list[str] = []
    run = quick(dev=None, train=tiny.examples(60), dev_fraction=0.2, on_note=heard.append)
    assert run.metrics["rows"] == {"train": 48, "dev": 12}
    assert any("dev: 12 rows split off" in note for note in heard)
    assert heard == run.metrics["notes"]


def test_a_seed_decides_every_bit(quick: Any, outcome: Any) -> None:
    first, again, other = quick("a"), quick("b"), quick("c", seed=4)
    assert outcome(first.folder) == outcome(again.folder)
    weights = [(run.model / "model.safetensors").read_bytes() for run in (first, other)]
    assert weights[0] != weights[1]


def test_what_ran_before_in_the_process_does_not_matter(quick: Any, outcome: Any) -> None:
    first = quick("a")
    quick("between", precision="bf16", recipe="manifold-mixup")
    torch.manual_seed(99)
    assert outcome(quick("b").folder) == outcome(first.folder)


def assert_same_weights(one: Path, other: Path) -> None:
    a, b = (load_file(folder / "model.safetensors") for folder in (one, other))
    for name in a:
        # Attention does not depend on the keys' bias: its gradient is rounding alone, which Adam blows up.
        if not name.endswith("key.bias"):
            torch.testing.assert_close(a[name], b[name], rtol=1e-3, atol=1e-5)


def threads_of(folder: Path) -> int:
    return int(tomllib.loads((folder / "run.toml").read_text())["decided"]["threads"])


def test_a_quota_limits_torch_and_changes_no_bit(
    quick: Any, outcome: Any, quota: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = quick("limited")
    assert threads_of(limited.folder) == torch.get_num_threads() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert outcome(quick("said").folder) == outcome(limited.folder)


def test_threads_that_a_program_set_stay_whatever_the_quota(quick: Any, quota: None) -> None:
    torch.set_num_threads(3)
    assert threads_of(quick().folder) == torch.get_num_threads() == 3


def test_parts_of_a_batch_give_the_weights_of_the_whole(quick: Any, calm: Path) -> None:
    # 26 rows in batches of 7, cut into 3 parts: every split is uneven, and the last batch has fewer rows than most.
    options = {"model": calm, "train": tiny.examples(26), "batch_size": 7, "select": "none"}
    whole, parts = quick("a", **options), quick("b", **options, accumulate=3)
    assert_same_weights(whole.model, parts.model)


def test_pairs_are_trained_and_predicted(quick: Any) -> None:
    data = tiny.examples(24, kind="pair")
    run = quick(train=data, dev=tiny.examples(12, kind="pair", seed=4))
    found = calmix.load(run.folder).predict_proba(list(zip(data.column("text"), data.column("text_b"), strict=True)))
    assert found.shape == (24, 3)


def test_ragged_choices_are_trained_and_predicted(quick: Any, checkpoint: Any) -> None:
    from transformers import AutoModelForMultipleChoice

    dev = tiny.examples(12, kind="choices", seed=4, counts=(4, 2, 3))
    run = quick(train=tiny.examples(30, kind="choices"), dev=dev, model=checkpoint("bert", choices=True), accumulate=2)
    rows = pq.read_table(run.folder / "predictions-dev.parquet")["probs"].to_pylist()
    assert [len(row) for row in rows] == [4, 2, 3] * 4
    np.testing.assert_allclose([sum(row) for row in rows], 1)
    found = calmix.load(run.folder).probabilities(dev)
    np.testing.assert_allclose([p for row in rows for p in row], found[found > 0], atol=1e-5)
    assert type(AutoModelForMultipleChoice.from_pretrained(run.model)).__name__ == "BertForMultipleChoice"
    assert "Multiple-choice model" in (run.model / "README.md").read_text()


def test_votes_are_soft_targets(tmp_path: Path, checkpoint: Any) -> None:
    sentences, labels = tiny.texts(30)
    votes = [{name: 3 if name == label else 1 for name in tiny.LABELS} for label in labels]
    file = tmp_path / "votes.jsonl"
    file.write_text("".join(json.dumps({"text": t, "votes": v}) + "\n" for t, v in zip(sentences, votes, strict=True)))
    run = train(
        file, votes="votes", dev_fraction=0.3, model=str(checkpoint("bert")), out=tmp_path / "run", lr=2e-2, epochs=20
    )
    # The best that can be learnt from these votes is 60 % on one class: the loss stops at their entropy.
    entropy = -(0.6 * np.log(0.6) + 2 * 0.2 * np.log(0.2))
    assert run.metrics["epochs"][-1]["loss"] > entropy - 1e-3


def test_texts_longer_than_the_model_are_cut_and_counted(quick: Any) -> None:
    sentences, labels = tiny.texts(24)
    sentences[3] = sentences[7] = " ".join([sentences[3]] * 40)
    run = quick(train=Examples.from_texts(sentences, labels))
    note = f"train: 2 of 24 texts are longer than {tiny.POSITIONS} tokens and were cut (--max-length)"
    assert note in run.metrics["notes"]
    run = quick("b", max_length=6)
    told = [note for note in run.metrics["notes"] if "texts are longer than 6 tokens" in note]
    assert len(told) == 1
    assert re.match(r"train: \d+ of \d+, dev: \d+ of \d+ texts are longer", told[0])
    assert calmix.load(run.folder).tokenizer.model_max_length == 6


def test_gradient_checkpointing_changes_no_weight(quick: Any, calm: Path) -> None:
    kept, recomputed = (quick(str(on), model=calm, gradient_checkpointing=on, select="none") for on in (False, True))
    assert_same_weights(kept.model, recomputed.model)


@pytest.mark.parametrize("batch_size", [1, 5, 23, 1000])
def test_any_batch_size_works(quick: Any, batch_size: int) -> None:
    run = quick(batch_size=batch_size, recipe="input-mixup", epochs=1)
    assert run.metrics["epochs"][0]["step"] == -(-24 // batch_size)


def test_two_rows_are_enough_when_dev_data_is_given(quick: Any) -> None:
    two = Examples.from_texts(["cat", "pie"], ["animal", "food"])
    dev = Examples.from_texts(["dog", "bread"], ["animal", "food"])
    assert quick(train=two, dev=dev).metrics["rows"] == {"train": 2, "dev": 2}


def test_a_class_that_most_batches_lack_is_no_trouble(quick: Any) -> None:
    labels = ["animal"] * 22 + ["food", "weather"]
    data = Examples.from_texts(tiny.texts(24)[0], labels)
    assert quick(train=data, batch_size=2, class_weights="balanced", epochs=1).metrics["rows"]["train"] == 24


@pytest.mark.parametrize(
    ("train_on", "message"),
    [
        (Examples.from_texts(["a", "b", "c"], ["x", "x", "x"]), "every row has the same label, 'x': nothing to learn"),
        (Examples.from_texts(["cat", "pie"], ["animal", "food"]), "too few to set some aside; give a dev file"),
    ],
)
def test_what_cannot_be_learnt_from_is_refused(quick: Any, tmp_path: Path, train_on: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        quick(train=train_on, dev=None)
    assert list(tmp_path.iterdir()) == []


def at_half_price(*, price: float = 0.5) -> Recipe:
    """Cross-entropy at half price."""
    term = clean()
    return Recipe(lambda step: price * term(step))


def test_a_recipe_may_be_an_object(quick: Any, outcome: Any) -> None:
    named, made = quick("a", recipe="erm"), quick("b", recipe=erm())
    weights = [outcome(run.folder)["model/model.safetensors"] for run in (named, made)]
    assert weights[0] == weights[1]
    assert quick("c", recipe=at_half_price()).metrics["epochs"][0]["loss"] < named.metrics["epochs"][0]["loss"]


def test_a_recipe_may_be_a_function_in_a_file(quick: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from calmix.recipes import RECIPES, Recipe, clean\n"
        "def mine(*, price: float = 0.5) -> Recipe:\n"
        "    term = clean()\n"
        "    return Recipe(lambda step: price * term(step))\n"
    )
    run = quick(recipe=f"{file}:mine", options={"price": "0.25"})
    settings = tomllib.loads((run.folder / "run.toml").read_text())["config"]
    assert settings["recipe"].startswith("mine.mine-")
    assert settings["options"] == {"price": "0.25"}


def mean_loss(step: Step) -> torch.Tensor:
    return clean()(step).mean()


def test_a_recipe_whose_loss_is_not_one_per_row_is_refused(quick: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"loss has shape \(\) for 8 rows: it must return one per row"):
        quick(recipe=Recipe(mean_loss))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("track", [("tensorboard",), "tensorboard"])
def test_tensorboard_gets_the_curves(quick: Any, track: Any) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = quick(track=track)
    (events,) = {p.parent for p in run.folder.rglob("events.out.tfevents.*") if p.parent.name == "calmix"}
    found = EventAccumulator(str(events)).Reload()
    assert [e.step for e in found.Scalars("train/loss")] == [3, 6]
    curve = [e.value for e in found.Scalars("dev/nll")]
    np.testing.assert_allclose(curve, [e["dev"]["nll"] for e in run.metrics["epochs"]], rtol=1e-6)


def test_a_dry_run_estimates_and_writes_nothing(quick: Any, tmp_path: Path) -> None:
    run = quick(dry_run=True, recipe="input-mixup")
    assert list(tmp_path.iterdir()) == []
    assert run.metrics["steps"] == 6
    assert run.metrics["seconds"] > 0
    assert run.metrics["memory_bytes"] > 2**20
    assert run.metrics["rows"] == {"train": 24, "dev": 12}


def test_rare_classes_have_figures_of_their_own_after_temperature(quick: Any) -> None:
    test = tiny.examples(90, seed=2)
    few = test.take(np.flatnonzero((test.labels != 1) | (np.arange(90) < 6)))
    splits = quick(test=few).metrics["splits"]
    assert [(one["label"], one["rows"]) for one in splits["test"]["after"]["rare"]] == [("food", 2)]
    assert splits["dev"]["after"]["rare"] == []


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_guarantee_that_its_rows_can_never_give_is_said_before_training(quick: Any, dry_run: bool) -> None:
    heard: list[str] = []

    def begun(_: Any) -> None:
        heard.append("training")

    run = quick(dev=tiny.examples(60, seed=1), guarantee=0.95, dry_run=dry_run, on_note=heard.append, on_progress=begun)
    (said,) = [note for note in run.metrics["notes"] if note.startswith("guarantee: ")]
    assert "can never be promised from 30 held-out rows: it takes at least 104" in said
    assert "training" not in heard[: heard.index(said)]


def test_a_guarantee_is_made_on_rows_that_chose_nothing(quick: Any) -> None:
    dev = tiny.examples(60, seed=1)
    run = quick(dev=dev, guarantee=0.6, lr=3e-2, epochs=4)
    assert run.metrics["rows"] == {"train": 24, "dev": 30, "guard": 30}
    ids = [set(pq.read_table(run.folder / f"predictions-{n}.parquet")["id"].to_pylist()) for n in ("dev", "guard")]
    assert not ids[0] & ids[1]
    assert ids[0] | ids[1] == set(dev.ids)
    beside = json.loads((run.model / "calmix.json").read_text())
    assert beside == run.metrics["guarantee"]
    assert beside["threshold"]["accuracy"] == beside["sets"]["level"] == 0.6
    assert run.metrics["promises"]["rows"] == 30
    loaded = calmix.load(run.folder).beside
    assert loaded.threshold is not None
    assert loaded.sets is not None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"learning_rate": 1e-3}, "'learning_rate'; did you mean 'lr'?"),
        ({"alpha": 0.4}, "'alpha': options of the recipe are given as options={'alpha': …}"),
        ({"seeds": 3}, "'seeds': a run has one seed, and `calmix study` trains several"),
        ({"epoch": 3}, "'epoch'; did you mean 'epochs'?"),
        ({"num_train_epochs": 3}, "'num_train_epochs'; did you mean 'epochs'?"),
        ({"qwertz": 3}, "'qwertz'"),
    ],
)
def test_an_argument_that_there_is_not_is_refused_by_the_name_that_was_called(
    quick: Any, tmp_path: Path, given: Any, says: str
) -> None:
    with pytest.raises(InputError) as caught:
        quick(**given)
    assert str(caught.value) == f"train() has no argument {says}"
    assert not list(tmp_path.iterdir())


def test_a_call_without_data_names_the_function_that_was_called() -> None:
    with pytest.raises(TypeError, match=r"^train\(\): missing a required argument: 'train'$"):
        train()
    with pytest.raises(TypeError, match=r"^train\(\): too many positional arguments$"):
        train("a.csv", "b.csv")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": -1}, "--epochs must be at least 0, not -1"),
        ({"epochs": 0}, "--epochs 0 is a fitted head alone, and a random one is not fitted"),
        ({"epochs": 1.5}, "--epochs must be a whole number, not 1.5"),
        ({"lr": -1e-3}, "--lr must be between 0 and 1"),
        ({"lr": "fast"}, "--lr must be a number, not 'fast'"),
        ({"clip": float("nan")}, "--clip must be 0 or above"),
        ({"seed": 2**64}, "--seed must be"),
        ({"select": "f1"}, "--select must be one of nll-ts, nll, accuracy, mcc, none, not 'f1'"),
        ({"schedule": "cosine"}, "--schedule must be one of linear, constant"),
        ({"precision": "fp16"}, "--precision must be one of auto, fp32, bf16"),
        ({"guarantee": 1.0}, "--guarantee must lie between 0 and 1, and be neither"),
        ({"checkpoint_minutes": -1}, "--checkpoint-minutes must be 0 or above"),
        ({"track": ("paper",)}, "--track paper: there is no such tracker"),
        ({"track": ("wandb",)}, "--track wandb: it is not installed"),
        ({"track": "wandb"}, "--track wandb: it is not installed"),
        ({"recipe": "mixdown"}, "mixdown"),
        ({"recipe": "manifold-mixup", "options": {"layers": "9"}}, "layers: this model has levels 0 to 3"),
        ({"max_length": 2}, "max_length 2 leaves no room for text"),
        ({"class_weights": {"fish": 2.0}}, "class weights name 'fish', which is not a label"),
        ({"class_weights": "heavy"}, "class weights are 'balanced' or one number per label"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_and_leave_nothing(
    quick: Any, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        quick(**changes)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_cannot_be_mixed_as_asked_is_refused_and_nothing_is_left(
    quick: Any, tmp_path: Path, checkpoint_of: Any
) -> None:
    with pytest.raises(InputError, match=r"cannot be mixed at the input \(.*\): it can at inner, head$"):
        quick(model=checkpoint_of("bart"), recipe="input-mixup")
    assert not (tmp_path / "run").exists()
    mixed = quick(model=checkpoint_of("bart"), recipe="cls-mixup", epochs=1)
    assert mixed.metrics["rows"]["dev"] == 12


def test_of_a_recipe_of_ones_own_a_note_says_where_the_network_cannot_be_mixed(quick: Any, checkpoint_of: Any) -> None:
    run = quick(model=checkpoint_of("lilt"), recipe=at_half_price(), epochs=1)
    assert any("cannot be mixed at layer 1" in note for note in run.metrics["notes"])


def test_numbers_of_numpy_are_numbers(quick: Any, outcome: Any) -> None:
    plain, other = quick("a"), quick("b", epochs=np.int64(2), lr=np.float64(1e-2), seed=np.int32(3))
    assert outcome(plain.folder) == outcome(other.folder)


def test_without_a_folder_the_run_goes_under_its_own_name(
    quick: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, other = (quick(None, recipe=input_mixup(alpha=alpha)) for alpha in (0.4, 0.2))
    assert first.folder.parent == Path("runs")
    assert first.folder != other.folder


def test_saving_is_silent(quick: Any, capfd: pytest.CaptureFixture[str]) -> None:
    quick()
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "back-translation"])
def test_every_recipe_trains(quick: Callable[..., Any], checkpoint: Any, recipe: str) -> None:
    teacher = checkpoint("bert") if recipe == "distil" else None
    done = quick(recipe=recipe, teacher=teacher, epochs=2, accumulate=2)
    first, last = (entry["loss"] for entry in done.metrics["epochs"])
    assert np.isfinite([first, last]).all()
