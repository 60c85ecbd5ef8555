"""T5 as a host: positions, the start of a sentence, and refused options.

That its arithmetic is T5's is shown in tests/integration/test_convert_logits.py, where
models of another library are converted.
"""

import functools
from argparse import Namespace
from collections.abc import Callable

import pytest
import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import build_model
from torch import Tensor, nn

from fairseq_recur.errors import CheckpointError
from fairseq_recur.modules.t5 import RelativePositionBias
from fairseq_recur.ops import naive
from fairseq_recur.ops.t5_buckets import bucket_starts, relative_buckets
from tests.conftest import SMALL

Build = Callable[..., nn.Module]
PAD, EOS = 1, 2
STILL = "--dropout 0 --attention-dropout 0 --activation-dropout 0".split()


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("buckets, furthest", [(32, 128), (32, 100), (4, 3), (6, 5), (10, 999)])
def test_buckets_are_the_definition(buckets: int, furthest: int, bidirectional: bool) -> None:
    lags = torch.arange(-furthest - 40, furthest + 41)
    starts = torch.tensor(bucket_starts(buckets // 2 if bidirectional else buckets, furthest))
    found = relative_buckets(lags, starts, bidirectional).tolist()
    slow = functools.partial(
        naive.relative_bucket, buckets=buckets, max_distance=furthest, bidirectional=bidirectional
    )
    assert found == [slow(lag) for lag in lags.tolist()]
    assert 0 in found and max(found) == buckets - 1


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("queries, keys", [(5, 5), (1, 7), (3, 8), (1, 1)])
def test_bias_belongs_to_the_last_queries(
    make_model: Build, side: str, queries: int, keys: int
) -> None:
    stack = getattr(make_model("t5_small", *SMALL, "--t5-relative-buckets", "6",
                               "--t5-relative-max-distance", "5"), side)  # fmt: skip
    bias: RelativePositionBias = stack.position_bias
    found = bias(queries, keys)
    assert found.shape == (2, queries, keys)
    for i in range(queries):
        for j in range(keys):
            bucket = naive.relative_bucket(j - (keys - queries + i), 6, 5, side == "encoder")
            assert torch.equal(found[:, i, j], bias.weight[bucket])


def logits(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    return model(source, source.ne(PAD).sum(1), target)[0]


def test_norms_have_the_epsilon_of_t5(make_model: Build) -> None:
    for gated in ([], ["--t5-gated"]):
        model = make_model("t5_small", *SMALL, *gated)
        norms = {n: m.eps for n, m in model.named_modules() if isinstance(m, nn.RMSNorm)}
        assert len(norms) == 2 * 2 + 2 * 3 + 2 and set(norms.values()) == {1e-6}


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_a_stack_drops_its_embeddings_and_its_output(make_model: Build, side: str) -> None:
    model = make_model("t5_small", *SMALL).train()
    dropped: list[Tensor] = []
    model.get_submodule(f"{side}.dropout_module").register_forward_hook(
        lambda module, args, out: dropped.append(out)
    )
    source, target = torch.tensor([[5, 6, EOS]]), torch.tensor([[EOS, 7, 8]])
    encoded = model.encoder(source, torch.tensor([3]))
    out = encoded["encoder_out"][0]
    if side == "decoder":
        out = model.decoder(target, encoded, features_only=True)[0]
    assert len(dropped) == 2 and dropped[1] is out


def test_sentences_start_with_the_row_of_the_padding(make_model: Build) -> None:
    """The decoder's first input is that row, which is learned; the encoder's padding is not."""
    model = make_model("t5_small", *SMALL, *STILL)
    table = model.encoder.embed_tokens.weight
    assert model.decoder.embed_tokens.weight is table and table[PAD].std() > 0.3
    source, target = torch.tensor([[PAD, 5, 6, EOS]]), torch.tensor([[EOS, 7, 8]])
    before = logits(model, source, target)
    features = model.decoder(target, model.encoder(source, torch.tensor([3])), features_only=True)
    features[0].sum().backward()
    assert table.grad[PAD].any()
    with torch.no_grad():
        table[PAD] += 1.0
    changed = logits(model, source, target)
    assert not torch.allclose(changed[:, 0, :PAD], before[:, 0, :PAD])
    states = model.encoder(source, torch.tensor([3]))["encoder_out"][0][1:]
    with torch.no_grad():
        table[PAD] -= 1.0
    still = model.encoder(source, torch.tensor([3]))["encoder_out"][0][1:]
    assert torch.equal(states, still)


def test_end_of_sentence_is_itself_in_the_encoder(make_model: Build) -> None:
    model = make_model("t5_small", *SMALL, *STILL)
    source = torch.tensor([[5, 6, EOS]])
    before = model.encoder(source, torch.tensor([3]))["encoder_out"][0]
    with torch.no_grad():
        model.encoder.embed_tokens.weight[EOS] += 1.0
    after = model.encoder(source, torch.tensor([3]))["encoder_out"][0]
    assert not torch.allclose(before, after)


@pytest.mark.parametrize("flags, scale", [([], 16**-0.5), (["--t5-untied-output"], 1.0)])
def test_tied_logits_are_scaled(make_model: Build, flags: list[str], scale: float) -> None:
    model = make_model("t5_small", *SMALL, *STILL, *flags)
    decoder = model.decoder
    tied = decoder.output_projection.weight is decoder.embed_tokens.weight
    assert tied is (not flags)
    x = torch.randn(2, 3, 16)
    expected = scale * x @ decoder.output_projection.weight.t()
    torch.testing.assert_close(decoder.output_layer(x), expected)


def test_norms_are_computed_in_float32(make_model: Build) -> None:
    """The mean square of 1000 is beyond float16."""
    norm = make_model("t5_small", *SMALL).encoder.layer_norm.half()
    x = torch.full((1, 16), 1000.0, dtype=torch.float16)
    assert torch.equal(norm(x), torch.ones_like(x))


def test_nothing_has_a_bias_or_an_absolute_position(make_model: Build) -> None:
    model = make_model("t5_small", *SMALL)
    names = [name for name, _ in model.named_parameters()]
    assert not [n for n in names if n.endswith(".bias") or "embed_positions" in n]
    assert [n for n in names if "position" in n] == [
        "encoder.position_bias.weight", "decoder.position_bias.weight",
    ]  # fmt: skip


def test_initial_weights_are_t5s(make_model: Build) -> None:
    """Standard deviations of Mesh TensorFlow's T5, at a size where they can be measured."""
    model = make_model("t5_small", "--encoder-layers", "1", "--decoder-layers", "1")
    width, heads, head, inner = 512, 8, 64, 2048
    layer = model.decoder.layers[0]
    expected = {
        model.encoder.embed_tokens: 1.0,
        layer.self_attn.q_proj: (width * head) ** -0.5,
        layer.encoder_attn.k_proj: width**-0.5,
        model.encoder.layers[0].self_attn.v_proj: width**-0.5,
        layer.encoder_attn.out_proj: (heads * head) ** -0.5,
        layer.fc1: width**-0.5,
        model.encoder.layers[0].fc2: inner**-0.5,
    }
    for module, std in expected.items():
        assert module.weight.std().item() == pytest.approx(std, rel=0.02)
    assert model.encoder.position_bias.weight.std().item() == pytest.approx(width**-0.5, rel=0.2)


@pytest.mark.parametrize(
    "arch, size, matrices, total",
    [
        ("t5_small", 32_128, 0, 60_506_624),
        # Huang et al. 2023, table 7: eight dilated regular heads and a gate in each self-attention.
        ("codet5_small", 32_100, 0, 60_492_288),
        ("rsa_codet5_small", 32_100, 12 * (8 + 1), 60_492_396),
    ],
)
def test_presets_have_their_sizes(arch: str, size: int, matrices: int, total: int) -> None:
    """The published numbers of parameters, matrix by matrix."""
    words = Dictionary()
    for number in range(size - len(words)):
        words.add_symbol(str(number))
    parser = options.get_training_parser("translation")
    args = options.parse_args_and_arch(parser, ["data", "--arch", arch])
    task = Namespace(source_dictionary=words, target_dictionary=words)
    with torch.device("meta"):
        model = build_model(convert_namespace_to_omegaconf(args).model, task)
    width, inner = 512, 2048
    attention, network = 4 * width**2, 2 * width * inner
    by_hand = (
        size * width
        + 6 * (attention + network + 2 * width)  # encoder
        + 6 * (2 * attention + network + 3 * width)  # decoder
        + 2 * (width + 32 * 8)  # the last norm and the position bias of each
    )
    assert sum(p.numel() for p in model.parameters()) == by_hand + matrices == total


def test_checkpoint_of_a_transformer_is_refused(make_model: Build) -> None:
    stock, model = make_model("transformer", *SMALL), make_model("t5_small", *SMALL)
    with pytest.raises(CheckpointError, match="lacks .*decoder.position_bias.weight"):
        model.load_state_dict(stock.state_dict())


def test_flags_that_say_what_the_preset_has_change_nothing(make_model: Build) -> None:
    on = "--share-all-embeddings --encoder-normalize-before --no-scale-embedding".split()
    model = make_model("t5_small", *SMALL, *on)
    assert model.decoder.embed_tokens is model.encoder.embed_tokens
    assert model.cfg.encoder.normalize_before and model.encoder.embed_scale == 1.0


def test_heads_of_their_own_width_need_not_divide_the_models(make_model: Build) -> None:
    model = make_model("t5_small", *SMALL, "--t5-head-dim", "4", "--decoder-attention-heads", "3")
    assert model.decoder.layers[0].self_attn.q_proj.weight.shape == (12, 16)
    assert model.decoder.layers[0].encoder_attn.out_proj.weight.shape == (16, 12)


def test_activation_is_as_asked_for(make_model: Build) -> None:
    gated = make_model("t5_small", *SMALL, "--t5-gated", "--activation-fn", "gelu_accurate")
    x = torch.randn(4, 16)
    for layer in (gated.encoder.layers[0], gated.decoder.layers[0]):
        gate, value = layer.fc1.gate(x), layer.fc1.value(x)
        expected = nn.functional.gelu(gate, approximate="tanh") * value
        torch.testing.assert_close(layer.activation_fn(layer.fc1(x)), expected)
