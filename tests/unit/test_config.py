"""The configuration: flags, presets, parameter counts, and refusals."""

from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import options
from fairseq.checkpoint_utils import load_model_ensemble
from fairseq.dataclass import FairseqDataclass
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.models.transformer import TransformerConfig
from torch import nn

from fairseq_recur.errors import CheckpointError, ConfigError
from fairseq_recur.integration import loading
from fairseq_recur.models import PRESETS as DECLARED
from fairseq_recur.models.base import RecurrentModel
from fairseq_recur.models.check import check_config, set_without_effect
from fairseq_recur.models.checkpoints import part_weights, rename_old_options
from fairseq_recur.models.config import (
    LEFT_OUT,
    encoder_decoder_slots,
    language_model_slots,
    part_options,
)
from fairseq_recur.models.model import RecurrentTransformerModel
from fairseq_recur.models.presets import KINDS
from fairseq_recur.modules import parts
from fairseq_recur.modules.options import declared, listed, without_effect
from fairseq_recur.modules.parts import map_and_mixture
from fairseq_recur.modules.rem import RecurrenceEncodingMatrices
from tests.conftest import (
    LANGUAGE_MODELS,
    PLAIN,
    PRESETS,
    SEGMENTS,
    SMALL,
    STRUCTURES,
    TRAIN,
    stock_of,
    structure,
)
from tests.running import USER_DIR, weights
from tests.unit.test_language_model import SMALL_LM

Build = Callable[..., nn.Module]
STOCK_NAMES: dict[str, str] = {
    "": "transformer",
    "_iwslt_de_en": "transformer_iwslt_de_en",
    "_wmt_en_de": "transformer_wmt_en_de",
    "_wmt_zh_en": "transformer_wmt_en_de",
    "_wmt_en_de_big": "transformer_wmt_en_de_big",
}
STOCK_SIZES: dict[str, str] = {
    system + size: stock
    for system in (
        "transformer_biarn",
        "transformer_birnn",
        "rsa_transformer",
        "srformer",
        "transformer_relpos",
        "transformer_disan",
        "transformer_rnn_multicolumn",
    )  # fmt: skip
    for size, stock in STOCK_NAMES.items()
    if system + size in PRESETS
}
"""fairseq's own architecture of the same size."""


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in weights(dict(model.named_parameters())).values())


def test_registered_presets_are_the_declared_ones() -> None:
    assert PRESETS == sorted(DECLARED)
    assert {"transformer_biarn", "rsa_transformer_tiny"} <= set(PRESETS)
    others = (
        "t5_small codet5_small rsa_codet5_small srformer_t5_small srformer_base "
        "srformer_bart_base srformer_bart_large"
    )
    assert {p for p in PRESETS if not p.endswith("_tiny")} == {*STOCK_SIZES, *others.split()}


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in STRUCTURES])
def test_every_preset_is_tested_in_its_structure(make_model: Build, name: str) -> None:
    """With small sizes, a preset makes the same model as the structure that it is based on."""
    (twin,) = (s for s in STRUCTURES if structure(s) == structure(name))
    shapes = [
        {n: p.shape for n, p in make_model(arch, *SMALL).named_parameters()}
        for arch in (name, twin)
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    "kind, name, given",
    [
        pytest.param(kind, name, given, id=name)
        for kind, presets in KINDS
        for name, given in presets.items()
    ],
)
def test_a_preset_gives_nothing_that_no_part_reads(
    kind: type[RecurrentModel], name: str, given: dict[str, Any]
) -> None:
    defaults = MODEL_DATACLASS_REGISTRY[name]()
    options = {option.name: option for option in fields(defaults)}
    cfg = Namespace(**{option: getattr(defaults, option) for option in options})
    cfg.tokens_per_sample = 512  # of the task
    owners, chosen = part_options(kind.slots()), list(parts.chosen_parts(cfg))
    assert not list(set_without_effect(cfg, options, owners, chosen, set(given)))


def test_every_option_has_help_and_default() -> None:
    for option in fields(RecurrentTransformerModel.config_class):
        if option.name != "_name":
            assert option.metadata.get("help"), option.name
            assert option.default is not None or "Optional" in str(option.type), option.name


def test_every_part_says_what_it_is() -> None:
    """A subclass does not inherit it: the help would describe its parent."""
    for slot in (*encoder_decoder_slots(), *language_model_slots()):
        for name, part in slot.table.items():
            assert f"{name} ({vars(part)['about']})" in slot.field()[2].metadata["help"]
    parent = parts.RECURRENCE["biarn"]
    assert listed({"a": parent, "b": type("B", (parent,), {})}) == f"a ({parent.about}), b"


