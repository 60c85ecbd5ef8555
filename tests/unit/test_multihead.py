"""Heads that share the width of a layer."""

from argparse import Namespace

import pytest

from fairseq_recur.modules.multihead import uneven_heads


@pytest.mark.parametrize(
    "width, heads, said",
    [
        (16, 4, []),
        (16, 0, ["--encoder-attention-heads 0: expected at least 1"]),
        (16, -4, ["--encoder-attention-heads -4: expected at least 1"]),
        (16, 3, ["--encoder-embed-dim 16 cannot be split evenly among --encoder-attention-heads 3; "
                 "choose a multiple of the heads"]),
    ],
)  # fmt: skip
def test_heads_that_cannot_share_a_width(width: int, heads: int, said: list[str]) -> None:
    cfg = Namespace(encoder_embed_dim=width, encoder_attention_heads=heads)
    assert list(uneven_heads(cfg, "encoder")) == said
    assert list(uneven_heads(cfg, "encoder", own_width=5)) == (said if heads < 1 else [])
