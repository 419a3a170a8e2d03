"""Checkpoints in and out, and one line for each that cannot be used."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from calmix.data import Examples
from calmix.errors import InputError
from calmix.models import (
    encode,
    head_of,
    identity,
    is_multiple_choice,
    label_names_of,
    load_for_training,
    load_trained,
    load_with_head,
    predict_logits,
    resolve,
    save,
    width_of,
)

NAMES = ("yes", "no", "maybe", "never")


def test_the_head_has_one_output_per_label_and_the_config_their_names(checkpoint: Any, architecture: str) -> None:
    model, _ = load_for_training(str(checkpoint(architecture)), label_names=NAMES)
    assert head_of(model).out_features == 4
    assert model.config.num_labels == 4
    assert model.config.id2label == {0: "yes", 1: "no", 2: "maybe", 3: "never"}
    assert model.config.label2id == {"yes": 0, "no": 1, "maybe": 2, "never": 3}
    assert label_names_of(model) == NAMES
    assert not is_multiple_choice(model)


def test_what_is_saved_loads_with_transformers_alone_and_predicts_the_same(
    checkpoint: Any, architecture: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(1)
    model, tokenizer = load_for_training(str(checkpoint(architecture)), label_names=NAMES)
    save(model, tokenizer, tmp_path / "saved")
    assert capfd.readouterr() == ("", "")
    assert not list((tmp_path / "saved").glob("*.bin"))
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    texts = tiny.texts(5)[0]
    inputs = AutoTokenizer.from_pretrained(tmp_path / "saved")(texts, padding=True, return_tensors="pt")
    examples = tiny.examples(5)
    ours = predict_logits(model, encode(examples, tokenizer, max_length=64))
    np.testing.assert_allclose(plain(**inputs).logits.detach(), ours, atol=1e-5)
    again, tokenizer = load_trained(tmp_path / "saved")
    assert label_names_of(again) == NAMES
    assert np.array_equal(predict_logits(again, encode(examples, tokenizer, max_length=64)), ours)
    assert not again.training


def test_a_new_head_is_drawn_from_the_seed_and_the_encoder_is_kept(checkpoint: Any) -> None:
    heads = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        model, _ = load_for_training(str(checkpoint("bert")), label_names=NAMES)
        heads.append(head_of(model).weight.detach())
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    kept = load_file(checkpoint("bert") / "model.safetensors")["bert.encoder.layer.1.output.dense.weight"]
    assert torch.equal(model.bert.encoder.layer[1].output.dense.weight, kept)


def test_a_head_for_the_same_labels_is_kept(checkpoint: Any, architecture: str) -> None:
    loading = load_with_head(str(checkpoint(architecture)), label_names=tiny.LABELS)
    trained, _ = load_trained(checkpoint(architecture))
    assert loading.trained_head
    for name, value in trained.state_dict().items():
        assert torch.equal(loading.model.state_dict()[name], value)


def test_in_another_order_its_rows_are_put_in_that_order(checkpoint: Any, architecture: str) -> None:
    names = (tiny.LABELS[2], tiny.LABELS[0], tiny.LABELS[1])
    loading = load_with_head(str(checkpoint(architecture)), label_names=names)
    trained, tokenizer = load_trained(checkpoint(architecture))
    assert loading.trained_head
    assert label_names_of(loading.model) == names
    packed = encode(tiny.examples(9), tokenizer, max_length=64)
    before = predict_logits(trained, packed)
    np.testing.assert_allclose(predict_logits(loading.model, packed), before[:, [2, 0, 1]], atol=1e-5)


@pytest.mark.parametrize("names", [("a", "b", "c"), ("animal", "food", "drink")])
def test_a_head_for_other_labels_is_drawn_anew_though_it_has_the_right_size(
    checkpoint: Any, architecture: str, names: tuple[str, ...]
) -> None:
    heads = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        loading = load_with_head(str(checkpoint(architecture)), label_names=names)
        assert not loading.trained_head
        heads.append(head_of(loading.model))
    trained = head_of(load_trained(checkpoint(architecture))[0])
    assert torch.equal(heads[0].weight, heads[1].weight)
    assert not torch.equal(heads[0].weight, heads[2].weight)
    assert not torch.isclose(heads[0].weight, trained.weight, rtol=1e-3).any()
    assert 0 < float(heads[0].weight.detach().std()) < 0.1  # as transformers draws it
    assert heads[0].bias is None or not heads[0].bias.any()


def test_a_head_that_is_missing_is_drawn_and_no_trained_one(tmp_path: Path) -> None:
    from transformers import AutoModel

    AutoModel.from_config(tiny.config("bert")).save_pretrained(tmp_path)
    tiny.tokenizer("bert").save_pretrained(tmp_path)
    loading = load_with_head(str(tmp_path), label_names=NAMES)
    assert loading.is_bare
    assert not loading.trained_head
    assert head_of(loading.model).weight.any()


@pytest.mark.parametrize("names", [tiny.LABELS, ("a", "b", "c"), NAMES])
def test_a_checkpoint_with_a_head_is_not_bare_whatever_that_was_for(checkpoint: Any, names: tuple[str, ...]) -> None:
    assert not load_with_head(str(checkpoint("roberta")), label_names=names).is_bare


@pytest.mark.parametrize("trained", [True, False])
def test_of_multiple_choice_a_head_that_is_there_is_kept(checkpoint: Any, tmp_path: Path, trained: bool) -> None:
    folder = shutil.copytree(checkpoint("bert", choices=True), tmp_path / "bert")
    weights = load_file(folder / "model.safetensors")
    if not trained:
        weights = {name: weight for name, weight in weights.items() if not name.startswith("classifier")}
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    loading = load_with_head(str(folder), label_names=(), choices=True)
    assert loading.trained_head is trained
    assert torch.equal(head_of(loading.model).weight, weights["classifier.weight"]) if trained else True


@pytest.mark.parametrize(("architecture", "choices"), [("bert", False), ("distilbert", False), ("bert", True)])
def test_the_width_is_that_of_what_layers_pass_on(checkpoint: Any, architecture: str, choices: bool) -> None:
    assert width_of(str(checkpoint(architecture, choices=choices))) == tiny.WIDTH


@pytest.mark.parametrize("kind", ["gpt2", "xlnet", "bart", "gemma3"])
def test_so_it_is_whatever_a_config_calls_it(checkpoint_of: Any, kind: str) -> None:
    assert width_of(str(checkpoint_of(kind))) == 32


@pytest.mark.parametrize("architecture", ["vit", "resnet", "convnext", "convnet"])
def test_of_images_the_width_is_that_of_the_last_stage(image_checkpoint: Any, architecture: str) -> None:
    assert width_of(str(image_checkpoint(architecture))) == 16


def test_an_encoder_without_a_head_gets_one(tmp_path: Path) -> None:
    from transformers import AutoModel

    AutoModel.from_config(tiny.config("roberta")).save_pretrained(tmp_path)
    tiny.tokenizer("roberta").save_pretrained(tmp_path)
    assert head_of(load_for_training(str(tmp_path), label_names=NAMES)[0]).out_features == 4
    with pytest.raises(InputError, match="holds RobertaModel, not a trained classifier"):
        load_trained(tmp_path)


def test_training_is_in_float32_whatever_the_checkpoint_holds(checkpoint: Any, tmp_path: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint("bert"), dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    tiny.tokenizer("bert").save_pretrained(tmp_path)
    for loaded, _ in (load_for_training(str(tmp_path), label_names=NAMES), load_trained(tmp_path)):
        assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}


def test_multiple_choice_scores_choices_and_has_no_names(checkpoint: Any, encoder: str) -> None:
    model, _ = load_for_training(str(checkpoint(encoder)), label_names=(), choices=True)
    assert is_multiple_choice(model)
    assert head_of(model).out_features == 1
    assert label_names_of(model) == ()


def test_an_architecture_without_multiple_choice_says_so(checkpoint: Any) -> None:
    with pytest.raises(InputError, match="no multiple choice model for architecture 'llama'"):
        load_for_training(str(checkpoint("llama")), label_names=(), choices=True)


def _decoder(folder: Path, *, tokenizer_pads: bool, config_pad: int | None) -> Path:
    tiny.build("llama", folder)
    if not tokenizer_pads:
        _edit_json(folder / "tokenizer_config.json", lambda facts: facts.pop("pad_token"))
    _edit_json(folder / "config.json", lambda facts: facts.update(pad_token_id=config_pad))
    return folder


@pytest.mark.parametrize("tokenizer_pads", [True, False])
@pytest.mark.parametrize("config_pad", [None, -1, 0, 3])
def test_a_decoder_reads_the_last_token_of_padded_texts_whatever_its_files_say_of_padding(
    tmp_path: Path, tokenizer_pads: bool, config_pad: int | None
) -> None:
    folder = _decoder(tmp_path / "decoder", tokenizer_pads=tokenizer_pads, config_pad=config_pad)
    for model, tokenizer in (load_for_training(str(folder), label_names=tiny.LABELS), load_trained(folder)):
        assert model.config.pad_token_id == tokenizer.pad_token_id
        packed = encode(tiny.examples(6), tokenizer, max_length=64)
        alone = predict_logits(model, packed, tokens=1)
        inputs = packed.batch(torch.arange(6), width=40)
        np.testing.assert_allclose(model.eval()(**inputs).logits.detach(), alone, atol=1e-5)


def test_segment_ids_are_dropped_where_the_model_cannot_read_them(checkpoint: Any, tmp_path: Path) -> None:
    for architecture in ("distilbert", "roberta", "modernbert", "mpnet"):
        folder = shutil.copytree(checkpoint(architecture), tmp_path / architecture)
        if architecture == "roberta":
            _edit_json(folder / "config.json", lambda facts: facts.update(type_vocab_size=1))
            weights = load_file(folder / "model.safetensors")
            name = "roberta.embeddings.token_type_embeddings.weight"
            save_file({**weights, name: weights[name][:1].clone()}, folder / "model.safetensors", {"format": "pt"})
        names = ["input_ids", "token_type_ids", "attention_mask"]
        _edit_json(folder / "tokenizer_config.json", lambda facts, names=names: facts.update(model_input_names=names))
        model, tokenizer = load_trained(folder)
        packed = encode(tiny.examples(3, kind="pair"), tokenizer, max_length=64)
        assert np.isfinite(predict_logits(model, packed)).all()


@pytest.mark.parametrize("kind", ["gpt2", "xlm", "tapas", "gemma3"])
def test_a_tokenizer_is_saved_without_segment_ids_that_its_network_would_read_as_something_else(
    checkpoint_of: Any, tmp_path: Path, kind: str
) -> None:
    model, tokenizer = load_for_training(str(checkpoint_of(kind)), label_names=tiny.LABELS)
    save(model, tokenizer, tmp_path)
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    inputs = AutoTokenizer.from_pretrained(tmp_path)("a cat saw", "rain again", return_tensors="pt")
    assert "token_type_ids" not in inputs
    pair = encode(Examples.from_texts(["a cat saw"], ["animal"], text_b=["rain again"]), tokenizer, max_length=64)
    np.testing.assert_allclose(plain(**inputs).logits.detach(), predict_logits(model, pair), rtol=1e-4, atol=1e-5)


def test_segment_ids_are_kept_where_they_are_compared_or_left_aside(checkpoint: Any, checkpoint_of: Any) -> None:
    for folder in (checkpoint("bert"), checkpoint("deberta-v2"), checkpoint_of("funnel"), checkpoint_of("xlnet")):
        assert "token_type_ids" in load_trained(folder)[1].model_input_names


def test_networks_that_also_see_know_the_padding_of_texts(checkpoint_of: Any) -> None:
    model, tokenizer = load_for_training(str(checkpoint_of("gemma3")), label_names=tiny.LABELS)
    assert model.config.text_config.pad_token_id == model.config.pad_token_id == tokenizer.pad_token_id


@pytest.mark.parametrize("kind", ["ibert", "canine"])
def test_networks_whose_embeddings_are_no_plain_table_are_loaded(checkpoint_of: Any, kind: str) -> None:
    model, tokenizer = load_for_training(str(checkpoint_of(kind)), label_names=tiny.LABELS)
    packed = encode(tiny.examples(3), tokenizer, max_length=64)
    assert np.isfinite(predict_logits(model, packed)).all()


def test_short_names_resolve_and_others_stay() -> None:
    assert resolve("some/model") == "some/model"
    assert resolve("minilm") != "minilm"


def test_identity_changes_with_what_the_folder_holds_and_with_nothing_else(checkpoint: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint("bert"), tmp_path / "one")
    before = identity(str(folder))
    (folder / "README.md").write_text("words")
    moved = shutil.copytree(folder, tmp_path / "two")
    assert identity(str(moved)) == before
    _edit_json(moved / "config.json", lambda facts: facts.update(note=1))
    assert identity(str(moved)) != before
    (folder / "vocab.txt").write_text("other")
    assert identity(str(folder)) != before


# ---- what cannot be used


def _edit_json(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    facts = json.loads(file.read_text())
    change(facts)
    file.write_text(json.dumps(facts))


def _without(*patterns: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        for pattern in patterns:
            for file in folder.glob(pattern):
                file.unlink()

    return damage


def _pickled(folder: Path) -> None:
    _without("*.safetensors")(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")


def _cut_short(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def _of_another_size(folder: Path) -> None:
    _edit_json(folder / "config.json", lambda facts: facts.update(hidden_size=32))


def _renamed(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({f"other.{name}": w for name, w in weights.items()}, folder / "model.safetensors", {"format": "pt"})


def _small_vocabulary(folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_tokens([f"extra{i}" for i in range(50)])
    tokenizer.save_pretrained(folder)


UNUSABLE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "pickled weights": (_pickled, "holds pickled weights"),
    "no weights": (_without("*.safetensors"), "has no .safetensors weights"),
    "no config": (_without("config.json"), "has no config.json"),
    "broken config": (lambda folder: (folder / "config.json").write_text('{"a": '), "is not valid JSON"),
    "config of no use": (lambda folder: (folder / "config.json").write_text("{}"), "config.json cannot be used"),
    "config that is a list": (lambda folder: (folder / "config.json").write_text("[1]"), "config.json cannot be used"),
    "unknown architecture": (
        lambda folder: (folder / "config.json").write_text('{"model_type": "abacus"}'),
        "config.json cannot be used",
    ),
    "no tokenizer": (_without("tokenizer*"), "has no tokenizer"),
    "broken tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{"), "its tokenizer cannot be loaded"),
    "weights cut short": (_cut_short, "its weights cannot be loaded"),
    "tokenizer of another model": (_small_vocabulary, "they do not belong together"),
}


@pytest.mark.parametrize("damage", UNUSABLE)
@pytest.mark.parametrize("load", ["training", "trained"])
def test_a_folder_that_cannot_be_used_gets_one_line(checkpoint: Any, tmp_path: Path, damage: str, load: str) -> None:
    folder = shutil.copytree(checkpoint("bert"), tmp_path / "bert")
    change, message = UNUSABLE[damage]
    change(folder)
    with pytest.raises(InputError, match=message) as caught:
        load_for_training(str(folder), label_names=NAMES) if load == "training" else load_trained(folder)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(folder))


@pytest.mark.parametrize("damage", [_of_another_size, _renamed])
def test_weights_that_are_not_the_encoders_are_not_replaced_by_random_ones(
    checkpoint: Any, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    folder = shutil.copytree(checkpoint("bert"), tmp_path / "bert")
    damage(folder)
    with pytest.raises(InputError, match="its weights") as caught:
        load_for_training(str(folder), label_names=NAMES)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="its weights"):
        load_trained(folder)


def test_a_trained_classifier_whose_head_is_missing_is_refused(checkpoint: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint("bert"), tmp_path / "bert")
    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if not name.startswith("classifier")}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"lack classifier\.bias, so it was never trained"):
        load_trained(folder)
    load_for_training(str(folder), label_names=NAMES)


def test_a_file_is_not_a_model(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(InputError, match="is a file; a model is a folder"):
        load_trained(file)


@pytest.mark.parametrize("name", ["./run", "../run", "/no/run", "~/run", "runs/old/model"])
def test_a_path_that_leads_nowhere_is_not_looked_for_on_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        load_for_training(name, label_names=NAMES)
    assert str(caught.value) == f"{name}: no such folder"


def test_a_name_that_leads_nowhere_gets_one_line() -> None:
    with pytest.raises(InputError, match="no such folder, nor was a model of that name fetched before") as caught:
        load_for_training("nobody/nothing", label_names=NAMES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"num_labels": 1}, "single-logit head"),
        ({"problem_type": "multi_label_classification"}, "multi-label classifier"),
        ({"architectures": ["BertForMaskedLM"]}, "holds BertForMaskedLM, not a trained classifier"),
        ({"architectures": None}, "holds none named, not a trained classifier"),
    ],
)
def test_a_head_of_another_kind_is_refused(
    checkpoint: Any, tmp_path: Path, facts: dict[str, Any], message: str
) -> None:
    folder = shutil.copytree(checkpoint("bert"), tmp_path / "bert")

    def change(config: dict[str, Any]) -> None:
        if "num_labels" in facts:
            config["id2label"] = {"0": "LABEL_0"}
            config["label2id"] = {"LABEL_0": 0}
        else:
            config.update(facts)

    _edit_json(folder / "config.json", change)
    with pytest.raises(InputError, match=message) as caught:
        load_trained(folder)
    assert "\n" not in str(caught.value)


def test_saved_weights_may_be_read_by_whoever_may_read_the_rest(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    model, tokenizer = load_for_training(str(checkpoint("bert")), label_names=tiny.LABELS)
    save(model, tokenizer, tmp_path / "model")
    assert len({path.stat().st_mode for path in (tmp_path / "model").iterdir()}) == 1