def test_every_option_of_the_stock_transformer_is_there() -> None:
    """A recipe for fairseq's Transformer keeps its meaning: the same flags, the same defaults."""
    stock: dict[str, object] = {}
    for f in fields(TransformerConfig):
        if isinstance(f.type, type) and issubclass(f.type, FairseqDataclass):
            stock.update({f"{f.name}_{g.name}": g.default for g in fields(f.type)})
        else:
            stock[f.name] = f.default
    names = {n for n in stock if not n.endswith("_name")} - LEFT_OUT
    ours = {f.name: f for f in fields(RecurrentTransformerModel.config_class)}
    assert names <= ours.keys()
    for name in names:
        default = ours[name].default
        assert default == stock[name] or str(default).startswith("${"), name


@pytest.mark.parametrize("sized", [
    pytest.param(s, marks=() if s.startswith("transformer_biarn") else pytest.mark.slow)
    for s in STOCK_SIZES
])  # fmt: skip
def test_preset_is_the_stock_size_with_parts(make_model: Build, sized: str) -> None:
    """Without its parts a preset is fairseq's architecture of that name, weight for weight."""
    with torch.device("meta"):
        stock = make_model(STOCK_SIZES[sized])
        model = make_model(sized, *PLAIN)
    ours, theirs = (weights(dict(m.named_parameters())) for m in (model, stock))
    assert {n: p.shape for n, p in ours.items()} == {n: p.shape for n, p in theirs.items()}
    for option in ("dropout", "attention_dropout", "activation_dropout", "activation_fn"):
        assert getattr(model.decoder.cfg, option) == getattr(stock.decoder.cfg, option)


@pytest.mark.parametrize(
    "sized, added, printed",
    [
        ("transformer_biarn", 9_448_960, "9.4"),
        ("transformer_biarn_wmt_en_de", 9_448_960, "9.4"),
        ("transformer_biarn_wmt_zh_en", 9_448_960, "9.4"),
        # The paper prints 69.4: no structure that gives 9.4 at half the width gives that.
        ("transformer_biarn_wmt_en_de_big", 37_772_288, "37.8"),
    ],
)
def test_parameters_added(make_model: Build, sized: str, added: int, printed: str) -> None:
    """Hao et al. 2019, table 3, and where its structure comes from, matrix by matrix."""
    with torch.device("meta"):
        stock, model = make_model(STOCK_SIZES[sized]), make_model(sized)
    width = model.encoder.embed_tokens.embedding_dim
    inner = 4 * width
    by_hand = (
        (2 * width * width + width)  # additive attention: query, key, score
        + 2 * (3 * width * 2 * width + width)  # two GRUs, a bias on the candidate
        + (2 * width * inner + inner + inner * 2 * width + 2 * width)  # feed-forward
        + 2 * 2 * 2 * width  # two layer norms of the recurrence encoder
        + (2 * (width * width + width) + 2 * (2 * width * width + width))  # decoder attention
        + 2 * width  # its layer norm
    )
    assert parameters(model) - parameters(stock) == by_hand == added
    assert f"{added / 1e6:.1f}" == printed


@pytest.mark.parametrize("width, added", [("half", 4_530_432), ("projected", 9_449_472)])
def test_parameters_added_with_another_width(make_model: Build, width: str, added: int) -> None:
    with torch.device("meta"):
        stock = make_model("transformer")
        model = make_model("transformer_biarn", "--recurrence-width", width)
    counts = [sum(p.numel() for p in m.parameters()) for m in (model, stock)]
    assert counts[0] - counts[1] == added


def test_flags_reach_the_model(make_model: Build) -> None:
    """No option is parsed and ignored: each changes what is built."""
    model = make_model(
        "transformer_biarn", *SMALL, "--recurrence-steps", "3", "--recurrence-layers", "2",
        "--recurrence-fused-layers", "all", "--recurrence-fusion", "gated_sum",
        "--recurrence-gate", "scalar", "--recurrence-positions",
        "--recurrence-attention", "multihead", "--attention-dropout", "0.3", "--dropout", "0.2",
        "--recurrence-cell", "lstm", "--recurrence-lr-scale", "3",
        "--encoder-self-attention", "rsa",
    )  # fmt: skip
    encoder = model.encoder.recurrence_encoder
    assert len(encoder.layers) == 2 and model.encoder.recurrence_positions
    assert encoder.layers[0].recurrence.steps == 3
    asked = {n: getattr(p, "optim_overrides", None) for n, p in model.named_parameters()}
    faster = {n for n, found in asked.items() if found and "lr_scale" in found["optimizer"]}
    assert {asked[name]["optimizer"]["lr_scale"] for name in faster} == {3.0}
    parts = ("encoder.recurrence_encoder.", *(f"decoder.layers.{i}.fusion." for i in (0, 1)))
    assert faster == {n for n, _ in model.named_parameters() if n.startswith(parts)}
    assert encoder.layers[0].recurrence.w_h.shape == (2, 4 * 16, 16)
    assert encoder.layers[0].recurrence.attention.heads == 2
    assert encoder.layers[0].recurrence.attention.dropout_module.p == 0.3
    assert encoder.layers[0].dropout_module.p == 0.2
    assert [layer.fusion.gate_r.out_features for layer in model.decoder.layers] == [1, 1]


