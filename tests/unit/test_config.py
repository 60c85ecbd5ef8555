"""The configuration: flags, presets, parameter counts, and refusals."""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import fields

import pytest
import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from torch import nn

from fairseq_recur.errors import CheckpointError, ConfigError
from fairseq_recur.models import PRESETS as DECLARED
from fairseq_recur.models.check import OPTIONS
from fairseq_recur.models.config import LEFT_OUT, RecurrentTransformerConfig
from tests.conftest import PLAIN, PRESETS, SMALL, STRUCTURES, stock_of, structure
from tests.running import weights

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
    others = "t5_small srformer_t5_small srformer_base srformer_bart_base srformer_bart_large"
    assert {p for p in PRESETS if not p.endswith("_tiny")} == {*STOCK_SIZES, *others.split()}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_tested_in_its_structure(make_model: Build, name: str) -> None:
    """With small sizes, a preset makes the same model as the structure that it is based on."""
    (twin,) = (s for s in STRUCTURES if structure(s) == structure(name))
    shapes = [
        {n: p.shape for n, p in make_model(arch, *SMALL).named_parameters()}
        for arch in (name, twin)
    ]
    assert shapes[0] == shapes[1]


def test_every_option_has_help_and_default() -> None:
    for option in fields(RecurrentTransformerConfig):
        if option.name != "_name":
            assert option.metadata.get("help"), option.name
            assert option.default is not None or "Optional" in str(option.type), option.name


def test_every_option_of_the_stock_transformer_is_there() -> None:
    """A recipe for fairseq's Transformer keeps its meaning: the same flags, the same defaults."""
    stock: dict[str, object] = {}
    for f in fields(TransformerConfig):
        if isinstance(f.type, type) and issubclass(f.type, FairseqDataclass):
            stock.update({f"{f.name}_{g.name}": g.default for g in fields(f.type)})
        else:
            stock[f.name] = f.default
    names = {n for n in stock if not n.endswith("_name")} - LEFT_OUT
    assert names <= OPTIONS.keys()
    for name in names:
        default = OPTIONS[name].default
        assert default == stock[name] or str(default).startswith("${"), name


@pytest.mark.parametrize("sized", STOCK_SIZES)
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


def test_flags_reach_the_model(make_model: Build) -> None:
    """No option is parsed and ignored: each changes what is built."""
    model = make_model(
        "transformer_biarn", *SMALL, "--recurrence-steps", "3", "--recurrence-layers", "2",
        "--recurrence-fused-layers", "all", "--recurrence-fusion", "gated_sum",
        "--recurrence-gate", "scalar", "--recurrence-positions",
        "--recurrence-attention", "multihead", "--attention-dropout", "0.3", "--dropout", "0.2",
    )  # fmt: skip
    encoder = model.encoder.recurrence_encoder
    assert len(encoder.layers) == 2 and model.encoder.recurrence_positions
    assert encoder.layers[0].recurrence.steps == 3
    assert encoder.layers[0].recurrence.attention.heads == 2
    assert encoder.layers[0].recurrence.attention.dropout == 0.3
    assert encoder.layers[0].dropout_module.p == 0.2
    assert [layer.fusion.gate_r.out_features for layer in model.decoder.layers] == [1, 1]


def test_decoder_sizes_follow_the_encoder_as_in_fairseq(make_model: Build) -> None:
    model = make_model(
        "transformer_biarn", "--encoder-embed-dim", "24", "--encoder-ffn-embed-dim", "40"
    )
    assert model.decoder.embed_dim == 24
    assert model.decoder.layers[0].fc1.out_features == 40


RSA_CONFLICTS = {
    "counts": (["--rsa-heads", "1,2,3"], ["--rsa-heads 1,2,3: six numbers"]),
    "no numbers": (["--rsa-heads", "a,b"], ["--rsa-heads a,b: expected whole numbers"]),
    "too many": (["--rsa-heads", "3,0,0,0,0,0"], ["3 heads, but the layer has 2"]),
    "none": (["--rsa-heads", "0,0,0,0,0,0"], ["choose 1 to 2"]),
    "dilations": (
        ["--rsa-heads", "0,0,0,1,1,0", "--rsa-dilations", "2"],
        ["--rsa-dilations 2: 1 numbers for 2 dilated heads"],
    ),
    "dilation of zero": (
        ["--rsa-heads", "1,0,0,1,0,0", "--rsa-dilations", "0"],
        ["a dilation is at least 1"],
    ),
    "power": (["--rsa-max-power", "-1"], ["--rsa-max-power -1"]),
    "range": (["--rsa-eta-init", "2,1"], ["--rsa-eta-init 2,1", "above the second"]),
    "no range": (["--rsa-nu-init", "2"], ["--rsa-nu-init 2", "two numbers"]),
    "gate": (["--rsa-gate-init", "open"], ["--rsa-gate-init open: expected a number, or random"]),
    "unread": (["--relative-clip", "4"], ["--relative-clip 4 has no effect", "relative"]),
    "length": (
        ["--encoder-self-attention", "toeplitz", "--learned-matrix-length", "0"],
        ["--learned-matrix-length 0: at least 1"],
    ),
    "full chunked": (
        ["--encoder-self-attention", "full_matrix", "--rsa-form", "chunked"],
        ["full_matrix has the form dense alone"],
    ),
    "chunked rows": (
        ["--rsa-form", "chunked", "--rsa-normalize"],
        ["--rsa-form chunked has no rows"],
    ),
    "dropped map": (
        ["--rsa-form", "dense", "--rsa-dropout", "mixed"],
        ["--rsa-dropout mixed needs a mixed map"],
    ),
    "cross+self": (["--cross-self-attention"], ["--cross-self-attention"]),
    "all at once": (
        ["--rsa-heads", "1,2", "--rsa-max-power", "-2", "--relative-clip", "0"],
        ["--rsa-heads 1,2", "--rsa-max-power -2", "--relative-clip 0"],
    ),
}


