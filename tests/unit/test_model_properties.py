"""Properties of the models of every preset and every set of options."""

from collections.abc import Callable

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fairseq_recur.errors import ConfigError
from fairseq_recur.models.config import (
    APART,
    encoder_decoder_slots,
    option_fields,
    part_fields,
)
from fairseq_recur.modules.context import Padding
from fairseq_recur.modules.mixture import Mixture
from fairseq_recur.modules.sparse_attention import ProbSparseSelfAttention
from fairseq_recur.modules.srformer import SRformerAttention
from fairseq_recur.ops.native.segmented_recurrent import CompiledSegmentedRecurrent
from tests.conftest import PLAIN, SMALL, SYSTEMS, stock_of
from tests.running import weights
from tests.systems import default_parts, option_values

PAD, EOS = 1, 2
EVAL = ["--dropout", "0", "--attention-dropout", "0", "--activation-dropout", "0"]
Build = Callable[..., nn.Module]
pytestmark = pytest.mark.usefixtures("fairseq_in_the_models_precision")


EXAMPLES = {"min_gru"}
"""Parts that another test of the process may have registered."""


def test_every_option_is_in_a_system() -> None:
    """Of a part or beside them: each choice, each switch, and a number or text but the default."""
    apart = option_fields(*APART["encoder_decoder"])
    given = [{**default_parts(s[1]), **option_values(s)} for s in SYSTEMS.values()]
    for name, kind, made in [*part_fields(encoder_decoder_slots()), *apart]:
        found = {of_one[name] for of_one in given if name in of_one} - {str(made.default)}
        if hasattr(kind, "__members__"):
            choices = {str(choice.value) for choice in kind} - {made.default, *EXAMPLES}
            assert choices - ONLY_IN_AN_ENCODER.get(name, set()) <= found, name
        elif kind is bool:
            assert not made.default and "" in found, f"{name} is not switched on"
        else:
            assert kind in (int, float, str, float | None), f"{name}: what are its choices?"
            assert found or name in NO_COMPUTATION, f"{name} has its default everywhere"
        assert "choices" not in made.metadata and "argparse_const" not in made.metadata, name


ONLY_IN_AN_ENCODER = {"decoder_self_attention": {"directional", "prob_sparse"}}
NO_COMPUTATION = {"monitor_interval"}


def small(make_model: Build, system: list[str]) -> nn.Module:
    """A small float64 model in evaluation mode, with nonzero biases and gates."""
    model = make_model(system[1], *SMALL, *system[2:]).double().eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or not parameter.any():
            nn.init.normal_(parameter, std=0.2)
    return model


def sentences(lengths: list[int], side: str) -> Tensor:
    """Random sentences with EOS, padded on one side: (B, S)."""
    batch = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in zip(batch, lengths):
        words = torch.cat([torch.randint(4, 60, (length - 1,)), torch.tensor([EOS])])
        start = max(lengths) - length if side == "left" else 0
        row[start : start + length] = words
    return batch


def true_lengths(batch: Tensor) -> Tensor:
    return batch.ne(PAD).sum(dim=1)


def targets(count: int, length: int) -> Tensor:
    """Decoder inputs, which begin with EOS as fairseq shifts them: (B, T)."""
    words = torch.randint(4, 60, (count, length - 1))
    return torch.cat([torch.full((count, 1), EOS), words], dim=1)


def encode(model: nn.Module, source: Tensor) -> dict[str, list[Tensor]]:
    return model.encoder(source, true_lengths(source))


@pytest.mark.parametrize("name, compiled", [("compiled", True), ("default", False)])
def test_which_variant_takes_the_code_in_c(
    make_model: Build, monkeypatch: pytest.MonkeyPatch, name: str, compiled: bool
) -> None:
    """So that the tests of this file are also tests of it, in training and in evaluation."""
    widths, forward = [], CompiledSegmentedRecurrent.forward
    counting = staticmethod(lambda *args: (widths.append(args[1].size(-1)), forward(*args))[1])
    monkeypatch.setattr(CompiledSegmentedRecurrent, "forward", counting)
    model = small(make_model, SYSTEMS[f"srformer-{name}"])
    source = sentences([9, 4, 6], "left")
    for training in (False, True):
        model.train(training)(source, true_lengths(source), targets(3, 7))
        assert widths == ([16, 16] if compiled else []), "one call for each of two layers"
        widths.clear()