def test_older_recipes_may_name_the_activation_dropout_otherwise(make_model: Build) -> None:
    model = make_model("transformer_biarn", *SMALL, "--relu-dropout", "0.2")
    assert model.decoder.cfg.activation_dropout == 0.2


def test_decoder_sizes_follow_the_encoder_as_in_fairseq(make_model: Build) -> None:
    model = make_model(
        "transformer_biarn", "--encoder-embed-dim", "24", "--encoder-ffn-embed-dim", "40"
    )
    assert model.decoder.embed_dim == 24
    assert model.decoder.layers[0].fc1.out_features == 40


REFUSED: dict[str, list[tuple[str, list[str]]]] = {
    "transformer_biarn": [
        ("--recurrence-steps 0", ["--recurrence-steps 0: expected at least 1, or -1"]),
        ("--recurrence-steps -2", ["--recurrence-steps -2: expected -1 to 10000"]),
        ("--recurrence-layers 0", ["--recurrence-layers 0: expected 1 to 1000"]),
        (
            "--recurrence-width half --encoder-embed-dim 15 --encoder-attention-heads 3 "
            "--decoder-embed-dim 15 --decoder-attention-heads 3",
            ["--recurrence-width half needs a multiple of 2, found --encoder-embed-dim 15"],
        ),
        (
            "--recurrence-width half --recurrence-attention multihead --encoder-embed-dim 12 "
            "--encoder-attention-heads 4",
            ["--recurrence-width half needs a multiple of 8, twice the heads, found", "dim 12"],
        ),
        ("--recurrence-fused-layers 3", ["-layers 3: the decoder has 2 layers", "from 1 to 2"]),
        ("--recurrence-fused-layers 0", ["choose top, all or a number from 1 to 2"]),
        ("--recurrence-fused-layers upper", ["choose top, all or a number from 1 to 2"]),
        (
            "--recurrence birnn --recurrence-steps 4",
            ["--recurrence-steps 4 has no effect: it needs --recurrence biarn"],
        ),
        (
            "--recurrence-gate scalar",
            ["--recurrence-gate scalar has no effect: it needs --recurrence-fusion gated_sum"],
        ),
        ("--no-cross-attention", ["cross-attention, but --no-cross-attention leaves it out"]),
        ("--cross-self-attention", ["but --cross-self-attention reads the source in the self-att"]),
        (
            "--recurrence-coverage --recurrence-attention multihead",
            ["--recurrence-coverage True has no effect with --recurrence-attention multihead"],
        ),
        (
            "--quant-noise-scalar 0.5 --recurrence birnn",
            ["--quant-noise-scalar cannot quantize torch's RNN of --recurrence birnn"],
        ),
        (
            "--quant-noise-scalar 0.5 --recurrence none --cross-attention xl --segment-size 4 "
            "--xl-memory rnn",
            ["--quant-noise-scalar cannot quantize torch's RNN of --xl-memory rnn"],
        ),
        (
            "--recurrence-coverage --recurrence-steps 1",
            ["--recurrence-coverage has no effect with --recurrence-steps 1"],
        ),
        (
            "--recurrence-fusion replace --recurrence-fused-layers all",
            ["in all decoder layers: nothing reads the Transformer encoder", "-input encoder"],
        ),
        (
            "--recurrence-fusion replace --recurrence-input encoder --recurrence-fused-layers all "
            "--cross-attention srformer",
            ["in all decoder layers cannot be combined with --cross-attention srformer"],
        ),
        (
            "--recurrence-fusion replace --recurrence-input encoder --recurrence-fused-layers all "
            "--cross-attention-mixture rsa",
            ["in all decoder layers cannot be combined with --cross-attention-mixture"],
        ),
        (
            "--recurrence-fusion replace --recurrence-input encoder --recurrence-fused-layers all "
            "--cross-attention-fused",
            ["in all decoder layers cannot be combined with --cross-attention-fused"],
        ),
        (
            "--recurrence-fusion replace --decoder-layers-to-keep 1",
            ["in all decoder layers: nothing reads the Transformer encoder"],
        ),
        (
            "--recurrence-fusion replace --recurrence-fusion-init closed",
            ["-init closed has no effect: it needs --recurrence-fusion stack or gated_sum"],
        ),
        (
            "--recurrence-positions --recurrence-input encoder",
            ["--recurrence-positions True has no effect with --recurrence-input encoder"],
        ),
        (
            "--recurrence-positions --no-token-positional-embeddings",
            ["--recurrence-positions needs", "--no-token-positional-embeddings removes"],
        ),
        ("--encoder-attention-heads 3", ["--encoder-embed-dim 16", "heads 3"]),
        (
            "--recurrence-steps 0 --recurrence-fused-layers 7 --recurrence-gate scalar",
            ["--recurrence-steps 0", "--recurrence-fused-layers 7", "--recurrence-gate scalar"],
        ),
        ("--t5-gated", ["--t5-gated True has no effect with --host transformer", "--host t5"]),
        ("--host t5", ["needs --encoder-normalize-before", "--arch t5_small"]),
        (
            "--recurrence none --recurrence-layers 2",
            ["--recurrence-layers 2 has no effect: it needs --recurrence birnn or biarn"],
        ),
        (
            "--recurrence none --recurrence-fusion multicolumn",
            ["--recurrence-fusion multicolumn has no effect with --recurrence none"],
        ),
        (
            "--segment-size 4",
            ["--segment-size 4 has no effect: it needs --cross-attention srformer or segmented"],
        ),
        (
            "--cross-attention xl --srformer-learned-mix",
            ["--srformer-learned-mix True has no effect: it needs --cross-attention srformer"],
        ),
    ],
    "srformer": [
        ("--segment-size 0", ["--segment-size 0: expected 1 to 65536"]),
        (
            "--target-ratio 0.5",
            ["--target-ratio 0.5 has no effect with --target-length-mode fixed", "mode ratio"],
        ),
        (
            "--target-length-mode ratio --target-length 9",
            ["--target-length 9 has no effect with --target-length-mode ratio"],
        ),
        ("--srformer-threshold-init 0", ["--srformer-threshold-init 0.0: expected 1e-06 to"]),
        ("--srformer-threshold-init nan", ["--srformer-threshold-init nan: expected 1e-06 to"]),
        (
            "--srformer-no-neuron --srformer-form stored",
            ["--srformer-form stored has no effect with --srformer-no-neuron True"],
        ),
        (
            "--srformer-form recomputed --srformer-clamp 2",
            ["--srformer-form recomputed does not support --srformer-clamp 2.0; use stored"],
        ),
        (
            "--srformer-learned-mix --srformer-no-segmented-term",
            ["--srformer-learned-mix True has no effect with --srformer-no-segmented-term True"],
        ),
        ("--no-cross-attention", ["--no-cross-attention cannot be combined"]),
    ],
    "rsa_transformer": [
        (
            "--cross-attention-mixture rsa --cross-attention segmented",
            [
                "--cross-attention-mixture rsa cannot be mixed with --cross-attention segmented; "
                "choose --cross-attention dot"
            ],
        ),
        (
            "--cross-attention-mixture rsa --no-cross-attention",
            ["--no-cross-attention cannot be combined with --cross-attention-mixture rsa"],
        ),
        (
            "--decoder-self-attention prob_sparse",
            [
                "--decoder-self-attention prob_sparse: this map reads later positions",
                "choose another map",
            ],
        ),
        (
            "--encoder-self-attention relative --encoder-self-attention-mixture rsa "
            "--rsa-form mixed",
            ["--rsa-form mixed needs a mixed map, which --encoder-self-attention relative"],
        ),
        (
            "--encoder-self-attention prob_sparse --encoder-self-attention-mixture rsa "
            "--prob-sparse-mixed-rows all --rsa-form mixed --rsa-dropout mixed",
            [
                "--rsa-form mixed needs a mixed map, which --prob-sparse-mixed-rows all does not",
                "--rsa-dropout mixed needs a mixed map, which --prob-sparse-mixed-rows all does",
            ],
        ),
        (
            "--encoder-self-attention full_matrix --decoder-self-attention full_matrix "
            "--rsa-dropout mixed",
            ["--rsa-dropout mixed has no effect"],
        ),
        (
            "--prob-sparse-factor 3",
            ["--prob-sparse-factor 3 has no effect: it needs --encoder-self-attention prob_sparse"],
        ),
        (
            "--encoder-self-attention prob_sparse --prob-sparse-mixed-rows all "
            "--decoder-self-attention rsa",
            ["--prob-sparse-mixed-rows all has no effect: it needs --encoder-self-attention-mixt"],
        ),
        ("--rsa-heads 1,2,3", ["--rsa-heads 1,2,3: six numbers"]),
        ("--rsa-heads a,b", ["--rsa-heads a,b: expected whole numbers"]),
        ("--rsa-heads 3,0,0,0,0,0", ["3 heads, but the layer has 2"]),
        ("--rsa-heads 0,0,0,0,0,0", ["choose 1 to 2"]),
        (
            "--rsa-heads 0,0,0,1,1,0 --rsa-dilations 2,3,4",
            ["--rsa-dilations 2,3,4: 3 numbers for 2 dilated heads"],
        ),
        ("--rsa-heads 1,0,0,0,0,0 --rsa-dilations 2", ["1 numbers for 0 dilated heads"]),
        ("--rsa-heads 1,0,0,1,0,0 --rsa-dilations 0", ["a dilation is at least 1"]),
        ("--rsa-max-power -1", ["--rsa-max-power -1: expected 0 to 2147483647;"]),
        ("--rsa-eta-init 2,1", ["--rsa-eta-init 2,1", "above the second"]),
        ("--rsa-nu-init 2", ["--rsa-nu-init 2: expected two numbers"]),
        (
            "--rsa-nu-init 3,4 --rsa-theta-init 1.0 --rsa-untie-conjugates",
            [
                "--rsa-nu-init 3,4 has no effect: the default of --rsa-heads has no cosine or sine "
                "heads; leave it out",
                "--rsa-theta-init 1.0 has no effect: the default of --rsa-heads has no cosine or",
                "--rsa-untie-conjugates True has no effect: the default of --rsa-heads has no",
            ],
        ),
        (
            "--rsa-heads 0,1,1,0,0,0 --rsa-eta-init 2,3",
            ["--rsa-eta-init 2,3 has no effect: --rsa-heads 0,1,1,0,0,0 has no regular heads"],
        ),
        (
            "--rsa-heads 0,0,0,2,0,0 --rsa-dilations 2 --rsa-nu-init 3,4",
            ["--rsa-nu-init 3,4 has no effect: --rsa-heads 0,0,0,2,0,0 has no cosine or sine"],
        ),
        (
            "--rsa-heads 0,2,0,0,0,0 --rsa-untie-conjugates",
            ["--rsa-untie-conjugates True has no effect: --rsa-heads 0,2,0,0,0,0 has no cosine"],
        ),
        (
            "--rsa-heads 0,1,0,0,0,1 --rsa-dilations 2 --rsa-untie-conjugates",
            ["--rsa-untie-conjugates True has no effect: --rsa-heads 0,1,0,0,0,1 has no cosine"],
        ),
        (
            "--no-cross-attention --cross-attention-fused",
            ["--cross-attention-fused True has no effect: --no-cross-attention leaves out"],
        ),
        ("--rsa-gate-init open", ["--rsa-gate-init open: expected a number or random"]),
        (
            "--relative-clip 4",
            [
                "--relative-clip 4 has no effect: it needs --encoder-self-attention relative, or "
                "--decoder-self-attention relative"
            ],
        ),
        (
            "--encoder-self-attention toeplitz --learned-matrix-length 0",
            ["--learned-matrix-length 0: expected 1 to"],
        ),
        (
            "--encoder-self-attention full_matrix --rsa-form chunked",
            ["--rsa-form chunked: FullMatrix only has the form dense"],
        ),
        ("--rsa-form chunked --rsa-normalize", ["--rsa-form chunked has no rows"]),
        (
            "--rsa-form dense --rsa-dropout mixed",
            ["--rsa-dropout mixed drops entries of a mixed map"],
        ),
        ("--cross-self-attention", ["--cross-self-attention joins the self-attention"]),
        (
            "--encoder-self-attention-mixture toeplitz",
            [
                "--encoder-self-attention rsa and --encoder-self-attention-mixture "
                "toeplitz name two "
                "mixtures; leave one out"
            ],
        ),
        (
            "--decoder-self-attention relative --decoder-self-attention-mixture rsa "
            "--rsa-form mixed",
            [
                "--rsa-form mixed needs a mixed map, which --decoder-self-attention "
                "relative does not "
                "have; use dense"
            ],
        ),
        (
            "--decoder-self-attention relative --decoder-self-attention-mixture rsa "
            "--rsa-dropout mixed",
            ["--rsa-dropout mixed needs a mixed map, which --decoder-self-attention relative"],
        ),
        (
            "--rsa-heads 1,2 --rsa-max-power -2 --relative-clip 0",
            ["--rsa-heads 1,2", "--rsa-max-power -2", "--relative-clip 0"],
        ),
    ],
    "transformer_disan": [
        (
            "--decoder-self-attention directional",
            ["--decoder-self-attention directional: this map is for the encoder only"],
        ),
        ("--encoder-attention-heads 1", ["--encoder-attention-heads 1", "even number of heads"]),
    ],
    "transformer_rnn_multicolumn": [
        ("--recurrence biarn", ["--recurrence-fusion multicolumn concatenates the outputs of two"]),
        (
            "--recurrence-fused-layers all",
            [
                "--recurrence-fused-layers all has no effect: it needs "
                "--recurrence-fusion stack or "
                "gated_sum or replace"
            ],
        ),
        (
            "--recurrence-gate scalar",
            ["--recurrence-gate scalar has no effect: it needs --recurrence-fusion gated_sum"],
        ),
    ],
    "transformer_relpos": [
        (
            "--recurrence birnn --recurrence-positions",
            ["--recurrence-positions needs", "--no-token-positional-embeddings removes"],
        ),
        ("--relative-clip 0", ["--relative-clip 0: expected 1 to"]),
        ("--cross-self-attention", ["--decoder-self-attention relative needs one of its own"]),
    ],
    "t5_small": [
        ("--t5-relative-buckets 7", ["--t5-relative-buckets 7: expected an even number"]),
        ("--t5-relative-buckets 2", ["--t5-relative-buckets 2: expected 4 to 1024"]),
        (
            "--t5-relative-max-distance 16",
            ["--t5-relative-max-distance 16: expected more than half"],
        ),
        ("--t5-head-dim -1", ["--t5-head-dim -1: expected 0 to"]),
        ("--layernorm-embedding", ["--layernorm-embedding asks"]),
        ("--encoder-learned-pos", ["--encoder-learned-pos asks"]),
        ("--cross-self-attention", ["--cross-self-attention asks"]),
        ("--adaptive-softmax-cutoff 4,8", ["--adaptive-softmax-cutoff asks"]),
        ("--decoder-output-dim 8", ["--decoder-output-dim 8: with --host t5 expected", "dim 16"]),
        (
            "--recurrence biarn --recurrence-positions",
            ["--recurrence-positions needs position embeddings, which --host t5"],
        ),
        (
            "--recurrence biarn --recurrence-attention multihead --t5-head-dim 4 "
            "--encoder-attention-heads 3",
            ["--encoder-embed-dim 16 cannot be split evenly among --encoder-attention-heads 3"],
        ),
        (
            "--recurrence biarn --t5-head-dim 4 --decoder-attention-heads 3",
            ["--decoder-embed-dim 16 cannot be split evenly among --decoder-attention-heads 3"],
        ),
        (
            "--encoder-self-attention directional --encoder-attention-heads 1",
            ["--encoder-attention-heads 1", "even number of heads"],
        ),
    ],
    "rsa_transformer_lm": [
        (
            "--decoder-self-attention directional",
            ["--decoder-self-attention directional: this map is for the encoder only"],
        ),
        ("--rsa-heads 1,2", ["--rsa-heads 1,2: six numbers"]),
        (
            "--relative-clip 3",
            ["--relative-clip 3 has no effect: it needs --decoder-self-attention relative"],
        ),
        (
            "--decoder-self-attention-mixture full_matrix",
            ["--decoder-self-attention rsa and --decoder-self-attention-mixture full_matrix name"],
        ),
    ],
}
"""By preset: flags that cannot be used together, and what the message says of them."""


