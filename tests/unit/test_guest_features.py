"""Features of fairseq that models with our parts support as its stock models do."""

from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy_with_alignment import (
    LabelSmoothedCrossEntropyCriterionWithAlignment as AlignmentCriterion,
)
from fairseq.dataclass.configs import EMAConfig, FairseqConfig
from fairseq.models.ema import EMA
from fairseq.modules import FairseqDropout
from fairseq.sequence_generator import SequenceGeneratorWithAlignment
from omegaconf import OmegaConf, open_dict
from torch import nn

from fairseq_recur.errors import ConfigError
from fairseq_recur.modules.context import Padding, Source
from fairseq_recur.modules.cross_attention import DotCrossAttention
from fairseq_recur.modules.segmented_comparisons import SegmentRNNs
from tests.configuring import model_config
from tests.conftest import LANGUAGE_MODELS, SEGMENTS, SMALL, STRUCTURES, preset_flags

Build = Callable[..., nn.Module]
DEEP = [*SMALL, "--encoder-layers", "3", "--decoder-layers", "3"]
WORDS = {
    "src_tokens": torch.arange(4, 40).view(2, 18),
    "src_lengths": torch.tensor([18, 18]),
    "prev_output_tokens": torch.arange(20, 40).view(2, 10),
}
RECIPE = ["TransformerEncoder", "TransformerDecoder", "TransformerEncoderLayer"]
RECIPE += ["TransformerDecoderLayer", "MultiheadAttention"]


def prepare(model: nn.Module, names: Any) -> set[str]:
    """Prepare a model for decoding with dropout; return the names of what keeps its dropout."""
    cfg = OmegaConf.structured(FairseqConfig())
    cfg.generation.retain_dropout, cfg.generation.retain_dropout_modules = True, names
    model.prepare_for_inference_(cfg)
    dropouts = [
        (name, m) for name, m in model.named_modules() if isinstance(m, FairseqDropout) and m.p
    ]
    assert dropouts
    return {name for name, m in dropouts if m.apply_during_inference}


@pytest.mark.parametrize("as_text", [False, True])
def test_dropout_in_decoding(make_model: Build, preset: str, as_text: bool) -> None:
    """What fairseq's recipe for quality estimation needs: modules named as in the stock model."""
    flags = ["--dropout", "0.1", "--attention-dropout", "0.1", "--activation-dropout", "0.1"]
    model = make_model(preset, *SMALL, *preset_flags(preset), *flags)
    kept = prepare(model, repr(RECIPE) if as_text else RECIPE)
    for stack in (model.encoder, model.decoder):
        side = "encoder" if stack is model.encoder else "decoder"
        assert f"{side}.dropout_module" in kept
        for place in ("", "activation_", "self_attn."):
            assert f"{side}.layers.1.{place}dropout_module" in kept
    scores = [model(**WORDS)[0] for _ in range(2)]
    assert not torch.allclose(*scores)


@pytest.mark.parametrize("attention", ["additive", "multihead"])
def test_dropout_of_the_steps_in_decoding(make_model: Build, attention: str) -> None:
    flags = ["--attention-dropout", "0.5", "--recurrence-attention", attention]
    model = make_model("transformer_biarn", *SMALL, *flags)
    own = model.encoder.recurrence_encoder.layers[0].recurrence.attention
    assert len(prepare(model, [type(own).__name__])) == 1
    assert own.dropout_module.apply_during_inference
    assert not torch.equal(*(model(**WORDS)[0] for _ in range(2)))


@pytest.mark.parametrize(
    "name, kept",
    [
        ("TransformerDecoder", {"decoder.dropout_module"}),
        ("TransformerDecoderBase", {"decoder.dropout_module"}),
        ("RecurrentTransformerEncoder", {"encoder.dropout_module"}),
        ("StackFusion", {"decoder.layers.1.fusion.dropout_module"}),
    ],
)
def test_only_the_named_modules_keep_their_dropout(
    make_model: Build, name: str, kept: set[str]
) -> None:
    flags = ["--dropout", "0.1", "--recurrence-fusion", "gated_sum"]
    assert prepare(make_model("transformer_biarn", *SMALL, *flags), [name]) == kept


def test_dropout_of_a_module_that_the_model_does_not_have(make_model: Build) -> None:
    model = make_model("transformer_biarn", *SMALL)
    with pytest.raises(ConfigError, match="^--retain-dropout-modules Encoder: no module .*Decoder"):
        prepare(model, ["TransformerEncoder", "Encoder"])


