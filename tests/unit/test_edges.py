"""Extreme shapes: only padding, one token, more tokens than positions, a tail of one word."""

from collections.abc import Callable

import pytest
import torch
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn

from fairseq_recur.errors import ConfigError
from fairseq_recur.modules.context import Padding
from fairseq_recur.ops import attention, padding, recurrence_encoder
from tests.conftest import SMALL, preset_flags

Build = Callable[..., nn.Module]

PADDING_ONLY = torch.tensor([[False, False, True], [True, True, True]])
"""The padding mask of a sentence of two tokens, and of one that is only padding."""

POOLS = {
    "masked_mean": lambda x: padding.masked_mean(x, PADDING_ONLY),
    "additive_attention": lambda x: recurrence_encoder.additive_attention(
        x[:, :1], x, x.new_ones(4), x, PADDING_ONLY
    ),
    "dot_product_attention": lambda x: attention.dot_product_attention(
        x[:, None, :1], x[:, None], x[:, None], padding.visible_keys(PADDING_ONLY)
    ),
}


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_sentence_of_only_padding(name: str, dtype: torch.dtype) -> None:
    """Outputs and gradients are finite, and the other sentence of the batch is unchanged."""
    x = torch.randn(2, 3, 4).to(dtype).requires_grad_()
    both = POOLS[name](x)
    both.float().sum().backward()
    assert both.isfinite().all() and x.grad.isfinite().all()
    twice = POOLS[name](x.detach()[:1].expand(2, -1, -1).contiguous())
    torch.testing.assert_close(both[0], twice[0])


def batch(source: list[list[int]], target: list[list[int]], pad: int = 1) -> list[Tensor]:
    """Source, its lengths, and the target, padded on the right."""
    width, length = max(map(len, source)), max(map(len, target))
    return [
        torch.tensor([s + [pad] * (width - len(s)) for s in source]),
        torch.tensor([len(s) for s in source]),
        torch.tensor([t + [pad] * (length - len(t)) for t in target]),
    ]


@pytest.mark.parametrize("form", ["stored", "recomputed"])
def test_dropout_of_all_attention_weights(make_model: Build, form: str) -> None:
    """SRformer then reads nothing of its segments, and all gradients are finite."""
    flags = ["--segment-size", "3", "--target-length", "7", "--srformer-form", form]
    model = make_model("srformer", *SMALL, *flags, "--attention-dropout", "1").train()
    out, _ = model(*batch([[5, 6, 7, 2], [8, 2]], [[2, 5, 6], [2, 8, 9]]))
    out.sum().backward()
    assert out.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def translator(make_model: Build, system: list[str], *flags: str) -> nn.Module:
    return make_model(system[1], *SMALL, "--dropout", "0", *system[2:], *flags)


@pytest.mark.slow_options
def test_sentences_of_one_token(make_model: Build, system: list[str]) -> None:
    """Only the end-of-sentence token, in a separate batch and with a longer sentence."""
    torch.manual_seed(1)
    model = translator(make_model, system).double()
    out, _ = model(*batch([[2]], [[2]]))
    assert out.shape[:2] == (1, 1) and out.isfinite().all()
    out.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    model.eval()
    alone, _ = model(*batch([[2]], [[2]]))
    beside, _ = model(*batch([[2], [5, 6, 7, 2]], [[2], [2, 8, 9]]))
    torch.testing.assert_close(beside[0, 0], alone[0, 0], rtol=0, atol=1e-6)


def test_decoding_ends_where_positions_end(
    make_model: Build, preset: str, dictionary: Dictionary
) -> None:
    """Beam search may request more words than the model has positions."""
    system = ["--arch", preset, *preset_flags(preset)]
    model = translator(make_model, system, "--max-target-positions", "9").eval()
    source, lengths, _ = batch([[5, 6, 7, 2]], [[2]])
    generator = SequenceGenerator([model], dictionary, beam_size=2, max_len_b=200, min_len=8)
    sample = {"net_input": {"src_tokens": source, "src_lengths": lengths}}
    (hypotheses,) = generator.generate([model], sample)
    assert {len(h["tokens"]) for h in hypotheses} == {9}
    assert all(h["positional_scores"].isfinite().all() for h in hypotheses)


