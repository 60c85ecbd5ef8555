"""What the other library's format cannot hold, and weights that contradict each other."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_recur.conversion import bart, t5
from fairseq_recur.conversion.settings import Settings
from fairseq_recur.errors import ConfigError

SHAPE: dict[str, Any] = {
    f"{side}_{name}": 4 for side in ("encoder", "decoder")
    for name in ("embed_dim", "ffn_embed_dim", "attention_heads", "layers")
}  # fmt: skip


@pytest.mark.parametrize("name", ["embed_dim", "ffn_embed_dim", "attention_heads"])
def test_a_t5_has_one_size_for_both_stacks(name: str) -> None:
    options = {**SHAPE, f"decoder_{name}": 8, "share_all_embeddings": True}
    with pytest.raises(ConfigError, match=f"encoder_{name} 4 differs from decoder_{name} 8"):
        t5.check_shared_sizes(Settings(options))


def test_a_t5_has_one_embedding_matrix() -> None:
    with pytest.raises(ConfigError, match="one embedding matrix; expected --share-all-embeddings"):
        t5.check_shared_sizes(Settings({**SHAPE, "share_all_embeddings": False}))


def test_the_gated_gelu_is_the_accurate_one() -> None:
    options = {**SHAPE, "t5_gated": True, "activation_fn": "gelu"}
    with pytest.raises(ConfigError, match="found --t5-gated with --activation-fn gelu"):
        t5.configuration(Settings(options), 10, tied=False)


@pytest.mark.parametrize("values, scaled", [
    ({}, True),
    ({"tie_word_embeddings": False}, False),
    ({"scale_decoder_outputs": False, "tie_word_embeddings": True}, False),
    ({"scale_decoder_outputs": True, "tie_word_embeddings": False}, True),
    ({"model_type": "mt5"}, False),
    ({"model_type": "mt5", "tie_word_embeddings": True}, False),
])  # fmt: skip
def test_which_t5_scales_its_logits(values: dict[str, Any], scaled: bool) -> None:
    """The published files of T5 v1.1 have only tie_word_embeddings; later ones say it directly."""
    assert t5.scales_logits(Settings(values)) == scaled


def matrices(other: str) -> dict[str, Tensor]:
    """Embeddings of which one matrix differs from the shared one."""
    return {"shared.weight": torch.zeros(3, 2), other: torch.ones(3, 2)}


@pytest.mark.parametrize("name", [n for n, original in t5.REPEATED.items() if original])
def test_embeddings_of_a_t5_that_differ(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} differs from shared.weight"):
        t5.to_fairseq(Settings({}), matrices(name), [0, 1, 2])


def test_dropout_that_a_bart_does_not_name() -> None:
    """Hugging Face's defaults."""
    sizes = {"d_model": 8, "max_position_embeddings": 16}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_{name}": 2 for name in ("attention_heads", "ffn_dim", "layers")}
    options = bart.model_options(Settings(sizes))
    names = ("dropout", "attention_dropout", "activation_dropout")
    assert [options[name] for name in names] == [0.1, 0.0, 0.0]


@pytest.mark.parametrize("name", [*bart.SHARED, "lm_head.weight"])
def test_embeddings_of_a_bart_that_differ(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} differs from shared.weight"):
        bart.to_fairseq(Settings({}), matrices(name), [0, 1, 2])
