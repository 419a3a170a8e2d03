"""A head fitted in one call, for training loops of one's own."""

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import nn
from transformers import (
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

import calmix
from calmix.data import Examples
from calmix.errors import InputError
from calmix.models import FACTOR, anatomy, encode, fit_head, head_of, load_trained, predict_logits, scale_head
from calmix.models.fitting import HeadFit

TEXTS, LABELS = tiny.texts(90)
NUMBERS = [tiny.LABELS.index(label) for label in LABELS]


def ordinary(folder: Any) -> tuple[Any, Any]:
    """Return a model and a tokenizer as anybody loads them."""
    return AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def logits_of(model: Any, tokenizer: Any, texts: Any, **options: Any) -> torch.Tensor:
    """Return logits as anybody computes them."""
    model.eval()
    with torch.no_grad():
        return torch.cat(
            [model(**tokenizer(text, return_tensors="pt", truncation=True, **options)).logits for text in texts]
        )


def right(logits: torch.Tensor) -> float:
    return float((logits.argmax(1) == torch.tensor(NUMBERS)).float().mean())


def test_it_is_there_by_its_short_name() -> None:
    assert calmix.fit_head is fit_head


def test_the_head_knows_the_labels_and_is_small(checkpoint: Any, architecture: str) -> None:
    model, tokenizer = ordinary(checkpoint(architecture))
    found = fit_head(model, tokenizer, TEXTS, NUMBERS)
    small = logits_of(model, tokenizer, TEXTS)
    scale_head(model, 1 / FACTOR)
    full = logits_of(model, tokenizer, TEXTS)
    assert right(full) > 0.45  # by chance a third
    torch.testing.assert_close(8 * small, full)
    assert (found.rows, found.factor) == (90, FACTOR)
    assert 0 < found.accuracy <= 1
    assert found.strength > 0


@pytest.mark.parametrize("architecture", ["bert", "roberta", "llama"])
def test_what_it_says_of_held_out_rows_is_what_the_network_says_at_full_size(
    checkpoint: Any, architecture: str
) -> None:
    model, tokenizer = ordinary(checkpoint(architecture))
    found = fit_head(model, tokenizer, TEXTS[:60], NUMBERS[:60], dev=(TEXTS[60:], LABELS[60:]), factor=1.0)
    said = logits_of(model, tokenizer, TEXTS)[60:]
    assert found.accuracy == pytest.approx(float((said.argmax(1) == torch.tensor(NUMBERS[60:])).float().mean()))
    assert found.rows == 60


@pytest.mark.parametrize(("architecture", "pooling", "layers"), [("bert", "mean", 3), ("mpnet", "first", 2)])
def test_a_layer_is_added_where_the_architecture_has_room_for_it(
    checkpoint: Any, architecture: str, pooling: str, layers: int
) -> None:
    model, tokenizer = ordinary(checkpoint(architecture))
    assert fit_head(model, tokenizer, TEXTS, NUMBERS).pooling == pooling
    assert len(anatomy(model).layers) == model.config.num_hidden_layers == layers


@pytest.mark.parametrize("architecture", ["bert", "roberta", "mpnet", "distilbert"])
def test_asked_to_read_as_before_it_changes_nothing_but_the_head(checkpoint: Any, architecture: str) -> None:
    model, tokenizer = ordinary(checkpoint(architecture))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    config = model.config.to_dict()
    assert fit_head(model, tokenizer, TEXTS, NUMBERS, pooling="first").pooling == "first"
    after = model.state_dict()
    head = anatomy(model).head
    assert {name for name in after if not torch.equal(after[name], before[name])} == {f"{head}.weight", f"{head}.bias"}
    assert model.config.to_dict() == config


def test_twice_in_a_row_it_does_the_same(checkpoint: Any) -> None:
    model, tokenizer = ordinary(checkpoint("bert"))
    first = fit_head(model, tokenizer, TEXTS, NUMBERS)
    weight = head_of(model).weight.detach().clone()
    second = fit_head(model, tokenizer, TEXTS, NUMBERS)
    assert len(anatomy(model).layers) == 3
    assert second.rows == first.rows
    torch.testing.assert_close(head_of(model).weight, weight, atol=2e-2, rtol=2e-2)


def test_labels_are_numbers_or_names_in_any_kind_of_list(checkpoint: Any) -> None:
    kinds = [NUMBERS, LABELS, tuple(NUMBERS), np.array(NUMBERS), np.array(LABELS), torch.tensor(NUMBERS)]
    heads = []
    for labels in kinds:
        model, tokenizer = ordinary(checkpoint("bert"))
        fit_head(model, tokenizer, TEXTS, labels)
        heads.append(head_of(model).weight.detach())
    assert all(torch.equal(head, heads[0]) for head in heads)


def test_pairs_are_read_together(checkpoint: Any) -> None:
    model, tokenizer = ordinary(checkpoint("bert"))
    pairs = list(zip(["the old"] * 90, TEXTS, strict=True))
    found = fit_head(model, tokenizer, pairs, NUMBERS, factor=1.0)
    assert found.pooling == "first"
    said = torch.cat([logits_of(model, tokenizer, [a], text_pair=b) for a, b in pairs])
    assert right(said) > 0.6


def test_segments_that_the_model_does_not_read_are_left_out(checkpoint: Any) -> None:
    model, _ = ordinary(checkpoint("distilbert"))
    tokenizer = AutoTokenizer.from_pretrained(checkpoint("bert"))
    fit_head(model, tokenizer, list(zip(TEXTS, TEXTS, strict=True)), NUMBERS)
    assert "token_type_ids" in tokenizer.model_input_names  # it is somebody else's


def test_choices_are_fitted_too(checkpoint: Any) -> None:
    model = AutoModelForMultipleChoice.from_pretrained(checkpoint("bert", choices=True))
    tokenizer = AutoTokenizer.from_pretrained(checkpoint("bert", choices=True))
    examples = tiny.examples(90, kind="choices")
    texts = list(zip(examples.column("text"), examples.column("choices"), strict=True))
    packed = encode(examples, tokenizer, max_length=64)

    def loss() -> float:
        return float(
            nn.functional.cross_entropy(torch.tensor(predict_logits(model, packed)), torch.tensor(examples.labels))
        )

    found = fit_head(model, tokenizer, texts, examples.labels, factor=1.0)
    chance = np.log([2, 3, 4]).mean()
    assert loss() < chance
    assert (found.rows, found.pooling) == (90, "first")


def test_classes_can_count_differently(checkpoint: Any) -> None:
    said = []
    noisy = [NUMBERS[i] for i in np.random.default_rng(0).permutation(90)]
    for weights in ({"food": 5.0}, {"food": 0.2}):
        model, tokenizer = ordinary(checkpoint("bert"))
        fit_head(model, tokenizer, TEXTS, noisy, class_weights=weights, factor=1.0)
        said.append((logits_of(model, tokenizer, TEXTS).argmax(1) == 1).sum())
    assert said[0] > said[1]


def test_texts_are_cut_where_they_are_told_to_be(checkpoint: Any) -> None:
    heads = []
    for texts, most in ((TEXTS, 5), ([" ".join(text.split()[:3]) for text in TEXTS], 64), (TEXTS, 64)):
        model, tokenizer = ordinary(checkpoint("bert"))
        fit_head(model, tokenizer, texts, NUMBERS, max_length=most)
        heads.append(head_of(model).weight.detach())
    assert torch.equal(heads[0], heads[1])
    assert not torch.allclose(heads[0], heads[2])


def test_what_comes_of_it_cannot_be_changed(checkpoint: Any) -> None:
    model, tokenizer = ordinary(checkpoint("bert"))
    found = fit_head(model, tokenizer, TEXTS, NUMBERS)
    assert isinstance(found, HeadFit)
    with pytest.raises(FrozenInstanceError):
        found.rows = 3  # type: ignore[misc]


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_in_the_mode_it_was_in_and_nobody_watches_it(checkpoint: Any, training: bool) -> None:
    model, tokenizer = ordinary(checkpoint("bert"))
    model.train(training)
    told: list[int] = []
    fit_head(model, tokenizer, TEXTS, NUMBERS, progress=told.append)
    assert model.training is training
    assert sum(told) == 90
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


# ---- the model stays an ordinary one


@pytest.mark.parametrize("architecture", ["bert", "roberta", "distilbert", "electra", "deberta-v2"])
def test_saved_and_loaded_it_is_the_same(checkpoint: Any, architecture: str, tmp_path: Path) -> None:
    model, tokenizer = ordinary(checkpoint(architecture))
    fit_head(model, tokenizer, TEXTS, NUMBERS)
    expected = logits_of(model, tokenizer, TEXTS[:9])
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again, words = ordinary(tmp_path)
    torch.testing.assert_close(logits_of(again, words, TEXTS[:9]), expected)
    ours, words = load_trained(tmp_path)
    packed = encode(Examples.from_texts(TEXTS[:9]), words, max_length=64)
    np.testing.assert_allclose(predict_logits(ours, packed), expected, atol=1e-5)


def test_a_bare_loop_trains_it(checkpoint: Any) -> None:
    model, tokenizer = ordinary(checkpoint("bert"))
    tiny.without_dropout(model)
    fit_head(model, tokenizer, TEXTS, LABELS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    losses = []
    model.train()
    for _ in range(10):
        loss = model(**batch, labels=torch.tensor(NUMBERS)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[0] < np.log(3)  # better than chance from the first step on
    assert losses[-1] < losses[0]


def test_the_trainer_trains_it(checkpoint: Any, tmp_path: Path) -> None:
    model, tokenizer = ordinary(checkpoint("roberta"))
    fit_head(model, tokenizer, TEXTS, LABELS)
    rows = [{**tokenizer(text), "labels": label} for text, label in zip(TEXTS, NUMBERS, strict=True)]
    settings = {"num_train_epochs": 3, "learning_rate": 1e-3, "report_to": "none", "save_strategy": "no"}
    trainer = Trainer(
        model=model,
        args=TrainingArguments(str(tmp_path), disable_tqdm=True, use_cpu=True, **settings),
        train_dataset=rows,  # type: ignore[arg-type]
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    assert trainer.train().training_loss < np.log(3)


# ---- what cannot be fitted


def test_a_tokenizer_without_padding_is_refused_and_a_config_is_told_of_it(checkpoint: Any) -> None:
    model, tokenizer = ordinary(checkpoint("llama"))
    model.config.pad_token_id = None
    fit_head(model, tokenizer, TEXTS, NUMBERS)
    assert model.config.pad_token_id == tokenizer.pad_token_id
    tokenizer.pad_token = None
    with pytest.raises(InputError, match=r"has no padding token; set tokenizer\.pad_token"):
        fit_head(model, tokenizer, TEXTS, NUMBERS)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({"texts": [], "labels": []}, "there are no texts to fit a head to"),
    "one text": ({"texts": "a cat", "labels": [1]}, "fit_head takes a list of texts, not one text"),
    "few labels": ({"labels": [0, 1]}, "the training data: 4 texts, but 2 labels"),
    "no labels": ({"labels": []}, "the training data: 4 texts, but 0 labels"),
    "a name for labels": ({"labels": "food"}, "labels are a list, one of each text, not 'food'"),
    "none for labels": ({"labels": None}, "labels are a list"),
    "an unknown name": (
        {"labels": ["animal", "foot", "food", "food"]},
        "unknown label 'foot' in row 2 of the training data; did you mean 'food'",
    ),
    "a number too large": ({"labels": [0, 1, 2, 3]}, "label 3 in row 4 .* is none of the 3 labels, which count from 0"),
    "a number below zero": ({"labels": [0, -1, 2, 1]}, "label -1 in row 2 .* is none of the 3 labels"),
    "a gap": ({"labels": [0, None, 2, 1]}, "label None in row 2 of the training data is no number"),
    "a fraction": ({"labels": [0, 0.5, 2, 1]}, r"label 0\.5 in row 2"),
    "rows of labels": ({"labels": np.eye(4)}, r"label \[1\.0, 0\.0"),
    "a tensor without rows": ({"labels": torch.tensor(1)}, "4 texts, but 1 labels"),
    "one class": ({"labels": [1, 1, 1, 1]}, "every row has the same label, 'food'"),
    "texts of two kinds": ({"texts": ["a", ("a", "b"), "c", "d"]}, "texts must be all strings"),
    "choices": ({"texts": [("a", ["b", "c"])] * 4}, "reads texts, or pairs of them, and this is choices data"),
    "pooling": ({"pooling": "max"}, "pooling is 'mean' or 'first', not 'max'"),
    "factor": ({"factor": 0}, "factor must be a positive number, not 0"),
    "no factor": ({"factor": float("nan")}, "factor must be a positive number"),
    "length": ({"max_length": 2}, "max_length 2 leaves no room for text"),
    "weights": ({"class_weights": {"fog": 1.0}}, "class weights name 'fog', which is not a label"),
    "dev alone": ({"dev": ["a", "b", "c"]}, "dev must be a pair: texts and their labels"),
    "dev labels": ({"dev": (["a"], ["fog"])}, "unknown label 'fog' in row 1 of the dev data"),
    "dev of another kind": ({"dev": ([("a", "b")], [0])}, "the dev data hold pair data, but the training data text"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_meant_gets_one_line_and_changes_nothing(checkpoint: Any, wrong: str) -> None:
    model, tokenizer = ordinary(checkpoint("bert"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    options, message = WRONG[wrong]
    with pytest.raises(InputError, match=message) as caught:
        fit_head(model, tokenizer, **{"texts": ["a", "b", "c", "d"], "labels": [0, 1, 2, 0], **options})
    assert "\n" not in str(caught.value)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in after)


def test_a_choice_that_a_row_does_not_have_is_refused(checkpoint: Any) -> None:
    model = AutoModelForMultipleChoice.from_pretrained(checkpoint("bert", choices=True))
    tokenizer = AutoTokenizer.from_pretrained(checkpoint("bert", choices=True))
    texts = [("a", ["b", "c", "d"]), ("a", ["b", "c"])]
    with pytest.raises(InputError, match="label 2 in row 2 of the training data is none of the 2 choices"):
        fit_head(model, tokenizer, texts, [2, 2])
    with pytest.raises(InputError, match="label 'b' in row 1 of the training data is no number"):
        fit_head(model, tokenizer, texts, ["b", "b"])
    with pytest.raises(InputError, match=r"reads \(text, \[choices\]\), and this is text data"):
        fit_head(model, tokenizer, ["a", "b"], [0, 1])


def test_models_of_other_kinds_are_refused(checkpoint: Any, image_checkpoint: Any) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint("bert"))
    with pytest.raises(InputError, match="not a transformers classifier"):
        fit_head(nn.Linear(2, 2), tokenizer, TEXTS, NUMBERS)
    with pytest.raises(InputError, match=r"ViTForImageClassification: reads images; fit_head is for texts"):
        fit_head(load_trained(image_checkpoint("vit"))[0], tokenizer, TEXTS, NUMBERS)
    single = AutoModelForSequenceClassification.from_pretrained(
        checkpoint("bert"), num_labels=1, ignore_mismatched_sizes=True
    )
    with pytest.raises(InputError, match="BertForSequenceClassification: has a single-logit head"):
        fit_head(single, tokenizer, TEXTS, [0] * 90)