@pytest.mark.parametrize(
    "arch, flags, said",
    [
        pytest.param(arch, flags, said, id=f"{arch} {flags}")
        for arch, cases in REFUSED.items()
        for flags, said in cases
    ],
)
def test_what_cannot_be_used_is_refused(
    make_model: Build, arch: str, flags: str, said: list[str]
) -> None:
    sizes = SMALL_LM if arch in LANGUAGE_MODELS else SMALL
    with pytest.raises(ConfigError) as caught:
        make_model(arch, *sizes, *flags.split())
    for words in said:
        assert words in str(caught.value)


@pytest.mark.parametrize("arch, flags", [
    # The preset's eta, which is of regular heads, is not the user's.
    ("rsa_transformer", "--rsa-heads 0,1,1,0,0,0 --rsa-untie-conjugates --rsa-nu-init 3,4"),
    ("rsa_transformer", "--rsa-heads 0,0,0,2,0,0 --rsa-dilations 2 --rsa-eta-init 2,3"),
    ("rsa_transformer", "--rsa-heads 0,0,0,0,1,1 --rsa-dilations 2 --rsa-untie-conjugates"),
    ("rsa_transformer", "--rsa-heads 0,0,0,0,0,1 --rsa-dilations 2 --rsa-theta-init 1.0"),
    ("rsa_transformer", "--rsa-heads all,0,0,0,0,0 --rsa-eta-init 2,3"),
    # Of the encoder's RSA.
    ("rsa_transformer", "--decoder-self-attention full_matrix --rsa-dropout mixed"),
    # fairseq has a cross-attention beside the joined one.
    ("srformer", "--cross-attention dot --cross-self-attention --cross-attention-fused"),
])  # fmt: skip
def test_what_acts_is_accepted(make_model: Build, arch: str, flags: str) -> None:
    model = make_model(arch, *SMALL, *flags.split())
    if "fused" in flags:
        assert all(layer.encoder_attn.fused for layer in model.decoder.layers)


