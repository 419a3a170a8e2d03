"""Mixing at each level of the network, against the plain model, a brute-force reference, and symmetry."""

from typing import Any

import pytest
import tiny
import torch
from torch import Tensor

from calmix.errors import InputError
from calmix.mixing import Step, fill_tokens
from calmix.mixing.levels import mixed_logits
from calmix.mixing.targets import cross_entropy, mix
from calmix.models import Site, encode, head_input, load_trained, pooled, rewriting, site_of_layer

LEVELS = (0, 1, 2, "inner", "head")
PADDINGS = ("sep", "pad", "unused", "none", "max", "max-pad", "max-unused")
FILLERS = {"max": "sep", "max-pad": "pad", "max-unused": "unused"}  # what goes to the width of the batch
SWAPPED = torch.tensor([4, 3, 2, 1, 0])
ROUND = torch.tensor([1, 2, 3, 4, 0])  # nobody is the partner of their partner
WEIGHTS = torch.tensor([0.3, 0.9, 0.5, 0.1, 0.7])  # 1 − λ of the one is λ of its partner


def _levels(step: Step) -> list[Any]:
    return [level for level in LEVELS if level != "inner" or step.anatomy.inner]


# ---- λ = 1 is plain training


@pytest.mark.parametrize("kind", ["text", "pair"])
def test_with_all_the_weight_on_oneself_logits_and_gradients_are_those_of_plain_training(
    make_step: Any, gradients_of: Any, architecture: str, kind: str
) -> None:
    step = make_step(architecture, kind=kind)
    expected_logits = step.forward(step.inputs)
    expected = gradients_of(step, cross_entropy(expected_logits, step.targets).mean())
    assert sum(bool(gradient.any()) for gradient in expected.values()) > 10
    for level in _levels(step):
        logits = mixed_logits(step, SWAPPED, torch.ones(5), level=level, padding="none", mask="own")
        torch.testing.assert_close(logits, expected_logits, rtol=1e-5, atol=1e-6, msg=f"level {level}")
        found = gradients_of(step, cross_entropy(logits, step.targets).mean())
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=f"level {level}: {name}")
        step.__dict__.pop("logits", None)


def test_with_all_the_weight_on_oneself_scores_of_choices_are_those_of_plain_training(
    make_step: Any, gradients_of: Any, encoder: str
) -> None:
    step = make_step(encoder, kind="choices")
    expected_logits = step.forward(step.inputs)
    expected = gradients_of(step, cross_entropy(expected_logits, step.targets).mean())
    for level in _levels(step):
        logits = mixed_logits(step, SWAPPED, torch.ones(5), level=level, padding="none", mask="own")
        torch.testing.assert_close(logits, expected_logits, rtol=1e-5, atol=1e-6, msg=f"level {level}")
        found = gradients_of(step, cross_entropy(logits, step.targets).mean())
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=f"level {level}: {name}")
        step.__dict__.pop("logits", None)


def test_with_no_weight_on_oneself_one_is_ones_partner(make_step: Any, architecture: str) -> None:
    step = make_step(architecture)
    for level in (0, "head"):
        logits = mixed_logits(step, SWAPPED, torch.zeros(5), level=level, padding="none", mask="partner")
        torch.testing.assert_close(logits, step.forward(step.inputs)[SWAPPED], rtol=1e-4, atol=1e-5)


def test_with_oneself_as_partner_nothing_is_mixed_whatever_the_weight(make_step: Any, architecture: str) -> None:
    step = make_step(architecture, kind="pair")
    plain = step.forward(step.inputs)
    for level in _levels(step):
        logits = mixed_logits(step, torch.arange(5), torch.full((5,), 0.3), level=level)
        torch.testing.assert_close(logits, plain, rtol=1e-4, atol=1e-5)


# ---- two who are each other's partner meet in the same mixed text


@pytest.mark.parametrize("padding", PADDINGS)
def test_a_pair_mixed_from_either_side_is_the_same_text(make_step: Any, architecture: str, padding: Any) -> None:
    step = make_step(architecture)
    if padding.endswith("unused") and "unused" not in step.fill:
        pytest.skip("this tokenizer has no unused token")
    lengths = step.inputs["attention_mask"].sum(-1)
    assert (lengths != lengths[SWAPPED]).sum() == 4
    for level in _levels(step):
        logits = mixed_logits(step, SWAPPED, WEIGHTS, level=level, padding=padding)
        torch.testing.assert_close(logits, logits[SWAPPED], rtol=1e-4, atol=1e-5, msg=f"level {level}")
        assert not torch.allclose(logits, step.forward(step.inputs), atol=1e-3)


