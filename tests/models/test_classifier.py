"""A trained classifier: texts in, calibrated probabilities out."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tiny
import torch

from calmix.calibration import ConformalSets, SelectiveThreshold, VectorScaling
from calmix.errors import InputError
from calmix.models import checkpoint_of, encode, load, load_trained, predict_logits
from calmix.models.beside import Beside, write_beside

TEXTS = ["the cat saw rain", "bread", "my old dog liked snow and hail"]


def test_probabilities_are_the_softmax_of_the_models_logits(checkpoint: Any, architecture: str) -> None:
    classifier = load(checkpoint(architecture))
    model, tokenizer = load_trained(checkpoint(architecture))
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    expected = torch.softmax(model(**inputs).logits.double(), -1)
    found = classifier.predict_proba(TEXTS)
    np.testing.assert_allclose(found, expected.detach(), atol=1e-6)
    assert classifier.label_names == tiny.LABELS
    assert classifier.predict(TEXTS) == [tiny.LABELS[k] for k in expected.argmax(1)]


def test_pairs_are_read_together(checkpoint: Any) -> None:
    classifier = load(checkpoint("bert"))
    model, tokenizer = load_trained(checkpoint("bert"))
    pairs = [("the cat", "snow"), ("bread and butter", "a big pie today")]
    inputs = tokenizer(*(list(part) for part in zip(*pairs, strict=True)), padding=True, return_tensors="pt")
    expected = torch.softmax(model(**inputs).logits.double(), -1).detach()
    np.testing.assert_allclose(classifier.predict_proba(pairs), expected, atol=1e-6)


def test_choices_get_probabilities_that_sum_to_one_and_an_index(checkpoint: Any, encoder: str) -> None:
    classifier = load(checkpoint(encoder, choices=True))
    rows = [("the cat", ["rain", "dog", "pie"]), ("bread", ["butter", "fox"])]
    found = classifier.predict_proba(rows)
    assert found.shape == (2, 3)
    assert found[1, 2] == 0
    np.testing.assert_allclose(found.sum(1), 1)
    assert classifier.predict(rows) == found.argmax(1).tolist()
    assert classifier.multiple_choice


def test_a_recalibrator_beside_the_checkpoint_is_applied(checkpoint: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint("bert"), tmp_path / "bert")
    recalibrator = VectorScaling((0.5, 2.0, 1.0), (0.0, 1.0, -1.0))
    write_beside(folder, Beside(recalibrator=recalibrator))
    examples = tiny.examples(4)
    plain, corrected = load(checkpoint("bert")), load(folder)
    np.testing.assert_allclose(corrected.probabilities(examples), recalibrator(plain.logits(examples)))
    np.testing.assert_array_equal(corrected.logits(examples), plain.logits(examples))


@pytest.mark.parametrize("member", [False, True])
def test_a_checkpoint_with_a_temperature_for_each_input_is_refused_in_one_line(
    checkpoint: Any, tmp_path: Path, member: bool
) -> None:
    folder = shutil.copytree(checkpoint("bert"), tmp_path / "bert")
    (folder / "calmix.safetensors").write_bytes(b"tensors")
    with pytest.raises(InputError, match=f"^{re.escape(str(folder))}: was made by the default of") as caught:
        load([checkpoint("electra"), folder] if member else folder)
    assert "\n" not in str(caught.value)


def test_a_run_folder_leads_to_its_model_once_it_is_finished(checkpoint: Any, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("")
    with pytest.raises(InputError, match="the run in it is not finished"):
        load(tmp_path)
    shutil.copytree(checkpoint("bert"), tmp_path / "model")
    assert load(tmp_path).predict(TEXTS) == load(checkpoint("bert")).predict(TEXTS)


def test_long_texts_are_cut_at_what_the_model_can_read(checkpoint: Any) -> None:
    long = " ".join(tiny.WORDS)
    classifier = load(checkpoint("bert"))
    cut = " ".join(long.split()[: tiny.POSITIONS - 2])
    np.testing.assert_allclose(classifier.predict_proba([long]), classifier.predict_proba([cut]), atol=1e-6)


def test_progress_counts_every_row(checkpoint: Any) -> None:
    seen: list[int] = []
    load(checkpoint("bert")).probabilities(tiny.examples(7), progress=seen.append)
    assert sum(seen) == 7


def test_one_row_is_predicted_as_it_is_among_others(checkpoint: Any) -> None:
    classifier = load(checkpoint("bert"))
    packed = encode(tiny.examples(9), classifier.tokenizer, max_length=64)
    together = predict_logits(classifier.model, packed)
    alone = np.concatenate([classifier.logits(tiny.examples(9).take([i])) for i in range(9)])
    np.testing.assert_allclose(alone, together, atol=1e-5)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("one text", "not one text: put it in brackets"),
        ([], "no texts to predict"),
        (["a", ("b", "c")], "must be all strings, all pairs"),
        ([("a", "b", "c")], "must be all strings, all pairs"),
        (b"one text", "not one text: put it in brackets"),
        (Path("one.csv"), "not one text: put it in brackets"),
        ({"text": TEXTS}, r"not a mapping \(its keys: 'text'\)"),
        ({}, "not a mapping"),
        (pd.DataFrame({"text": TEXTS, "label": 1}), r"not a table of 2 columns \('text', 'label'\): give one of them"),
        (pd.DataFrame(), "not a table of 0 columns"),
        (pa.table({"text": TEXTS, "label": TEXTS}), r"not a table of 2 columns \('text', 'label'\): give one of them"),
        (pd.DataFrame({"text": [*TEXTS, None]}), "number 4 is (None|nan)"),
        (5, "a list of texts, not int"),
        (None, "a list of texts, not NoneType"),
    ],
)
def test_what_is_no_list_of_texts_is_refused(checkpoint: Any, texts: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(checkpoint("bert")).predict(texts)


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame({"words": TEXTS}),
        pd.DataFrame(TEXTS),
        pd.DataFrame({"words": TEXTS}, index=[7, 7, 2]),
        pa.table({"words": TEXTS}),
        np.array(TEXTS, dtype=object)[:, None],
        np.array(TEXTS)[:, None],
        pd.Series(TEXTS),
    ],
)
def test_the_texts_of_a_table_of_one_column_are_taken(checkpoint: Any, table: Any) -> None:
    classifier = load(checkpoint("bert"))
    np.testing.assert_array_equal(classifier.predict_proba(table), classifier.predict_proba(TEXTS))


def test_what_is_no_list_of_images_is_refused(image_checkpoint: Any) -> None:
    classifier = load(image_checkpoint("convnet"))
    with pytest.raises(InputError, match="a list of images, not the name of one: put it in brackets"):
        classifier.predict("one.png")
    with pytest.raises(InputError, match="a list of images, not one image: put it in brackets"):
        classifier.predict(b"")
    with pytest.raises(InputError, match="a list of images, not a mapping"):
        classifier.predict({"image": []})
    with pytest.raises(InputError, match="there are no images to predict"):
        classifier.predict([])


def test_it_is_shown_in_one_line(checkpoint: Any) -> None:
    assert repr(load(checkpoint("bert"))) == "Classifier(BertForSequenceClassification, labels animal, food, weather)"
    assert repr(load(checkpoint("bert", choices=True))) == "Classifier(BertForMultipleChoice)"


def test_data_of_another_kind_is_refused(checkpoint: Any) -> None:
    with pytest.raises(InputError, match=r"holds choices data, but this model reads plain texts or pairs"):
        load(checkpoint("bert")).logits(tiny.examples(2, kind="choices"))
    with pytest.raises(InputError, match=r"holds text data, but this model reads texts with choices"):
        load(checkpoint("bert", choices=True)).predict(TEXTS)


def test_a_row_that_is_no_text_is_refused_by_its_number(checkpoint: Any) -> None:
    classifier = load(checkpoint("bert"))
    for second in (None, 3, float("nan"), ("a", None), ("a", 3), ("a", []), ("a", ["b", None]), ("a", "b")):
        with pytest.raises(InputError, match="number 2 is ") as caught:
            classifier.predict(["a", second])
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"number 1 is \('a', 'x{45,60}\.\.\.$"):
        classifier.predict([("a", "x" * 500, "c")])


def test_texts_may_come_as_an_array(checkpoint: Any) -> None:
    classifier = load(checkpoint("bert"))
    assert classifier.predict(np.array(TEXTS)) == classifier.predict(np.array(TEXTS, dtype=object))
    assert classifier.predict(np.array(TEXTS)) == classifier.predict(TEXTS)


def test_a_model_trained_on_pairs_refuses_single_texts_and_the_reverse(checkpoint: Any) -> None:
    from calmix.models import KIND

    for trained_on, other in (("pair", ["one text"]), ("text", [("a text", "another")])):
        classifier = load(checkpoint("bert"))
        setattr(classifier.model.config, KIND, trained_on)
        with pytest.raises(InputError, match="was trained on"):
            classifier.predict_proba(other)


def test_the_checkpoint_of_a_run_is_inside_it(tmp_path: Path, checkpoint: Any) -> None:
    assert checkpoint_of(checkpoint("bert")) == str(checkpoint("bert"))
    assert checkpoint_of("org/name") == "org/name"
    (tmp_path / "run.toml").touch()
    with pytest.raises(InputError, match="not finished"):
        checkpoint_of(tmp_path)
    (tmp_path / "metrics.json").touch()
    with pytest.raises(InputError, match="holds no model"):
        checkpoint_of(tmp_path)
    (tmp_path / "model").mkdir()
    assert checkpoint_of(tmp_path) == str(tmp_path / "model")


def test_examples_are_encoded_as_the_model_reads_them(checkpoint: Any) -> None:
    classifier, examples = load(checkpoint("bert")), tiny.examples(3)
    assert classifier.encode(examples).host_lengths.tolist() == [len(t.split()) + 2 for t in examples.column("text")]
    with pytest.raises(InputError, match="holds choices data"):
        classifier.encode(tiny.examples(3, kind="choices"))


def test_images_are_refused(checkpoint: Any, tmp_path: Path) -> None:
    from PIL import Image

    from calmix.data import read_examples

    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    examples = read_examples(tmp_path, labelled=False)
    with pytest.raises(InputError, match="holds image data, but this model reads plain texts or pairs"):
        load(checkpoint("bert")).logits(examples)


@pytest.fixture
def promised(checkpoint: Any, tmp_path: Path) -> Path:
    """A model with a threshold between the confidences of `TEXTS`, and prediction sets."""
    probs = load(checkpoint("bert")).predict_proba(TEXTS)
    middle = float(np.sort(probs.max(axis=1))[1])
    folder = shutil.copytree(checkpoint("bert"), tmp_path / "promised")
    sets = ConformalSets(float(1 - np.sort(probs[0])[1]), 0.9, "lac")
    write_beside(folder, Beside(threshold=SelectiveThreshold(middle, 0.9, 0.05, 0.5), sets=sets))
    return folder


def test_what_is_not_accepted_is_not_answered(promised: Path) -> None:
    classifier = load(promised)
    probs, labels = classifier.predict_proba(TEXTS), classifier.predict(TEXTS)
    accepted = classifier.accepted(probs)
    assert sorted(accepted) == [False, True, True]
    expected = [label if sure else None for label, sure in zip(labels, accepted, strict=True)]
    assert classifier.predict(TEXTS, abstain=True) == expected


def test_possible_labels_are_those_of_the_set(promised: Path) -> None:
    classifier = load(promised)
    probs = classifier.predict_proba(TEXTS)
    assert set(classifier.possible(probs)[0]) == {tiny.LABELS[k] for k in np.argsort(probs[0])[1:]}


def test_choices_are_possible_by_their_places(checkpoint: Any) -> None:
    rows = [("the cat", ["rain", "dog", "pie"]), ("bread", ["butter", "fox"])]
    one = load(checkpoint("bert", choices=True))
    everything = Beside(threshold=SelectiveThreshold(0.0, 0.9, 0.05, 1.0), sets=ConformalSets(None, 0.9, "lac"))
    one = replace(one, beside=everything)
    assert one.possible(one.predict_proba(rows)) == [[0, 1, 2], [0, 1]]
    assert one.predict(rows, abstain=True) == one.predict(rows)


def test_a_model_without_a_guarantee_refuses_to_abstain_before_it_predicts(
    checkpoint: Any, promised: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = load(checkpoint("bert")), load(promised, mc_dropout=2), load([promised, checkpoint("electra")])
    monkeypatch.setattr("calmix.models.classifier.predict_logits", lambda *_, **__: pytest.fail("predicted"))
    for each in others:
        with pytest.raises(InputError, match="there is no threshold to abstain by"):
            each.predict(TEXTS, abstain=True)