def test_sentence_alone_equals_sentence_in_a_padded_batch(
    make_model: Build, system: list[str]
) -> None:
    """Source and target padded on the left or on the right."""
    model = small(make_model, system)
    padded_left, prefixes = sentences([9, 1, 5, 2], "left"), list(targets(4, 6))
    prefixes = [words[: len(words) - cut] for words, cut in zip(prefixes, (2, 0, 5, 1))]
    rows = [row[row.ne(PAD)] for row in padded_left]
    on_the_right = [pad_sequence(x, True, PAD) for x in (rows, prefixes)]
    on_the_left = [padded_left, pad_sequence(prefixes, True, PAD, padding_side="left")]
    batches = [
        (model(source, true_lengths(source), target)[0], target.ne(PAD), encode(model, source))
        for source, target in (on_the_left, on_the_right)
    ]
    for b, words in enumerate(rows):
        real = words.unsqueeze(0)
        alone, _ = model(real, true_lengths(real), prefixes[b].unsqueeze(0))
        expected = encode(model, real).get("recurrence_out")
        for batched, there, out in batches:
            assert ("recurrence_out" in out) == (expected is not None)
            torch.testing.assert_close(batched[b][there[b]], alone[0], rtol=1e-9, atol=1e-11)
            if expected is None:
                continue
            states = out["recurrence_out"][0][:, b]
            for mask in out["recurrence_padding_mask"]:
                states = states[~mask[b]]
            torch.testing.assert_close(states, expected[0][:, 0], rtol=1e-9, atol=1e-11)


def beam_order(beams: int, keep: list[int], generator: torch.Generator) -> Tensor:
    """An order as beam search makes it: beams move within the sentences that are kept."""
    return torch.cat(
        [s * beams + torch.randint(beams, (beams,), generator=generator) for s in keep]
    )


def expected_length(system: list[str]) -> int:
    """The length that decoding expects, where a layer reads the reference's; 0: it reads none."""
    options = option_values(system)
    reads = options.get("target_length_mode") == "reference"
    return int(options["target_length"]) if reads else 0


def lengthened(prefix: Tensor, length: int) -> Tensor:
    """Append words to prefixes that are shorter."""
    later = targets(len(prefix), max(1, length - prefix.size(1) + 1))[:, 1:]
    return torch.cat([prefix, later.to(prefix)], dim=1)