@pytest.mark.parametrize(
    "arch, flags",
    [
        *(("srformer", [*SEGMENTS, "--cross-attention", p]) for p in ("srformer", "xl", "global")),
        ("srformer", [*SEGMENTS, "--cross-attention", "segmented"]),
        ("transformer_biarn", ["--cross-attention-fused"]),
        ("transformer_biarn", ["--cross-attention-mixture", "rsa"]),
        ("transformer_biarn", []),
    ],
)
def test_alignment_loss(make_model: Build, arch: str, flags: list[str]) -> None:
    """Finite and with gradients, also for alignments outside the segment that a query reads."""
    model = make_model(arch, *SMALL, *flags).train()
    model.decoder.layers[-1].encoder_attn.out_proj.requires_grad_(False)
    target = WORDS["prev_output_tokens"]
    sample = {
        "net_input": WORDS,
        "target": target,
        "ntokens": target.numel(),
        "alignments": torch.tensor([[0, 0], [17, 0], [1, 1], [17, 10]]),
        "align_weights": torch.ones(4),
    }
    task: Any = SimpleNamespace(target_dictionary=model.decoder.dictionary)
    logged, gradients = [], []
    for weight in (0.0, 1.0):
        loss, _, log = AlignmentCriterion(task, False, 0.1, weight)(model, sample)
        model.zero_grad()
        loss.backward()
        logged.append(log["alignment_loss"])
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        assert all(g.isfinite().all() for g in grads)
        gradients.append(model.decoder.layers[-1].encoder_attn.q_proj.weight.grad.clone())
    assert all(0 < float(value) < 400 for value in logged)
    assert not torch.equal(*gradients)
    _, _, log = AlignmentCriterion(task, False, 0.1, 1.0)(model.eval(), sample)
    assert 0 < float(log["alignment_loss"]) < 400, "in validation"


def test_a_model_without_alignments_is_refused(make_model: Build) -> None:
    nothing = "--recurrence-fusion replace --recurrence-fused-layers all --recurrence-input encoder"
    without = make_model("transformer_biarn", *SMALL, *nothing.split())
    model = make_model("transformer_biarn", *SMALL, "--recurrence-fusion", "replace")
    words = model.decoder.dictionary
    SequenceGeneratorWithAlignment([model], words)
    with pytest.raises(ConfigError, match="no alignments.* remove --print-alignment"):
        SequenceGeneratorWithAlignment([model, without], words)
    task: Any = SimpleNamespace(target_dictionary=words)
    with pytest.raises(ConfigError, match="choose a criterion without alignments"):
        AlignmentCriterion(task, False, 0.1, 1.0)(
            without, {"net_input": WORDS, "alignments": torch.tensor([[0, 0]])}
        )