def test_a_pair_of_choices_mixed_from_either_side_is_the_same(make_step: Any, encoder: str) -> None:
    step = make_step(encoder, kind="choices")
    step.inputs.pop("token_type_ids", None)
    for level in _levels(step):
        logits = mixed_logits(step, SWAPPED, WEIGHTS, level=level)
        torch.testing.assert_close(logits, logits[SWAPPED], rtol=1e-4, atol=1e-5, msg=f"level {level}")


# ---- against a loop that does it by hand


def _by_hand(step: Step, partner: Tensor, *, padding: str, mask: str) -> Tensor:
    """Mix input embeddings row by row, on plain lists of tokens, each text as long as it needs to be."""
    model = step.model
    vectors = model.get_input_embeddings().weight  # type: ignore[operator]
    ids, real = step.inputs["input_ids"], step.inputs["attention_mask"].bool()
    types = step.inputs.get("token_type_ids")
    out = []
    for i, j in enumerate(partner.tolist()):
        lam = float(WEIGHTS[i])
        mine, theirs = ids[i][real[i]].tolist(), ids[j][real[j]].tolist()
        length = ids.shape[1] if padding in FILLERS else max(len(mine), len(theirs))
        tokens = []
        for k in range(length):
            if padding == "none" and k >= len(mine):
                tokens.append(vectors[theirs[k]])
            elif padding == "none" and k >= len(theirs):
                tokens.append(vectors[mine[k]])
            else:
                filler = step.fill[FILLERS.get(padding, padding)] if padding != "none" else -1
                a = mine[k] if k < len(mine) else filler
                b = theirs[k] if k < len(theirs) else filler
                tokens.append(lam * vectors[a] + (1 - lam) * vectors[b])
        attended = {"own": len(mine), "partner": len(theirs), "union": length}[mask]
        inputs = {
            "inputs_embeds": torch.stack(tokens)[None],
            "attention_mask": torch.tensor([[int(k < attended) for k in range(length)]]),
        }
        if types is not None:
            kinds = [int(types[i, k]) if k < len(mine) or k >= len(theirs) else int(types[j, k]) for k in range(length)]
            inputs["token_type_ids"] = torch.tensor([kinds])
        out.append(model(**inputs).logits[0])
    return torch.stack(out)


