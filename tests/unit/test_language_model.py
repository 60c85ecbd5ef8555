"""Properties of every decoder-only model with every self-attention part."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fairseq_recur.errors import CheckpointError, ConfigError
from fairseq_recur.modules.mixture import Mixture
from tests.conftest import DECODER_VARIANTS, LANGUAGE_MODELS
from tests.unit.test_model_properties import PAD, sentences

Build = Callable[..., nn.Module]
pytestmark = pytest.mark.usefixtures("fairseq_in_the_models_precision")
SMALL_LM: list[str] = (
    "--decoder-embed-dim 16 --decoder-input-dim 16 --decoder-output-dim 16 --decoder-layers 2 "
    "--decoder-ffn-embed-dim 24 --decoder-attention-heads 2 --dropout 0 --attention-dropout 0"
).split()
MODELS = {
    f"{name}-{variant}": [name, *flags]
    for name in LANGUAGE_MODELS
    for variant, flags in {"default": [], **DECODER_VARIANTS}.items()
}


@pytest.fixture(params=MODELS.values(), ids=MODELS.keys())
def model(request: pytest.FixtureRequest, make_model: Build) -> nn.Module:
    """A small float64 model in evaluation mode, in which no parameter is zero."""
    name, *flags = request.param
    built = make_model(name, *SMALL_LM, *flags).double().eval()
    for parameter in built.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.2)
    return built


def test_there_is_a_language_model() -> None:
    assert "rsa_transformer_lm" in LANGUAGE_MODELS


def test_a_text_by_itself_equals_the_text_in_a_padded_batch(model: nn.Module) -> None:
    lengths = [9, 1, 5, 2]
    batch = sentences(lengths, "right")
    logits, _ = model(batch)
    for row, tokens, length in zip(logits, batch, lengths):
        alone, _ = model(tokens[None, :length])
        torch.testing.assert_close(row[:length], alone[0], rtol=1e-9, atol=1e-11)


def test_no_position_sees_the_future(model: nn.Module) -> None:
    batch = sentences([8, 8], "right")
    logits, _ = model(batch)
    changed = batch.clone()
    changed[:, 5:] = 7
    other, _ = model(changed)
    assert torch.equal(other[:, :5], logits[:, :5])
    assert (other[:, 5:] - logits[:, 5:]).abs().max() > 1e-3


def test_incremental_decoding_equals_teacher_forcing(model: nn.Module) -> None:
    """Step by step, with rows reordered, duplicated and dropped."""
    prefix = torch.randint(4, 60, (6, 1))
    state: dict[str, dict[str, Tensor]] = {}
    orders = [[2, 0, 0, 1, 5, 4], [5, 4, 3, 2, 1, 0], [0, 1, 1], [2, 0, 1], [1], [0], [0]]
    for order in orders:
        logits, _ = model.decoder(prefix, incremental_state=state)
        forced, _ = model(prefix)
        torch.testing.assert_close(logits[:, -1], forced[:, -1], rtol=1e-9, atol=1e-11)
        rows = torch.tensor(order)
        model.decoder.reorder_incremental_state_scripting(state, rows)
        words = torch.randint(4, 60, (len(rows), 1))
        prefix = torch.cat([prefix[rows], words], dim=1)


def test_every_parameter_has_a_gradient(model: nn.Module) -> None:
    logits, _ = model(sentences([6, 4, 5], "right"))
    (logits * torch.randn_like(logits)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    without = [n for n, p in model.named_parameters() if not p.grad.any()]
    assert [n for n in without if not n.endswith("k_proj.bias")] == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_half_precision_stays_finite_and_near(model: nn.Module, dtype: torch.dtype) -> None:
    batch = sentences([200, 4, 50], "right")
    exact, _ = model(batch)
    logits, _ = model.to(dtype)(batch)
    assert logits.dtype == dtype and torch.isfinite(logits).all()
    real = batch.ne(PAD)
    assert (logits.double() - exact)[real].abs().max() < min(
        0.1, 16 * torch.finfo(dtype).eps
    ) * exact.std()
    logits.float().logsumexp(-1).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("form", ["dense", "chunked"])
@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_closed_gate_is_the_stock_model(make_model: Build, name: str, form: str) -> None:
    """Bit for bit, for whole sentences and step by step; the stock checkpoint loads."""
    stock = make_model("transformer_lm", *SMALL_LM).eval()
    model = make_model(name, *SMALL_LM, "--rsa-form", form).eval()
    model.load_state_dict(stock.state_dict(), strict=True)
    for module in model.modules():
        if isinstance(module, Mixture):
            nn.init.constant_(module.mu, float("-inf"))
    batch = sentences([7, 4], "right")
    with torch.no_grad():
        assert torch.equal(model(batch)[0], stock(batch)[0])
        states = {}, {}
        for step in range(1, 8):
            ours, theirs = (
                m.decoder(batch[:, :step], incremental_state=s)[0]
                for m, s in zip((model, stock), states)
            )
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_dot_is_the_stock_model(make_model: Build, name: str) -> None:
    stock = make_model("transformer_lm", *SMALL_LM)
    model = make_model(name, *SMALL_LM, "--decoder-self-attention", "dot")
    shapes = {n: p.shape for n, p in stock.named_parameters()}
    assert {n: p.shape for n, p in model.named_parameters()} == shapes


def test_parameters_added(make_model: Build) -> None:
    """A layer with eight regular heads adds nine parameters."""
    with torch.device("meta"):
        sizes = [
            sum(p.numel() for p in make_model(name).parameters())
            for name in ("transformer_lm", "rsa_transformer_lm")
        ]
    assert sizes[1] - sizes[0] == 6 * 9


def test_layer_drop_leaves_no_stock_layer(make_model: Build) -> None:
    """Layers that training drops at random keep their parts too."""
    model = make_model("rsa_transformer_lm", *SMALL_LM, "--decoder-layerdrop", "0.9")
    assert len([m for m in model.modules() if isinstance(m, Mixture)]) == 2


def test_half_a_part_is_refused(make_model: Build) -> None:
    model = make_model("rsa_transformer_lm", *SMALL_LM)
    weights = model.state_dict()
    del weights["decoder.layers.0.self_attn.mixture.eta"]
    with pytest.raises(CheckpointError, match="lacks decoder.layers.0.self_attn.mixture.eta"):
        model.load_state_dict(weights)


def test_tied_adaptive_weights_need_an_adaptive_input(make_model: Build) -> None:
    flags = ["--adaptive-softmax-cutoff", "20,40", "--tie-adaptive-weights"]
    with pytest.raises(ConfigError, match="--tie-adaptive-weights needs --adaptive-input"):
        make_model("rsa_transformer_lm", *SMALL_LM, *flags)


CHARACTERS = [
    "--character-embeddings", "--character-filters", "[(1, 8), (2, 8)]",
    "--character-embedding-dim", "6",
]  # fmt: skip


@pytest.mark.parametrize("name, flags", [
    ("rsa_transformer_lm", ""),
    ("xl_lm_tiny", ""),
    ("xl_lm_wikitext103", "--decoder-head-dim 8 --adaptive-softmax-cutoff 20,40"),
])  # fmt: skip
def test_character_embeddings(make_model: Build, name: str, flags: str) -> None:
    """The output has a matrix of its own, also where the preset shares one."""
    model = make_model(name, *SMALL_LM, *CHARACTERS, *flags.split())
    out, _ = model(batch := sentences([7, 4], "right"))
    if model.decoder.adaptive_softmax is not None:
        bands, _ = model.decoder.adaptive_softmax(out, batch.flatten())
        out = torch.cat([scores.flatten() for scores in bands])
    out.square().sum().backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None]
    assert model.decoder.embed_tokens.char_embeddings.weight.grad.any()


@pytest.mark.parametrize("flags", [
    ["--share-decoder-input-output-embed"],
    [*"--adaptive-input --tie-adaptive-weights --adaptive-input-cutoff 20,40".split(),
     "--adaptive-softmax-cutoff", "20,40"],
])  # fmt: skip
def test_character_embeddings_share_nothing(make_model: Build, flags: list[str]) -> None:
    shared = next(flag for flag in flags if flag.startswith(("--share", "--tie")))
    with pytest.raises(ConfigError, match=f"--character-embeddings with {shared}: .*leave one out"):
        make_model("rsa_transformer_lm", *SMALL_LM, *CHARACTERS, *flags)


BANDS = "--adaptive-input --adaptive-input-cutoff 20,40 --adaptive-softmax-cutoff 20,40".split()


@pytest.mark.parametrize("name", ["transformer_lm", "rsa_transformer_lm", "xl_lm_tiny"])
@pytest.mark.parametrize("flags", [CHARACTERS, BANDS], ids=["characters", "bands"])
def test_embeddings_have_the_weights_precision_in_mixed_precision(
    make_model: Build, name: str, flags: list[str]
) -> None:
    """fairseq's modules write bfloat16 into float32 there, and fail."""
    model = make_model(name, *SMALL_LM, *flags).float().train()
    batch = sentences([7, 4], "right")
    expected = model.decoder.embed_tokens(batch)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model.decoder.embed_tokens(batch), expected)
        out, _ = model(batch)
    out.float().square().sum().backward()
    assert expected.dtype == torch.float32
    assert all(p.grad is not None for p in model.decoder.embed_tokens.parameters())