@pytest.mark.parametrize("flags", [
    "--rsa-nu-init 3,4 --rsa-untie-conjugates", "--no-cross-attention --cross-attention-fused",
])  # fmt: skip
def test_a_checkpoint_may_have_options_without_effect(make_model: Build, flags: str) -> None:
    """Earlier versions did not refuse them."""
    with loading():
        make_model("rsa_transformer", *SMALL, *flags.split())


def test_an_option_acts_if_one_of_several_parts_reads_it(make_model: Build) -> None:
    class Cyclical(RecurrenceEncodingMatrices):
        @classmethod
        def unread_options(cls, cfg: Any, side: str) -> Iterator[tuple[str, str]]:
            yield from ()

    made = declared(Cyclical)["rsa_nu_init"]
    cfg = Namespace(
        rsa_nu_init="3,4", rsa_heads="", rsa_dilations="", encoder_attention_heads=2,
    )  # fmt: skip
    own = ("encoder", RecurrenceEncodingMatrices)
    assert len(list(without_effect(cfg, "rsa_nu_init", made, [own]))) == 1
    assert not list(without_effect(cfg, "rsa_nu_init", made, [own, ("encoder", Cyclical)]))


@pytest.mark.parametrize(
    "flag, named",
    [
        ("--recurrence", ["biarn", "birnn"]),
        ("--encoder-self-attention", ["directional", "xl", "rsa"]),
        ("--decoder-self-attention-mixture", ["none", "toeplitz"]),
        ("--recurrence-fusion", ["multicolumn"]),
        ("--recurrence-attention", ["additive", "multihead"]),
        ("--cross-attention", ["srformer", "segmented"]),
    ],
)
def test_unknown_parts_are_refused_by_the_parser(
    flag: str, named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    parser = options.get_training_parser("translation")
    with pytest.raises(SystemExit, match="2"):
        options.parse_args_and_arch(parser, ["data", "--arch", "transformer_disan", flag, "lstm"])
    message = capsys.readouterr().err
    assert f"argument {flag}: invalid choice: 'lstm' (choose from" in message
    assert all(words in message for words in named)


def test_unknown_parts_of_a_checkpoint_are_refused(make_model: Build) -> None:
    """A checkpoint, unlike the parser, may name a part that this machine does not have."""
    model = make_model("srformer", *SMALL)
    cfg = Namespace(**{f.name: getattr(model.cfg, f.name) for f in fields(model.config_class)
                       if hasattr(model.cfg, f.name)})  # fmt: skip
    cfg.cross_attention = "mine"
    cfg.encoder_attention_heads = cfg.decoder_attention_heads = 2
    defaults = [RecurrentTransformerModel.config_class(), model.config_class()]
    with pytest.raises(ConfigError, match="--cross-attention mine: choose one of dot, srformer,"):
        check_config(cfg, encoder_decoder_slots(), defaults, loaded=True)


def test_unused_buffers_of_fairseqs_positions_are_left_out(make_model: Build) -> None:
    """fairseq 0.12.2 saves one with its positions, which transformer_relpos does not have."""
    model = make_model("transformer_relpos", *SMALL)
    saved = make_model("transformer", *SMALL).state_dict()
    for side in ("encoder", "decoder"):
        saved[f"{side}.embed_positions._float_tensor"] = torch.zeros(1)
    model.load_state_dict(saved)
    assert torch.equal(model.encoder.embed_tokens.weight, saved["encoder.embed_tokens.weight"])


@pytest.mark.slow_options
def test_stock_checkpoint_starts_every_system(
    make_model: Build, system: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    _, arch, *host = stock_of(system)
    stock = make_model(arch, *SMALL, *host)
    model = make_model(system[1], *SMALL, *system[2:])
    fresh = {k: v.clone() for k, v in model.state_dict().items()}
    saved = {k: v.clone() for k, v in stock.state_dict().items()}
    model.load_state_dict(dict(saved), strict=True)
    for name, value in weights(model.state_dict()).items():
        assert torch.equal(value, saved.get(name, fresh[name])), name
    named = [line for line in caplog.messages if "initialised fresh" in line]
    parts = {line.split(": ")[1].split(" (")[0] for line in named}
    assert parts == {part for slot in part_weights(model).values() for part in slot}
    for slot, part in PLACES.items():
        assert (part in parts) == uses(model, slot), slot


@pytest.mark.parametrize("own", ["relative", "xl"])
@pytest.mark.parametrize("mixture", ["rsa", "toeplitz", "full_matrix"])
def test_a_mixture_starts_from_a_model_with_the_map(
    make_model: Build, own: str, mixture: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Map and mixture are two slots: the map's weights are kept, and the mixture's are fresh."""
    flags = ["--encoder-self-attention", own, "--decoder-self-attention", own]
    saved = make_model("transformer_relpos", *SMALL, *flags).state_dict()
    mixed = [f"--{side}-self-attention-mixture={mixture}" for side in ("encoder", "decoder")]
    model = make_model("transformer_relpos", *SMALL, *flags, *mixed)
    model.load_state_dict({k: v.clone() for k, v in saved.items()}, strict=True)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in saved.items())
    named = [line for line in caplog.messages if "initialised fresh" in line]
    assert named and all(".self_attn.mixture (" in line for line in named)


PLACES = {
    "recurrence": "encoder.recurrence_encoder",
    "encoder": "encoder.layers.0.self_attn.mixture",
    "decoder": "decoder.layers.1.self_attn.mixture",
    "relative": "decoder.layers.0.self_attn.positions",
    "columns": "encoder.columns",
    "cross-attention": "decoder.layers.1.encoder_attn.neuron",
}


def uses(model: nn.Module, slot: str) -> bool:
    """Whether a model's options fill a slot with a part that a stock Transformer lacks."""
    cfg = model.encoder.cfg
    if slot == "recurrence":
        return cfg.recurrence != "none"
    if slot == "columns":
        return cfg.recurrence != "none" and cfg.recurrence_fusion == "multicolumn"
    if slot == "cross-attention":
        return cfg.cross_attention == "srformer" and not cfg.srformer_no_neuron
    if slot == "relative":
        return cfg.decoder_self_attention in {"relative", "xl"}
    return map_and_mixture(cfg, slot)[1] != "none"


@pytest.mark.parametrize("share, untied", [("none", True), ("pairs", False)])
def test_former_names_in_a_checkpoint(
    share: str, untied: bool, corpus: Path, tmp_path: Path, cli: Callable[..., str]
) -> None:
    """Options and weights of former names load through fairseq's own loader."""
    own = ["--rsa-untie-conjugates"] if untied else []
    cli(
        "train", corpus / "bin", "--user-dir", USER_DIR, "--arch", "srformer", *SMALL, *SEGMENTS,
        "--srformer-learned-mix", "--encoder-self-attention", "rsa", "--rsa-heads", "0,1,1,0,0,0",
        *own, *TRAIN, "--max-update", 1, "--disable-validation", "--save-dir", tmp_path,
    )  # fmt: skip
    path = tmp_path / "checkpoint_last.pt"
    state = torch.load(path, weights_only=False)
    cfg = state["cfg"]["model"]
    values = vars(cfg) if isinstance(cfg, Namespace) else cfg
    assert values.pop("rsa_untie_conjugates") is untied
    values["rsa_share"] = share
    assert values.pop("srformer_learned_mix") is True
    values["srformer_sigma"] = True
    before = weights(state["model"])
    state["model"] = {n.replace(".learned_mix.", ".sigma."): w for n, w in before.items()}
    assert "decoder.layers.0.encoder_attn.sigma.logit" in state["model"]
    torch.save(state, path)
    (model,), _ = load_model_ensemble([str(path)])
    loaded = weights(model.state_dict())
    assert loaded.keys() == before.keys()
    assert all(torch.equal(loaded[name], before[name]) for name in before)
    assert model.encoder.cfg.rsa_untie_conjugates is untied
    mixture = model.encoder.layers[0].self_attn.mixture
    assert len(mixture.nu) == (2 if untied else 1)


def test_options_that_a_checkpoint_lacks_are_what_its_version_did() -> None:
    """The latent state once had no norm; what a checkpoint has stays."""
    older: dict[str, Any] = {"latent_every": 2}
    newer, other = {**older, "latent_state_norm": "rms"}, {"decoder_layers": 2}
    for values in (older, newer, other):
        rename_old_options(values)
    assert older["latent_state_norm"] == "none" and newer["latent_state_norm"] == "rms"
    assert other == {"decoder_layers": 2}


def test_half_a_part_is_refused(make_model: Build, preset: str) -> None:
    model = make_model(preset, *SMALL)
    state = dict(model.state_dict())
    marks = ("recurrence_encoder", "mixture.eta", "neuron.leak", "position_bias", "positions.key")
    lost = next((k for k in state if any(mark in k for mark in marks)), None)
    if lost is None:
        assert not part_weights(model)
        pytest.skip("it has no weights of its own")
    del state[lost]
    with pytest.raises(CheckpointError, match=f"lacks {lost}"):
        model.load_state_dict(state)