@pytest.mark.parametrize("flag", ["", "--cross-attention-fused", "--cross-attention-mixture=rsa"])
def test_weights_are_computed_where_something_reads_them(
    make_model: Build, flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In training those of fairseq's own module, which has them in any case, or a named layer's."""
    model = make_model("transformer_biarn", *SMALL, *flag.split())
    stock, asked = not flag, list[bool]()
    forward = DotCrossAttention.forward

    def watched(self: Any, x: Any, context: Any, need_weights: bool, **kwargs: bool) -> Any:
        asked.append(need_weights)
        return forward(self, x, context, need_weights, **kwargs)

    monkeypatch.setattr(DotCrossAttention, "forward", watched)
    layers = len(model.decoder.layers)
    model.train()(**WORDS)
    assert asked == [False] * (layers - 1) + [stock]
    asked.clear()
    assert model(**WORDS, alignment_layer=0)[1]["attn"][0] is not None
    assert asked == [True] + [False] * (layers - 1)
    asked.clear()
    model.eval()(**WORDS)
    assert asked == [stock] * (layers - 1) + [True]


def pruned(make_model: Build, arch: str, flags: list[str], keep: dict[str, str]) -> tuple[Any, Any]:
    """A model, and the one that fairseq loads its checkpoint into with some layers left out."""
    full = make_model(arch, *DEEP, *flags).eval()
    given = [part for side, layers in keep.items() for part in (f"--{side}-layers-to-keep", layers)]
    cfg = model_config("translation", arch, (*DEEP, *flags))
    with open_dict(cfg):
        for side, layers in keep.items():
            cfg[f"{side}_layers_to_keep"] = layers
    part = make_model(arch, *DEEP, *flags, *given).eval()
    part.load_state_dict(full.state_dict(), model_cfg=cfg)
    return full, part


@pytest.mark.parametrize(
    "arch, flags",
    [
        ("transformer_biarn", ["--recurrence-layers", "2"]),
        ("transformer_biarn", ["--recurrence-fused-layers", "all"]),
        ("transformer_biarn", ["--recurrence-fused-layers", "2"]),
        ("transformer_biarn", "--recurrence-fusion replace --recurrence-input encoder".split()),
        ("transformer_rnn_multicolumn", ["--recurrence-layers", "2"]),
        ("rsa_transformer", []),
        ("srformer", []),
    ],
)
@pytest.mark.parametrize(
    "encoder, decoder",
    [
        ("1,2", "0,2"),
        *(
            pytest.param(*layers, marks=pytest.mark.slow)
            for layers in (("1,2", "0,1,2"), ("0,1,2", "0,2"), ("0", "2"), ("1", "1,2"))
        ),
    ],
)
def test_layers_to_keep(
    make_model: Build, arch: str, flags: list[str], encoder: str, decoder: str
) -> None:
    """The pruned model is the full one without the other layers; fairseq prunes both sides."""
    keep = {"encoder": encoder, "decoder": decoder}
    full, part = pruned(make_model, arch, flags, keep)
    for side, layers in keep.items():
        stack = getattr(full, side)
        stack.layers = nn.ModuleList(stack.layers[int(i)] for i in layers.split(","))
    assert part.state_dict().keys() == full.state_dict().keys()
    torch.testing.assert_close(part(**WORDS)[0], full(**WORDS)[0])


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_layers_to_keep_of_one_side(make_model: Build, side: str) -> None:
    """The other side keeps all of its layers; fairseq's own function would drop them."""
    full, part = pruned(make_model, "transformer_biarn", [], {side: "0,2"})
    stack = getattr(full, side)
    stack.layers = nn.ModuleList(stack.layers[i] for i in (0, 2))
    torch.testing.assert_close(part(**WORDS)[0], full(**WORDS)[0])


def test_the_configuration_of_a_pruned_model_is_saved(make_model: Build) -> None:
    """It builds the smaller model, and weights with which it was saved are not pruned again."""
    flags = [*DEEP, *"--recurrence-fused-layers 2 --decoder-layers-to-keep 0,2".split()]
    cfg = deepcopy(model_config("translation", "transformer_biarn", flags))
    model = make_model("transformer_biarn", *flags)
    weights = {name: w.clone() for name, w in model.state_dict().items()}
    model.load_state_dict(weights, model_cfg=cfg)
    found = [cfg.encoder_layers, cfg.decoder_layers, cfg.decoder_layers_to_keep]
    assert found == [3, 2, None] and cfg.recurrence_fused_layers == "1"
    assert all(torch.equal(w, weights[name]) for name, w in model.state_dict().items())


def test_a_stock_checkpoint_starts_a_pruned_model(make_model: Build) -> None:
    """Each kept layer has its part, with fresh weights, whatever its number was."""
    stock = make_model("transformer", *DEEP)
    given = ["--decoder-layers-to-keep", "0,2", "--encoder-layers-to-keep", "2"]
    cfg = model_config("translation", "rsa_transformer", (*DEEP, *given))
    with open_dict(cfg):
        cfg.encoder_layers_to_keep, cfg.decoder_layers_to_keep = "2", "0,2"
    model = make_model("rsa_transformer", *DEEP, *given)
    model.load_state_dict(stock.state_dict(), model_cfg=cfg)
    for side, ours, theirs in (("decoder", 0, 0), ("decoder", 1, 2), ("encoder", 0, 2)):
        found = getattr(model, side).layers[ours].state_dict()
        kept = getattr(stock, side).layers[theirs].state_dict()
        assert kept and all(torch.equal(found[name], kept[name]) for name in kept)


@pytest.mark.parametrize("arch", ["t5_small", "transformer"])
def test_averages_keep_the_norms_of_pre_norm_stacks(make_model: Build, arch: str) -> None:
    """fairseq leaves the version out of its averages, and then takes the last norm for absent."""
    flags = ["--encoder-normalize-before", "--decoder-normalize-before"]
    model = make_model(arch, *SMALL, *(flags if arch == "transformer" else []))
    average = EMA(model, EMAConfig(store_ema=True, ema_decay=0.5))
    for _ in range(2):
        average.step(model)
    found = average.get_model().state_dict()
    assert found.keys() == model.state_dict().keys()
    assert "decoder.layer_norm.weight" in found and found["decoder.version"] == 3


def test_dropout_of_mixed_maps_in_incremental_decoding(make_model: Build) -> None:
    model = make_model("rsa_transformer", *SMALL, "--attention-dropout", "0.5").eval()
    prepare(model, ["DotSelfAttention"])
    out, state = model.encoder(WORDS["src_tokens"], WORDS["src_lengths"]), [{}, {}]
    for step in range(1, 5):
        words = WORDS["prev_output_tokens"][:, :step]
        logits = [model.decoder(words, out, incremental_state=s)[0] for s in state]
    assert not torch.allclose(*logits)


def test_pruning_that_would_drop_the_fusion(make_model: Build) -> None:
    message = (
        "--decoder-layers-to-keep 0,1 drops every layer that reads the recurrence encoder .*"
        "--recurrence-fused-layers top.*from 2 to 2"
    )
    with pytest.raises(ConfigError, match=message):
        make_model("transformer_biarn", *DEEP, "--decoder-layers-to-keep", "0,1")
    with pytest.raises(ConfigError, match="--decoder-layers-to-keep 0,x: expected .*numbers"):
        make_model("transformer_biarn", *DEEP, "--decoder-layers-to-keep", "0,x")
    for wrong in ("0,3", "1,1"):
        with pytest.raises(ConfigError, match=f"--encoder-layers-to-keep {wrong}: .*from 0 to 2"):
            make_model("rsa_transformer", *DEEP, "--encoder-layers-to-keep", wrong)


@pytest.mark.parametrize("arch", [*STRUCTURES, *LANGUAGE_MODELS])
def test_script_says_that_it_does_not_work(make_model: Build, arch: str) -> None:
    flags = SMALL if "lm" not in arch else []
    with pytest.raises(ConfigError, match="torch.jit.script cannot compile .*; use the model"):
        torch.jit.script(make_model(arch, *flags))


@pytest.mark.parametrize("targets", [7, 2])
def test_memory_of_the_published_code(make_model: Build, targets: int) -> None:
    """One RNN over all heads goes from segment to segment, the first of which reads itself."""
    flags = ["--segment-size", "5", "--target-length", str(targets), "--xl-memory", "rnn_all_heads"]
    model = make_model("srformer", *SMALL, "--cross-attention", "xl", *flags).eval()
    part = model.decoder.layers[0].encoder_attn
    padding = Padding.of(torch.arange(18) < torch.tensor([[6], [0]]))
    source = Source.of(torch.randn(18, 2, 16), padding)
    segments = part.segments(source, 10, None)
    assert (segments.schedule.step_segments is None) == (targets == 7)
    keys, values = (
        segments.cut(part.split(torch.randn(segments.hidden.size(0), 2, 16))) for _ in range(2)
    )
    prepared = part.prepare(keys, values, segments)
    order = segments.schedule.step_segments
    for name, rnn, x in (("keys", part.rnns.keys, keys), ("values", part.rnns.values, values)):
        states, memory = [], None
        for segment in x.transpose(1, 2).unbind(1):  # (2, M, H, s, D)
            joined = segment.transpose(1, 2).flatten(2)
            out, memory = rnn(joined, memory)
            states.append(out.unflatten(2, (2, 8)).transpose(1, 2))
        steps = prepared[f"memory_{name}"].size(2)
        for row in range(2):
            for step in range(steps):
                read = step if order is None else int(order[row, step])
                expected = states[max(0, read - 1)][row]
                torch.testing.assert_close(prepared[f"memory_{name}"][row, :, step], expected)


def test_parameters_of_the_published_memory() -> None:
    """Of a layer of T5-small: 8 heads of width 64."""
    assert sum(p.numel() for p in SegmentRNNs(64, 8).parameters()) == 1_050_624
    assert sum(p.numel() for p in SegmentRNNs(64).parameters()) == 16_640


@pytest.mark.parametrize("whole", [False, True])
def test_the_published_memory_in_incremental_decoding(make_model: Build, whole: bool) -> None:
    """With padding, and with sources that fill their segments, which need no mask."""
    flags = ["--xl-memory", "rnn_all_heads", *SEGMENTS]
    model = make_model("srformer", *SMALL, "--cross-attention", "xl", *flags).eval()
    tokens, lengths, targets = WORDS.values()
    tokens = tokens.clone()
    if whole:
        tokens = tokens[:, -6:]
        assert not tokens.eq(model.encoder.padding_idx).any()
    else:
        tokens[0, :5] = model.encoder.padding_idx
    encoded = model.encoder(tokens, lengths)
    expected, _ = model.decoder(targets, encoded)
    state: dict[str, Any] = {}
    for position in range(targets.size(1)):
        out, _ = model.decoder(targets[:, : position + 1], encoded, incremental_state=state)
        torch.testing.assert_close(out[:, -1], expected[:, position])