@pytest.mark.parametrize(
    "beamable", [pytest.param(False, marks=pytest.mark.slow), True], ids=["plain", "beamable"]
)
def test_incremental_decoding_equals_teacher_forcing(
    make_model: Build, system: list[str], beamable: bool
) -> None:
    """Step by step, with beams reordered at every step and sentences that finish.

    Where a layer reads the reference's length, it is forced with one that is as long as decoding
    expects, whose later words must not matter.
    """
    model = small(make_model, system)
    beams, steps = 3, 7
    length = expected_length(system)
    assert length in (0, steps)
    if beamable:
        model.make_generation_fast_(beamable_mm_beam_size=beams)
        model.decoder.set_beam_size(beams)
    source = sentences([8, 3, 5], "left")
    kept = torch.arange(3)
    out = model.encoder.reorder_encoder_out(encode(model, source), kept.repeat_interleave(beams))
    prefix, state = targets(3 * beams, 1), {}
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        logits, extra = model.decoder(prefix, encoder_out=out, incremental_state=state)
        rows = source[kept].repeat_interleave(beams, dim=0)
        whole = lengthened(prefix, length)
        forced, of_all = model.decoder(whole, encoder_out=encode(model, rows))
        torch.testing.assert_close(logits[:, -1], forced[:, step], rtol=1e-9, atol=1e-11)
        assert (extra["attn"] is None) == (of_all["attn"] is None)
        if extra["attn"] is not None:
            (newest,), (all_steps,) = extra["attn"], of_all["attn"]
            torch.testing.assert_close(newest[:, -1], all_steps[:, step], rtol=1e-9, atol=1e-11)
        survivors = list(range(len(kept)))
        if step in (2, 4):
            del survivors[step // 4]
        order = beam_order(beams, survivors, generator)
        kept = kept[survivors]
        out = model.encoder.reorder_encoder_out(out, order)
        model.decoder.reorder_incremental_state_scripting(state, order)
        words = torch.randint(4, 60, (len(order), 1), generator=generator)
        prefix = torch.cat([prefix[order], words], dim=1)
    assert len(kept) == 1


EXEMPT = {
    "mu", "eta", "nu", "theta", "past", "future", "leak", "threshold", "logit", "opening"
}  # fmt: skip


@pytest.mark.slow_options
def test_what_weight_decay_leaves_alone(make_model: Build, system: list[str]) -> None:
    """The parameters of gates, matrices and neurons, for which zero is no neutral value."""
    exempt, others = set(), set()
    for name, parameter in small(make_model, system).named_parameters():
        asked = getattr(parameter, "optim_overrides", {"optimizer": {}})["optimizer"]
        own = ".mixture." in name or name.split(".")[-1] in EXEMPT
        (exempt if asked.get("weight_decay") == 0.0 else others if own else set()).add(name)
        assert own or asked.get("weight_decay") is None, name
    assert not others


@pytest.mark.slow_options
def test_reordering_carries_the_recurrence_encoder(make_model: Build, system: list[str]) -> None:
    model = small(make_model, system)
    source = sentences([6, 4, 2], "left")
    order = torch.tensor([2, 0, 0])
    moved = model.encoder.reorder_encoder_out(encode(model, source), order)
    direct = encode(model, source[order])
    for key in ("encoder_out", "recurrence_out", "recurrence_padding_mask"):
        assert (key in moved) == (key in direct)
        for a, b in zip(moved.get(key, []), direct.get(key, []), strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.slow_options
def test_every_parameter_has_a_gradient(make_model: Build, system: list[str]) -> None:
    model = make_model(system[1], *SMALL, *system[2:], *EVAL)
    for name, parameter in model.named_parameters():
        if name.endswith("fusion.opening"):  # at zero it alone has a gradient that is not zero
            nn.init.ones_(parameter)
    source = sentences([6, 4, 5], "left")
    logits, _ = model(source, true_lengths(source), targets(3, 5))
    (logits * torch.randn_like(logits)).sum().backward()
    without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    # A bias shared by all keys does not change the softmax: its gradient is zero, but not None.
    assert [n for n in without if not n.endswith(("k_proj.bias", "key.bias"))] == []
    assert all(p.grad is not None for p in model.parameters())


def test_sentences_without_use_for_a_part_give_it_a_gradient(
    make_model: Build, preset: str
) -> None:
    """Of zero: without one, several processes would wait for each other. As the preset has it."""
    model = make_model(preset, *SMALL, *EVAL)
    source = sentences([3, 2], "left")
    model(source, true_lengths(source), targets(2, 3))[0].sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


@pytest.mark.slow_options
@pytest.mark.parametrize(
    "dtype",
    [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.slow)],
    ids=["fp16", "bf16"],
)
def test_half_precision_stays_finite(
    make_model: Build, system: list[str], dtype: torch.dtype
) -> None:
    model = make_model(system[1], *SMALL, *system[2:], *EVAL)
    for module in model.modules():
        if isinstance(module, ProbSparseSelfAttention):
            module.factor = 300  # all positions: rounding changes which ones a smaller one chooses
    source, target = sentences([300, 4, 50], "left"), targets(3, 40)
    exact, _ = model(source, true_lengths(source), target)
    half = model.to(dtype)
    logits, _ = half(source, true_lengths(source), target)
    assert logits.dtype == dtype and torch.isfinite(logits).all()
    logits.float().logsumexp(-1).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in half.parameters())
    # What rounding does through a few layers grows with the unit of rounding of the number format.
    # SRformer adds the products of all keys and values; its neurons divide that by a threshold.
    unit, largest = torch.finfo(dtype).eps, 0.1
    recurrent = [m for m in half.modules() if isinstance(m, SRformerAttention)]
    if any(m.neuron is not None for m in recurrent):
        unit, largest = 4 * unit, 0.25
    elif recurrent:
        largest = 16 * unit
    limit = min(largest, 16 * unit)
    assert (logits.float() - exact).abs().max() < limit * exact.std()


CLOSABLE = {
    "recurrence": "--recurrence-fusion gated_sum --recurrence-fused-layers".split(),
    "mixture": ["--rsa-form"],
}
"""Flags of parts that can be closed so that the arithmetic is that of the stock model."""
WAYS = {"recurrence": ["top", "all"], "mixture": ["dense", "chunked"]}