@pytest.mark.parametrize("mask", ["own", "partner", "union"])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(
    ("architecture", "kind"), [("bert", "text"), ("bert", "pair"), ("roberta", "text"), ("mpnet", "pair")]
)
def test_mixed_inputs_are_what_a_loop_by_hand_makes_of_them(
    make_step: Any, architecture: str, kind: str, padding: Any, mask: Any
) -> None:
    step = make_step(architecture, kind=kind)
    for partner in (SWAPPED, ROUND):
        logits = mixed_logits(step, partner, WEIGHTS, level=0, padding=padding, mask=mask)
        torch.testing.assert_close(logits, _by_hand(step, partner, padding=padding, mask=mask), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padding", ["sep", "unused"])
@pytest.mark.parametrize("architecture", ["bert", "roberta"])
def test_at_a_hidden_level_a_partner_that_ends_sooner_goes_on_with_the_filler(
    make_step: Any, architecture: str, padding: Any
) -> None:
    step = make_step(architecture)
    if padding not in step.fill:
        pytest.skip("this tokenizer has no unused token")
    real = step.inputs["attention_mask"].bool()
    ends = real.sum(-1)
    goes_on = ends > torch.maximum(ends[ROUND], ends[ROUND[ROUND]])
    assert goes_on.any()  # longer than its partner's own pair
    site = site_of_layer(step.anatomy, 1)
    first = 0 if architecture == "bert" else step.model.config.pad_token_id + 1  # type: ignore[union-attr]

    def alone(i: int, edit: Any) -> Tensor:
        """Return the logits of a text that was filled up, and attends to as much of it as its pair is long."""
        width, end = real.shape[1], max(int(ends[i]), int(ends[ROUND[i]]))
        ids = torch.where(real[i], step.inputs["input_ids"][i], step.fill[padding])[None]
        positions = torch.arange(first, first + width)[None]
        with rewriting(step.model, site, edit):
            mask = (torch.arange(width) < end).long()[None]
            return step.model(input_ids=ids, attention_mask=mask, position_ids=positions).logits[0]  # type: ignore[no-any-return]

    inside: dict[int, Tensor] = {}
    for i in range(5):
        alone(i, lambda x, i=i: inside.setdefault(i, x))
    wanted = [
        alone(i, lambda x, i=i, j=j: WEIGHTS[i] * x + (1 - WEIGHTS[i]) * inside[j])
        for i, j in enumerate(ROUND.tolist())
    ]
    logits = mixed_logits(step, ROUND, WEIGHTS, level=1, padding=padding)
    torch.testing.assert_close(logits, torch.stack(wanted), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padding", ["sep", "pad", "none", "max", "max-pad"])
def test_a_mixed_text_is_read_at_its_end_by_a_decoder(make_step: Any, padding: Any) -> None:
    step = make_step("llama")  # without token ids, it reads the last vector
    for partner in (SWAPPED, ROUND):
        logits = mixed_logits(step, partner, WEIGHTS, level=0, padding=padding)
        torch.testing.assert_close(logits, _by_hand(step, partner, padding=padding, mask="union"), rtol=1e-4, atol=1e-5)


def test_wider_batches_change_nothing_unless_everything_is_padded_to_the_maximum(
    make_step: Any, architecture: str
) -> None:
    narrow, wide = make_step(architecture, width=16), make_step(architecture, width=40)
    for padding in ("sep", "none", "max", "max-pad"):
        one, other = (mixed_logits(step, SWAPPED, WEIGHTS, level=1, padding=padding) for step in (narrow, wide))
        assert torch.allclose(one, other, atol=1e-5) is (padding not in FILLERS)


# ---- the head


def test_mixing_what_the_head_reads_is_mixing_logits(make_step: Any, encoder: str) -> None:
    step = make_step(encoder)
    with rewriting(step.model, Site(step.anatomy.head, "input"), lambda tensor: mix(tensor, SWAPPED, WEIGHTS)):
        edited = step.forward(step.inputs)
    torch.testing.assert_close(mixed_logits(step, SWAPPED, WEIGHTS, level="head"), edited)


def test_mixing_at_the_head_of_a_decoder_is_mixing_what_it_read_at_the_end_of_each_text(make_step: Any) -> None:
    step = make_step("llama")
    with head_input(step.model, step.anatomy) as seen:
        step.forward(step.inputs)
    features = mix(pooled(seen[0], step.inputs, step.model.config), SWAPPED, WEIGHTS)
    torch.testing.assert_close(mixed_logits(step, SWAPPED, WEIGHTS, level="head"), step.model.score(features))


def test_mixing_at_the_head_takes_one_forward(make_step: Any) -> None:
    step = make_step()
    forwards: list[int] = []
    step.model.register_forward_hook(lambda *_: forwards.append(1))
    mixed_logits(step, SWAPPED, WEIGHTS, level="head")
    mixed_logits(step, SWAPPED, WEIGHTS, level="head")
    assert len(forwards) == 1


def test_mixing_before_the_inner_layer_is_mixing_the_first_tokens_vector(make_step: Any) -> None:
    step = make_step("bert")
    model: Any = step.model
    first = model.bert(**step.inputs).last_hidden_state[:, 0]
    inner = torch.tanh(model.bert.pooler.dense(mix(first, SWAPPED, WEIGHTS)))
    torch.testing.assert_close(mixed_logits(step, SWAPPED, WEIGHTS, level="inner"), model.classifier(inner))


# ---- edges


@pytest.mark.parametrize("level", LEVELS)
def test_in_bf16_arithmetic_logits_are_float32_and_near_those_of_float32(
    make_step: Any, architecture: str, level: Any
) -> None:
    step = make_step(architecture)
    if level not in _levels(step):
        pytest.skip("a decoder has no inner layer")
    exact = mixed_logits(step, SWAPPED, WEIGHTS, level=level).detach()
    step.__dict__.pop("logits", None)
    with torch.autocast("cpu", torch.bfloat16):
        logits = mixed_logits(step, SWAPPED, WEIGHTS, level=level)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, exact, rtol=0.1, atol=0.15)
    cross_entropy(logits, step.targets).mean().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in step.model.parameters())


def test_in_bf16_arithmetic_all_the_weight_on_oneself_changes_no_bit(make_step: Any, architecture: str) -> None:
    step = make_step(architecture)
    with torch.autocast("cpu", torch.bfloat16):
        plain = step.forward(step.inputs)
        for level in _levels(step):
            logits = mixed_logits(step, SWAPPED, torch.ones(5), level=level, padding="none", mask="own")
            assert torch.equal(logits, plain), level


def test_a_batch_of_one_is_its_own_partner(make_step: Any, architecture: str) -> None:
    step = make_step(architecture, rows=1)
    for level in _levels(step):
        logits = mixed_logits(step, torch.tensor([0]), torch.tensor([0.4]), level=level)
        torch.testing.assert_close(logits, step.forward(step.inputs))


def test_a_decoder_has_no_inner_layer_to_mix_at(make_step: Any) -> None:
    with pytest.raises(InputError, match="no dense layer before its head"):
        mixed_logits(make_step("llama"), SWAPPED, WEIGHTS, level="inner")