def test_a_tail_of_one_word(make_model: Build, preset: str, dictionary: Dictionary) -> None:
    """The last band of the adaptive softmax may hold one word; a T5 has no adaptive softmax.

    The loss is that of all words, also of a band's second one, whose number there is padding's.
    """
    flags = ["--adaptive-softmax-cutoff", f"20,{len(dictionary) - 1}"]
    config = ARCH_MODEL_REGISTRY[preset].config_class()
    if config.share_all_embeddings or config.share_decoder_input_output_embed:
        flags += ["--adaptive-softmax-factor", "1"]
    torch.manual_seed(1)
    try:
        model = translator(make_model, ["--arch", preset, *preset_flags(preset)], *flags)
    except ConfigError as error:
        assert config.host == "t5" and "--adaptive-softmax-cutoff" in str(error)
        return
    source, lengths, previous = batch([[5, 6, 2], [7, 2]], [[2, 5, 63], [2, 21]])
    target = torch.tensor([[5, 63, 2], [21, 2, 1]])
    task = type("Task", (), {"target_dictionary": dictionary})
    sample = {
        "net_input": {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": previous},
        "target": target, "ntokens": 5, "nsentences": 2,
    }  # fmt: skip
    loss, _, _ = AdaptiveLoss(task, sentence_avg=False)(model, sample)
    loss.backward()
    assert loss.isfinite()
    tail = model.decoder.adaptive_softmax.tail[-1][-1].weight
    assert tail.size(0) == 1
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    model.eval()
    output = model(source, lengths, previous, features_only=False)
    probabilities = model.get_normalized_probs(output, log_probs=False)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(2, 3))
    of_words = probabilities.gather(2, target.unsqueeze(2))[target != dictionary.pad()]
    loss, size, _ = AdaptiveLoss(task, sentence_avg=False)(model, sample)
    assert size == len(of_words) == 5
    assert AdaptiveLoss(task, sentence_avg=True)(model, sample)[1] == len(source)
    torch.testing.assert_close(loss[0], -of_words.log().sum(), rtol=1e-4, atol=1e-4)
    half, _, _ = AdaptiveLoss(task, sentence_avg=False)(model.bfloat16(), sample)
    torch.testing.assert_close(half, loss, rtol=0.02, atol=0)  # of float32, not rounded


@pytest.mark.slow
def test_twenty_thousand_tokens(make_model: Build, preset: str) -> None:
    length = 20_000
    flags = ["--max-source-positions", str(length + 1), "--no-token-positional-embeddings"]
    config = ARCH_MODEL_REGISTRY[preset].config_class()
    if getattr(config, "encoder_learned_pos", False) or config.host == "t5":
        flags = flags[:2]
    model = translator(make_model, ["--arch", preset], *flags).eval()
    source = torch.randint(4, 64, (1, length))
    with torch.no_grad():
        out, _ = model(source, torch.tensor([length]), torch.tensor([[2, 5, 6]]))
    assert out.isfinite().all()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["birnn", "biarn", "a step a token"])
def test_a_source_of_only_padding(make_model: Build, kind: str, side: str) -> None:
    """The recurrence encoder is finite; padding has outputs that are masked where they are read."""
    name, flags = {
        "birnn": ("transformer_birnn", []),
        "biarn": ("transformer_biarn", []),
        "a step a token": ("transformer_biarn", ["--recurrence-steps", "-1"]),
    }[kind]
    recurrence = make_model(name, *SMALL, *flags).eval().encoder.recurrence_encoder
    mask = torch.tensor([[False] * 3, [True] * 3, [side == "left", False, side == "right"]])
    out, _ = recurrence(torch.randn(3, 3, 16), Padding.of(mask))
    assert out.isfinite().all()


@pytest.mark.parametrize("attention", ["additive", "multihead"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_attention_of_a_step_a_token(make_model: Build, attention: str, side: str) -> None:
    """A padded sentence has the attention that it has by itself, in both directions."""
    flags = ["--recurrence-steps", "-1", "--recurrence-attention", attention]
    biarn = make_model("transformer_biarn", *SMALL, *flags).eval()
    biarn = biarn.encoder.recurrence_encoder.layers[0].recurrence
    x, real = torch.randn(2, 7, 16), [slice(0, 7), slice(2, 7) if side == "left" else slice(0, 5)]
    mask = torch.ones(2, 7, dtype=torch.bool)
    for row, place in enumerate(real):
        mask[row, place] = False
    together = biarn.weights(x, Padding.of(mask), biarn(x, Padding.of(mask)))
    for row, place in enumerate(real):
        one = x[row : row + 1, place]
        alone = biarn.weights(one, None, biarn(one, None))[0]
        found = together[row][:, :, : alone.size(2), place]
        torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-6)
