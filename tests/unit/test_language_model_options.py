"""Options of language models that are refused, or of which the log says something."""

import logging
from argparse import Namespace
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import build_model
from torch import nn

from fairseq_recur.errors import ConfigError
from fairseq_recur.integration import loading
from fairseq_recur.models.check import zero_matrices
from fairseq_recur.models.presets import LANGUAGE_MODELS
from tests.configuring import model_config
from tests.unit.test_language_model import SMALL_LM
from tests.unit.test_memory_model import SMALL_XL

Build = Callable[..., nn.Module]
RSA = "--rsa-heads 0,0,0,2,0,0 --rsa-dilations"
FULL = "--decoder-self-attention-mixture full_matrix --learned-matrix-length"
XL = " ".join(SMALL_XL[:-2])  # without --memory-length

REFUSED = {
    "all positions of a segment are beyond full_matrix": (
        f"xl_lm_tiny {XL} --memory-length 8 {FULL} 8",
        ["--learned-matrix-length 8: full_matrix has a row for each position beyond --memory-len"],
    ),
    "dilations beyond the memory of the same length": (
        f"rsa_xl_lm_tiny {XL} --memory-length 6 --memory-same-length {RSA} 6",
        ["--rsa-heads: the smallest dilation is 6, but a position sees at most 6 positions"],
    ),
    "dilations beyond a chunk": (
        f"rsa_tlb_lm_tiny {XL} --latent-chunk 2 {RSA} 2,3",
        ["the smallest dilation is 2", "or a longer --latent-chunk"],
    ),
    "dilations beyond half of a segment": (
        "rsa_tlb_lm_wikitext103 --adaptive-input-cutoff 20,40 --adaptive-softmax-cutoff 20,40 "
        "--tokens-per-sample 16",
        ["the smallest dilation is 12, but a position sees at most 8 positions"],
    ),
    "no layer": (
        "xl_lm_tiny --decoder-layers 0",
        ["--decoder-layers 0: a memory needs at least one layer"],
    ),
    "an output of another width than the words that it shares": (
        f"xl_lm_tiny {XL} --decoder-output-dim 8",
        ["--decoder-output-dim 8: the output has the matrix of the embeddings, whose width is "],
    ),
    "several": (
        "xl_lm_wikitext103 --adaptive-input-cutoff 50,20 --adaptive-softmax-cutoff 20,40 "
        "--decoder-head-dim 9999",
        ["--decoder-head-dim 9999:", "--adaptive-input-cutoff 50,20:", "--tie-adaptive-weights"],
    ),
    "characters": (
        "rsa_transformer_lm --character-embeddings --tie-adaptive-weights --rsa-gate-init x",
        ["--character-embeddings with --tie-adaptive-weights: expected", "--rsa-gate-init x:"],
    ),
}

ALLOWED = {
    "a full_matrix of memory and segment": f"xl_lm_tiny {XL} --memory-length 8 {FULL} 12",
    "a full_matrix of a chunk": f"tlb_lm_tiny {XL} --latent-chunk 2 {FULL} 2",
    "one position of a dilation": (
        f"rsa_xl_lm_tiny {XL} --memory-length 7 --memory-same-length {RSA} 6"
    ),
    "all of a memory is seen": f"rsa_xl_lm_tiny {XL} --memory-length 6 {RSA} 9",
    "own matrices": f"rsa_transformer_lm {XL} --decoder-output-dim 8",
}


@pytest.mark.parametrize("name", REFUSED)
def test_all_problems_are_said_at_once(make_model: Build, name: str) -> None:
    flags, expected = REFUSED[name]
    with pytest.raises(ConfigError) as raised:
        make_model(*flags.split())
    assert [text for text in expected if text not in str(raised.value)] == []


@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_allowed_beside_them(make_model: Build, name: str) -> None:
    model = make_model(*ALLOWED[name].split())
    assert model(torch.randint(4, 60, (2, 4)))[0].isfinite().all()


def test_a_checkpoint_may_have_matrices_that_are_zero(make_model: Build) -> None:
    """Evaluation may have another memory than training, and old checkpoints may have such ones."""
    for flags, _ in [*REFUSED.values()][:3]:
        with loading():
            make_model(*flags.split())


def task_named(name: str, words: Dictionary) -> Namespace:
    """What of a task the model reads."""
    return Namespace(source_dictionary=words, target_dictionary=words, args=Namespace(_name=name))


@pytest.mark.parametrize(
    "arch, task, loaded, said",
    [
        ("xl_lm_tiny", "language_modeling", False, True),
        ("xl_lm_tiny", "language_modeling", True, False),
        ("xl_lm_tiny", "language_modeling_with_memory", False, False),
        ("rsa_transformer_lm", "language_modeling", False, False),
    ],
)
def test_a_memory_that_nothing_fills(
    dictionary: Dictionary, caplog: pytest.LogCaptureFixture, arch: str, task: str, loaded: bool,
    said: bool,
) -> None:  # fmt: skip
    cfg = deepcopy(model_config("language_modeling", arch, tuple(SMALL_LM)))
    with caplog.at_level(logging.WARNING):
        if loaded:
            with loading():
                build_model(cfg, task_named(task, dictionary))
        else:
            build_model(cfg, task_named(task, dictionary))
    texts = [r.getMessage() for r in caplog.records]
    assert any("--decoder-memory xl: nothing is kept from batch" in t for t in texts) == said


MEMORIES = {
    "xl": "--decoder-memory xl",
    "latent": "--decoder-memory latent --latent-chunk 2",
    "block_recurrent": "--decoder-memory block_recurrent --recurrent-layer 1 --recurrent-block 2",
}
FRESH = {"xl": "", "latent": "decoder.bottleneck", "block_recurrent": "decoder.layers.1 "}


@pytest.mark.parametrize("name", MEMORIES)
def test_a_stock_checkpoint_starts_every_memory(
    make_model: Build, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    usual = [*SMALL_LM, "--no-token-positional-embeddings", "--tokens-per-sample", "4"]
    stock = make_model("transformer_lm", *SMALL_LM, "--no-token-positional-embeddings")
    model = make_model("rsa_transformer_lm", *usual, *MEMORIES[name].split())
    own = deepcopy(model.state_dict())
    with caplog.at_level(logging.WARNING):
        model.load_state_dict(dict(stock.state_dict()))
    given = stock.state_dict()
    replaced = "decoder.layers.1." if name == "block_recurrent" else "nothing"
    for key, weight in model.state_dict().items():
        loaded = key in given and not key.startswith(replaced)
        assert torch.equal(weight, (given if loaded else own)[key]), key
    fresh = [r.getMessage() for r in caplog.records if "initialised fresh" in r.getMessage()]
    assert any(f": {FRESH[name]}" in text for text in fresh)
    dropped = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert len(dropped) == (name == "block_recurrent")
    other = make_model("rsa_transformer_lm", *usual, *MEMORIES[name].split())
    other.load_state_dict(dict(model.state_dict()))  # of a checkpoint with the memory, all is kept
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("arch", [name for name in LANGUAGE_MODELS if name.startswith("rsa")])
def test_no_preset_has_matrices_that_are_zero(arch: str) -> None:
    values = {**model_config("language_modeling", arch, ()), "tokens_per_sample": 1024}
    assert list(zero_matrices(Namespace(**values))) == []