@pytest.mark.parametrize(("padding", "token"), [("sep", "sep"), ("pad", "pad"), ("unused", "unused"), *FILLERS.items()])
def test_a_tokenizer_without_the_token_to_pad_with_is_refused(make_step: Any, padding: Any, token: str) -> None:
    step = make_step("bert")
    step.fill = {name: 1 for name in step.fill if name != token}
    with pytest.raises(InputError, match=f"no '{token}' token to pad pairs with"):
        mixed_logits(step, SWAPPED, WEIGHTS, level=0, padding=padding)


def test_a_layer_that_is_not_there_is_refused(make_step: Any) -> None:
    with pytest.raises(InputError, match="no layer 7 to mix at"):
        mixed_logits(make_step(), SWAPPED, WEIGHTS, level=7)


def test_inputs_and_model_are_left_as_they_were(make_step: Any, architecture: str) -> None:
    step = make_step(architecture, kind="pair")
    before = {name: tensor.clone() for name, tensor in step.inputs.items()}
    plain = step.forward(step.inputs)
    for level in _levels(step):
        mixed_logits(step, SWAPPED, WEIGHTS, level=level)
    assert before.keys() == step.inputs.keys()
    assert all(torch.equal(step.inputs[name], tensor) for name, tensor in before.items())
    assert torch.equal(step.forward(step.inputs), plain)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in step.model.modules())


# ---- images


def test_pixels_are_mixed_before_the_network_sees_them(image_step: Any, image_architecture: str) -> None:
    step = image_step(image_architecture)
    pixels = mix(step.inputs["pixel_values"], SWAPPED, WEIGHTS)
    expected = step.model(pixel_values=pixels).logits
    torch.testing.assert_close(mixed_logits(step, SWAPPED, WEIGHTS, level=0), expected)


def test_a_stage_is_mixed_where_the_next_one_reads_it(image_step: Any) -> None:
    step = image_step("convnet")
    body = step.model.body
    hidden = mix(body.stages[0](body.stem(step.inputs["pixel_values"])), SWAPPED, WEIGHTS)
    expected = step.model.classifier(body.stages[1](hidden).mean((2, 3)))
    torch.testing.assert_close(mixed_logits(step, SWAPPED, WEIGHTS, level=1), expected)


def test_mixed_images_alone_or_in_equal_shares_are_what_they_should_be(
    image_step: Any, image_architecture: str
) -> None:
    step = image_step(image_architecture)
    for level in (0, 1, 2, "head"):
        alone = mixed_logits(step, SWAPPED, torch.ones(5), level=level)
        torch.testing.assert_close(alone, step.logits, rtol=1e-4, atol=1e-5)
        other = mixed_logits(step, SWAPPED, torch.zeros(5), level=level)
        torch.testing.assert_close(other, step.logits[SWAPPED], rtol=1e-4, atol=1e-5)
        half = mixed_logits(step, SWAPPED, torch.full((5,), 0.5), level=level)
        torch.testing.assert_close(half, half[SWAPPED], rtol=1e-4, atol=1e-5)


def test_networks_of_convolutions_have_no_dense_layer_before_the_head(image_step: Any) -> None:
    with pytest.raises(InputError, match="no dense layer before its head"):
        mixed_logits(image_step("convnet"), SWAPPED, WEIGHTS, level="inner")


@pytest.mark.parametrize("options", [{"level": "heads"}, {"level": None}, {"level": 0, "mask": "x"}])
def test_a_level_or_mask_that_does_not_exist_is_refused(make_step: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"^(level|mask) must be .*, not "):
        mixed_logits(make_step(), SWAPPED, WEIGHTS, **options)


# ---- architectures of their own kind


@pytest.mark.parametrize("kind", ["albert", "eurobert", "longformer", "markuplm", "modernbert-decoder", "xlm", "xlnet"])
def test_a_mix_of_one_text_alone_is_that_text_or_its_partner(checkpoint_of: Any, kind: str) -> None:
    model, tokenizer = load_trained(checkpoint_of(kind))
    packed = encode(tiny.examples(5), tokenizer, max_length=64)
    inputs = packed.batch(torch.arange(5), width=int(packed.host_lengths.max()))
    step = Step(model, inputs, torch.zeros(5, 3), torch.Generator(), fill=fill_tokens(tokenizer))
    for level in _levels(step):
        own = mixed_logits(step, SWAPPED, torch.ones(5), level=level, padding="none", mask="own")
        torch.testing.assert_close(own, step.logits, rtol=1e-4, atol=1e-4, msg=f"level {level}")
        if level in (0, "inner", "head"):
            theirs = mixed_logits(step, SWAPPED, torch.zeros(5), level=level, padding="none", mask="partner")
            torch.testing.assert_close(theirs, step.logits[SWAPPED], rtol=1e-4, atol=1e-4, msg=f"level {level}")
