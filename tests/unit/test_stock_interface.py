"""What fairseq's encoder and decoder give to callers who ask: ours give the same."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor, nn
from torch.autograd import graph

from fairseq_recur.modules import layers
from tests.conftest import SMALL
from tests.unit.test_language_model import SMALL_LM
from tests.unit.test_model_properties import PAD, sentences, targets, true_lengths
from tests.unit.test_stock_training import pair

Build = Callable[..., Any]
SCALES = "--scale-attn --scale-fc --scale-heads --scale-resids".split()


@pytest.fixture
def models(make_model: Build) -> list[nn.Module]:
    """A model without parts and the stock one, with the same parameters."""
    return [model.eval() for model in pair(make_model, "")]


def test_an_encoder_is_asked_for_all_its_states(models: list[nn.Module]) -> None:
    """With lengths, and with embeddings that the caller has looked up."""
    source, found = sentences([6, 3, 5], "left"), []
    for model in models:
        embeddings = 0.5 * model.encoder.embed_tokens(source)
        found.append(
            model.encoder(
                source,
                true_lengths(source),
                return_all_hiddens=True,
                token_embeddings=embeddings,
            )
        )
    ours, stock = found
    assert stock.keys() <= ours.keys() and len(ours["encoder_states"]) == 3
    del stock["fc_results"]  # of layers that return those of their feed-forward networks
    for name, expected in stock.items():
        assert len(ours[name]) == len(expected)
        for a, b in zip(ours[name], expected):
            torch.testing.assert_close(a, b)
    looked_up = models[0].encoder(source, true_lengths(source))["encoder_embedding"][0]
    assert not torch.allclose(ours["encoder_embedding"][0], looked_up)


@pytest.mark.parametrize("heads", [None, 1, 2])
@pytest.mark.parametrize("layer", [None, 0, 1])
def test_a_decoder_is_asked_for_an_alignment(
    models: list[nn.Module], layer: int | None, heads: int | None
) -> None:
    source, target, found = sentences([6, 3, 5], "left"), targets(3, 5), []
    target[1, -2:] = PAD
    for model in models:
        encoded = model.encoder(source, true_lengths(source))
        asked = {"alignment_layer": layer, "alignment_heads": heads, "full_context_alignment": True}
        found.append(model.decoder(target, encoded, **asked)[1])
    torch.testing.assert_close(found[0]["attn"][0], found[1]["attn"][0])
    torch.testing.assert_close(found[0]["inner_states"], found[1]["inner_states"])


@pytest.mark.parametrize("flags", [SCALES, *([flag] for flag in SCALES)], ids=" ".join)
def test_a_language_model_has_the_scales_of_normformer(make_model: Build, flags: list[str]) -> None:
    """Those of fairseq's layer; its own language model does not pass the options to it."""
    model = make_model("rsa_transformer_lm", *SMALL_LM, *flags, "--decoder-self-attention", "dot")
    stock = make_model("transformer_lm", *SMALL_LM)
    without = stock.decoder.layers[0].state_dict().keys()
    made = [TransformerDecoderLayerBase(model.decoder.cfg, no_encoder_attn=True) for _ in range(2)]
    stock.decoder.layers = nn.ModuleList(made)
    for parameter in stock.parameters():
        nn.init.normal_(parameter, std=0.3)
    model.eval().load_state_dict(stock.eval().state_dict())
    assert made[0].state_dict().keys() > without
    batch = sentences([7, 4], "right")
    torch.testing.assert_close(model(batch)[0], stock(batch)[0])


@pytest.mark.parametrize("arch, blocks", [("transformer_biarn", 5), ("srformer", 4)])
def test_checkpointed_activations_are_offloaded(
    make_model: Build, arch: str, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only with --offload-activations; the gradients stay the same."""
    used: list[int] = []

    def save_on_cpu() -> Any:
        used.append(1)
        return graph.save_on_cpu()

    monkeypatch.setattr(layers, "save_on_cpu", save_on_cpu)
    gradients: list[list[Tensor | None]] = []
    for flag, times in (
        ("", 0),
        ("--checkpoint-activations", 0),
        ("--offload-activations", blocks),
    ):
        torch.manual_seed(1)
        model = make_model(arch, *SMALL, "--dropout", "0", *flag.split()).train()
        source, target = sentences([6, 3, 5], "left"), targets(3, 5)
        model(source, true_lengths(source), target)[0].logsumexp(2).sum().backward()
        assert len(used) == times
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0])
    torch.testing.assert_close(gradients[2], gradients[0])


def test_a_t5_starts_from_the_given_embeddings(
    make_model: Build, dictionary: Dictionary, tmp_path: Any
) -> None:
    """Words that the file lacks have T5's deviation."""
    file = tmp_path / "vectors.txt"
    file.write_text(f"1 16\n{dictionary[7]}{' 0.25' * 16}\n")
    model = make_model("t5_small", *SMALL, "--encoder-embed-path", str(file))
    table = model.encoder.embed_tokens.weight
    assert torch.equal(table[7], torch.full((16,), 0.25))
    assert table[8:].std().item() == pytest.approx(1, rel=0.1)