@pytest.mark.parametrize("way", [0, 1])
def test_closed_parts_are_the_stock_transformer(make_model: Build, preset: str, way: int) -> None:
    """Bit for bit: a closed part leaves no trace, neither in fairseq's Transformer nor in a T5."""
    # Closing SRformer, with one segment, is in test_srformer.py: its arithmetic is another.
    config = ARCH_MODEL_REGISTRY[preset].config_class()
    added = ["--cross-attention", "dot"]
    if config.recurrence == "none" and config.encoder_self_attention != "rsa":
        added = [*added, *"--encoder-self-attention rsa --decoder-self-attention rsa".split()]
    open_model = make_model(preset, *SMALL, *added)
    used = {"recurrence": open_model.encoder.recurrence_encoder is not None}
    used["mixture"] = any(isinstance(m, Mixture) for m in open_model.modules())
    assert any(used.values())
    parts = [part for part, is_used in used.items() if is_used]
    flags = [flag for part in parts for flag in (*CLOSABLE[part], WAYS[part][way])]
    model = make_model(preset, *SMALL, *added, *flags).eval()
    stock = make_model(*stock_of(["--arch", preset])[1:], *SMALL).eval()
    model.load_state_dict(stock.state_dict())
    for module in model.modules():
        if hasattr(module, "gate_r"):
            nn.init.constant_(module.gate_r.bias, float("inf"))
        if isinstance(module, Mixture):
            nn.init.constant_(module.mu, float("-inf"))
    compare_to_stock(model, stock)


@pytest.mark.parametrize("norm", [[], ["--encoder-normalize-before", "--decoder-normalize-before"]])
def test_without_parts_is_the_stock_transformer(
    make_model: Build, transformer: str, norm: list[str]
) -> None:
    model = make_model(transformer, *SMALL, *norm, *PLAIN).eval()
    stock = make_model(*stock_of(["--arch", transformer])[1:], *SMALL, *norm).eval()
    model.load_state_dict(stock.state_dict(), strict=True)
    assert weights(model.state_dict()).keys() == weights(stock.state_dict()).keys()
    compare_to_stock(model, stock)


@pytest.mark.parametrize("norm", [[], ["--encoder-normalize-before", "--decoder-normalize-before"]])
@pytest.mark.parametrize("fusion", ["stack", "gated_sum"])
def test_a_fusion_that_starts_closed(make_model: Build, norm: list[str], fusion: str) -> None:
    """From a stock checkpoint it starts as the stock model, to the last bit, and then opens."""
    flags = ["--recurrence-fusion", fusion, "--recurrence-fusion-init", "closed"]
    fused = [*norm, *EVAL, "--recurrence-fused-layers", "all"]
    model = make_model("transformer_biarn", *SMALL, *flags, *fused).eval()
    stock = make_model("transformer", *SMALL, *norm).eval()
    model.load_state_dict(stock.state_dict())
    compare_to_stock(model, stock)
    of_parts = dict(model.decoder.layers.named_parameters(prefix="fusion"))
    of_parts = {name: p for name, p in of_parts.items() if ".fusion." in name}
    of_parts |= dict(model.encoder.recurrence_encoder.named_parameters())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    source, target = sentences([6, 3, 5], "left"), targets(3, 5)
    moved = []
    for _ in range(2):
        before = {name: p.clone() for name, p in of_parts.items()}
        optimizer.zero_grad()
        model(source, true_lengths(source), target)[0].logsumexp(-1).sum().backward()
        optimizer.step()
        moved.append({name for name, p in of_parts.items() if not torch.equal(p, before[name])})
    assert moved[0] and all(name.endswith("fusion.opening") for name in moved[0])
    still = of_parts.keys() - moved[1]
    assert all(name.endswith("k_proj.bias") for name in still), still  # it never has a gradient


def compare_to_stock(model: nn.Module, stock: nn.Module) -> None:
    """Compare logits and attention weights to the last bit."""
    source, target = sentences([6, 3, 5], "left"), targets(3, 5)
    target[1, -2:] = PAD
    ours, extra = model(source, true_lengths(source), target)
    theirs, stock_extra = stock(source, true_lengths(source), target)
    assert torch.equal(ours, theirs)
    assert torch.equal(extra["attn"][0], stock_extra["attn"][0])
    assert len(extra["inner_states"]) == len(stock_extra["inner_states"])
    with torch.no_grad():
        steps = [decode(m, source, target) for m in (model, stock)]
    assert torch.equal(*steps)


