"""Each dropout of each system drops something, in every form of computation."""

from collections.abc import Callable

import pytest
import torch
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from fairseq_recur.modules.block_recurrent import BlockRecurrentLayer
from fairseq_recur.modules.context import Context
from fairseq_recur.modules.latent_bottleneck import LatentBlock
from fairseq_recur.modules.sparse_attention import ProbSparseSelfAttention
from tests.conftest import FORECASTERS, SMALL
from tests.systems import option_values
from tests.unit import test_memory_model as memory
from tests.unit.test_forecaster import inputs, make  # noqa: F401  (a fixture)
from tests.unit.test_guest_features import WORDS
from tests.unit.test_memory_model import build  # noqa: F401  (a fixture)

Build = Callable[..., nn.Module]


def without_effect(model: nn.Module, read: Callable[[], Tensor]) -> list[str]:
    """The dropouts that change nothing of what a model says in training, each one alone."""
    named = {n: m for n, m in model.train().named_modules() if isinstance(m, FairseqDropout)}
    for module in model.modules():
        if isinstance(module, FairseqDropout):
            module.p = 0.0
        if isinstance(module, ProbSparseSelfAttention):
            module.factor = 50  # all queries attend, whatever is drawn
    found = []
    with torch.no_grad():
        expected = read()
        torch.testing.assert_close(read(), expected)
        for name, module in named.items():
            module.p = 0.5
            if torch.allclose(read(), expected, rtol=1e-9, atol=1e-12):
                found.append(name)
            module.p = 0.0
    assert len(found) < len(named)
    return found


def test_encoder_decoders(make_model: Build, system: list[str]) -> None:
    model = make_model(system[1], *SMALL, *system[2:]).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    expected = []
    if "srformer_no_segmented_term" in option_values(system):  # which alone has attention weights
        expected = [f"decoder.layers.{layer}.encoder_attn.dropout_module" for layer in range(2)]
    assert without_effect(model, lambda: model(**WORDS)[0]) == expected


@pytest.mark.parametrize("name", memory.systems(*memory.ALL))
def test_models_with_a_memory(build: Build, name: str) -> None:  # noqa: F811
    """A segment has several blocks, of which the later ones read what the state became."""
    model = build(*memory.ALL[name])
    tokens = memory.text(memory.SEGMENT)
    found = without_effect(model, lambda: memory.read(model, tokens))
    # The loss alone has it.
    assert [n for n in found if n != "decoder.adaptive_softmax.dropout_module"] == []


@pytest.mark.parametrize("arch", FORECASTERS)
def test_forecasters(make: Build, arch: str) -> None:  # noqa: F811
    model, batch = make(arch), inputs()
    assert without_effect(model, lambda: model(*batch)) == []


def random(*size: int) -> Tensor:
    return torch.randn(size, dtype=torch.float64)


def test_a_latent_block_without_its_updates(build: Build) -> None:  # noqa: F811
    """One dropout is in two places; where it drops all, the input stays."""
    model = build(*memory.ALL["tlb_lm"]).train()
    block = next(m for m in model.modules() if isinstance(m, LatentBlock))
    x, source = random(2, 3, 16), random(2, 5, 16)
    block.dropout_module.p = 1.0
    assert torch.equal(block(x, source), x)


def test_a_block_recurrent_layer_without_its_updates(build: Build) -> None:  # noqa: F811
    model = build(*memory.ALL["brt_lm"]).train()
    layer = next(m for m in model.modules() if isinstance(m, BlockRecurrentLayer))
    x, state = random(2, 3, 16), random(2, *layer.identity.size())
    layer.dropout_module.p = 1.0
    assert torch.equal(layer.read(x, state)[0], x)


@pytest.mark.parametrize("arch", ["t5_small", "rsa_transformer", "transformer_relpos"])
def test_a_retained_dropout_drops_step_by_step(make_model: Build, arch: str) -> None:
    """With --retain-dropout, in the steps of decoding as elsewhere."""
    model = make_model(arch, *SMALL).double().eval()
    encoded = model.encoder(WORDS["src_tokens"], WORDS["src_lengths"])
    dropout = model.decoder.layers[0].self_attn.dropout_module
    dropout.apply_during_inference = True
    found = []
    for dropout.p in (0.0, 1.0):
        tokens = WORDS["prev_output_tokens"][:, :1]
        found.append(model.decoder(tokens, encoded, incremental_state={})[0])
    assert not torch.allclose(*found)


def test_a_retained_dropout_of_the_mixed_map_drops_once(make_model: Build) -> None:
    """Entries of the mixture, and not those of the softmax before."""
    model = make_model("rsa_transformer", *SMALL, "--rsa-dropout", "mixed").eval()
    attention = model.decoder.layers[0].self_attn
    attention.dropout_module.p, attention.dropout_module.apply_during_inference = 1.0, True
    context = Context(incremental_state={}, position=0)
    out, weights = attention(torch.randn(1, 3, 16), context, need_weights=True)
    assert torch.equal(out, attention.out_proj.bias.expand_as(out)) and (weights > 0).all()