@pytest.mark.parametrize("flags, said", RSA_CONFLICTS.values(), ids=RSA_CONFLICTS.keys())
def test_conflicts_of_self_attention_are_refused(
    make_model: Build, flags: list[str], said: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_model("rsa_transformer", *SMALL, *flags)
    for words in said:
        assert words in str(caught.value)


CONFLICTS = {
    "zero steps": (["--recurrence-steps", "0"], ["--recurrence-steps 0", "at least 1"]),
    "zero layers": (["--recurrence-layers", "0"], ["--recurrence-layers 0"]),
    "too many fused": (["--recurrence-fused-layers", "3"], ["decoder has 2 layers"]),
    "no fused": (["--recurrence-fused-layers", "0"], ["choose 1 to 2"]),
    "fused nonsense": (["--recurrence-fused-layers", "upper"], ["top, all or a number"]),
    "steps without arn": (
        ["--recurrence", "birnn", "--recurrence-steps", "4"],
        ["--recurrence-steps 4 has no effect", "birnn"],
    ),
    "gate without gated sum": (["--recurrence-gate", "scalar"], ["gated_sum"]),
    "layers without recurrence": (
        ["--recurrence", "none", "--recurrence-layers", "2"],
        ["--recurrence-layers 2 has no effect"],
    ),
    "nothing to fuse": (["--no-cross-attention"], ["--no-cross-attention"]),
    "cross+self": (["--cross-self-attention"], ["--cross-self-attention"]),
    "positions": (
        ["--recurrence-positions", "--no-token-positional-embeddings"],
        ["--recurrence-positions needs"],
    ),
    "heads": (["--encoder-attention-heads", "3"], ["--encoder-embed-dim 16", "3"]),
    "dropout": (["--dropout", "1.5"], ["--dropout 1.5"]),
    "all at once": (
        [
            "--recurrence-steps",
            "0",
            "--recurrence-fused-layers",
            "7",
            "--recurrence-gate",
            "scalar",
        ],
        ["--recurrence-steps 0", "--recurrence-fused-layers 7", "--recurrence-gate scalar"],
    ),
}


@pytest.mark.parametrize("flags, said", CONFLICTS.values(), ids=CONFLICTS.keys())
def test_conflicts_are_refused(make_model: Build, flags: list[str], said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        make_model("transformer_biarn", *SMALL, *flags)
    for words in said:
        assert words in str(caught.value)


def test_differing_dictionaries_cannot_be_shared(dictionary: Dictionary) -> None:
    other = Dictionary()
    other.add_symbol("x")
    parser = options.get_training_parser("translation")
    args = options.parse_args_and_arch(
        parser, ["data", "--arch", "transformer_biarn", *SMALL, "--share-all-embeddings"]
    )
    task = Namespace(source_dictionary=dictionary, target_dictionary=other)
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.models import build_model

    with pytest.raises(ConfigError, match="64 and 5 types.*--joined-dictionary"):
        build_model(convert_namespace_to_omegaconf(args).model, task)


def test_unknown_part_is_refused_by_the_parser(capsys: pytest.CaptureFixture[str]) -> None:
    parser = options.get_training_parser("translation")
    with pytest.raises(SystemExit):
        options.parse_args_and_arch(
            parser, ["data", "--arch", "transformer_biarn", "--recurrence", "lstm"]
        )
    message = capsys.readouterr().err
    assert "lstm" in message and "biarn" in message and "birnn" in message


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
    assert parts == {part for slot in model.part_weights().values() for part in slot}
    for slot, part in PLACES.items():
        assert (part in parts) == uses(model, slot), slot


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
        return cfg.decoder_self_attention == "relative"
    return getattr(cfg, f"{slot}_self_attention") in {"rsa", "toeplitz", "full_matrix"}


def test_half_a_part_is_refused(make_model: Build, preset: str) -> None:
    model = make_model(preset, *SMALL)
    state = dict(model.state_dict())
    marks = ("recurrence_encoder", "mixture.eta", "neuron.leak", "position_bias", "positions.key")
    lost = next((k for k in state if any(mark in k for mark in marks)), None)
    if lost is None:
        assert not model.part_weights()
        pytest.skip("it has no weights of its own")
    del state[lost]
    with pytest.raises(CheckpointError, match=f"lacks {lost}"):
        model.load_state_dict(state)