def decode(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    """The logits of incremental decoding: (B, T, V)."""
    out, state = encode(model, source), {}
    steps = range(1, target.size(1) + 1)
    logits = [model.decoder(target[:, :t], out, incremental_state=state)[0] for t in steps]
    return torch.cat(logits, dim=1)


@pytest.mark.slow_options
def test_recurrence_reads_the_source(make_model: Build, system: list[str]) -> None:
    """The second encoder changes the logits: otherwise every test above could pass."""
    model = small(make_model, system)
    if model.encoder.recurrence_encoder is None:
        pytest.skip("no recurrence encoder")
    source, target = sentences([6, 6], "left"), targets(2, 4)
    before, _ = model(source, true_lengths(source), target)
    model.encoder.recurrence_encoder.register_forward_hook(
        lambda module, inputs, output: (output[0] + 1.0, output[1])
    )
    after, _ = model(source, true_lengths(source), target)
    assert (before - after).abs().max() > 1e-3


@pytest.mark.parametrize("fusion", ["stack", "gated_sum"])
def test_a_decoder_without_the_recurrence_encoders_output(make_model: Build, fusion: str) -> None:
    model = make_model("transformer_birnn", *SMALL, "--recurrence-fusion", fusion, *EVAL)
    source, target = sentences([6, 6], "left"), targets(2, 4)
    stock = {"encoder_out": encode(model, source)["encoder_out"], "encoder_padding_mask": []}
    for found in (None, stock):
        with pytest.raises(ConfigError, match="without the output of one; give it"):
            model.decoder(target, found)


@pytest.mark.parametrize("norm", [[], ["--encoder-normalize-before"]])
def test_recurrence_over_the_encoders_output(make_model: Build, norm: list[str]) -> None:
    """Over what the decoder reads: with pre-norm, the output of the last norm."""
    flags = ["--recurrence", "birnn", "--recurrence-input", "encoder", *norm]
    model, source = (
        small(make_model, ["--arch", "transformer_biarn", *flags]),
        sentences([6, 3], "left"),
    )
    out = encode(model, source)
    expected, _ = model.encoder.recurrence_encoder(
        out["encoder_out"][0].transpose(0, 1), Padding.of(source.eq(PAD))
    )
    torch.testing.assert_close(out["recurrence_out"][0], expected)


def test_attention_weights_where_layers_are_replaced(make_model: Build) -> None:
    """Those of the topmost layer that attends to the encoder; none if no layer does."""
    flags = ["--recurrence-fusion", "replace"]
    model = small(make_model, ["--arch", "transformer_biarn", *flags])
    seen = []
    model.decoder.layers[0].encoder_attn.register_forward_hook(
        lambda module, inputs, output: seen.append(output[1].mean(0))
    )
    source, target = sentences([6, 3], "left"), targets(2, 4)
    _, extra = model(source, true_lengths(source), target)
    torch.testing.assert_close(extra["attn"][0], seen[0], check_dtype=False)
    flags += "--recurrence-fused-layers all --recurrence-input encoder".split()
    model = small(make_model, ["--arch", "transformer_biarn", *flags])
    assert model(source, true_lengths(source), target)[1]["attn"] is None


def order_changes(model: nn.Module) -> tuple[bool, Tensor | None]:
    """Whether swapping two words changes the recurrence encoder's output, and the output."""
    source = torch.tensor([[5, 6, 7, EOS]])
    swapped = torch.tensor([[6, 5, 7, EOS]])
    a, b = (encode(model, s)["recurrence_out"][0] for s in (source, swapped))
    return not torch.allclose(a, b), a


@pytest.mark.parametrize(
    "flags, seen",
    [
        ([], False),
        (["--recurrence-positions"], True),
        (["--recurrence", "birnn"], True),
        (["--recurrence-input", "encoder"], True),
    ],
    ids=["biarn", "biarn-positions", "birnn", "encoder-input"],
)
def test_biarn_sees_order_only_through_positions(
    make_model: Build, flags: list[str], seen: bool
) -> None:
    """Content-based attention over embeddings without positions does not see their order."""
    model = small(make_model, ["--arch", "transformer_biarn", *flags])
    assert order_changes(model)[0] is seen
