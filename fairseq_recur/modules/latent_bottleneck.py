"""A temporal latent bottleneck (Didolkar et al. 2022): layers over chunks, a state between them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from fairseq_recur.modules.block_recurrent import (
    BlockAttention,
    RecurrentBlocks,
    block_length,
    too_long,
)
from fairseq_recur.modules.context import Padding
from fairseq_recur.modules.options import option
from fairseq_recur.modules.part import FreshWeights
from fairseq_recur.modules.text_memory import TextMemory
from fairseq_recur.ops.padding import visible_keys
from fairseq_recur.ops.precision import at_least_float32
from fairseq_recur.ops.transformer_xl import sinusoids


class LatentBlock(nn.Module):
    """A sub-layer that attends to another sequence, and a position-wise network, both pre-norm."""

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__()
        width, inner = cfg.decoder.embed_dim, cfg.decoder.ffn_embed_dim
        self.attention = BlockAttention(cfg, rotated=False)
        self.network = nn.Sequential(
            nn.RMSNorm(width, eps=1e-6), nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width)
        )
        self.dropout_module = FairseqDropout(cfg.dropout, module_name=type(self).__name__)

    def forward(self, x: Tensor, source: Tensor, visible: Tensor | None = None) -> Tensor:
        """(B, T, C) that attends to *source* (B, S, C), or to what is *visible* of it."""
        x = x + self.dropout_module(self.attention(x, source, visible))
        return x + self.dropout_module(self.network(x))


class LatentBottleneck(FreshWeights, RecurrentBlocks):
    """The state between chunks, what reads it among the layers, and what writes it after them.

    A chunk's layers see the chunk. After every few of them a block reads the state, and after the
    last one the state reads the chunk. So a position sees earlier chunks only through the state.
    The state of a new text is a code of its vectors' numbers. It stays while a text is padded.
    """

    slot = "latent bottleneck"

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(cfg, int(cfg.latent_chunk))
        self.size, self.width = int(cfg.latent_states), cfg.decoder.embed_dim
        self.every, self.normed = int(cfg.latent_every), cfg.latent_state_norm == "rms"
        self.readers = nn.ModuleList(
            LatentBlock(cfg) for _ in range(cfg.decoder.layers // self.every)
        )
        self.writer = LatentBlock(cfg)

    def code(self, count: int, like: Tensor) -> Tensor:
        """Sinusoids of the first numbers: (count, C)."""
        numbers = torch.arange(count, device=like.device, dtype=at_least_float32(like).dtype)
        return sinusoids(numbers, self.width).to(like.dtype)

    def placed(self, x: Tensor) -> Tensor:
        """A chunk (T, B, C) with the positions in it."""
        return x + self.code(x.size(0), x).unsqueeze(1)

    def initial_state(self, x: Tensor) -> Tensor:
        """The state of a new text for each column of *x* (T, B, C): (B, N, C)."""
        return self.code(self.size, x).expand(x.size(1), -1, -1)

    def read(self, index: int, x: Tensor, state: Tensor) -> Tensor:
        """What follows layer *index* for a chunk *x* (T, B, C): a reader of the state, or none."""
        number, last = divmod(index + 1, self.every)
        if last:
            return x
        return self.readers[number - 1](x.transpose(0, 1), state).transpose(0, 1)

    def write(self, state: Tensor, x: Tensor, padding: Padding | None) -> Tensor:
        """The state (B, N, C) after a chunk *x* (T, B, C), of which the padding is not read."""
        empty: Tensor | None = None
        visible: Tensor | None = None
        if padding is not None:
            # Rows of padding alone read it, as no softmax is over nothing, and keep their state.
            empty = padding.mask.all(dim=1, keepdim=True)
            visible = visible_keys(padding.mask & ~empty)
        after = self.writer(state, x.transpose(0, 1), visible)
        if self.normed:
            after = nn.functional.rms_norm(after, (self.width,), eps=1e-6)
        return after if empty is None else torch.where(empty.unsqueeze(2), state, after)


class LatentMemory(TextMemory):
    """The state of a latent bottleneck; no states of earlier positions are kept."""

    about = "a state between chunks, which the layers read and write, Didolkar et al. 2022"

    @dataclass
    class Options:
        """Options of the bottleneck."""

        latent_chunk: int = option(
            0,
            "positions of a chunk, after which the latent state is written; 0: half of "
            "--tokens-per-sample, so that a gradient flows through it",
        )
        latent_states: int = option(64, "vectors of the latent state", (1, 2048))
        latent_every: int = option(
            2, "number of layers between two reads of the latent state", (1, 2**16)
        )
        latent_state_norm: ChoiceEnum(["none", "rms"]) = option(  # type: ignore[valid-type]
            "none",
            "what happens to the latent state after each chunk: none, as in Didolkar et al. 2022, "
            "where a state is that of one text; rms divides each vector by its root mean square, "
            "since over the segments of a long text the state would grow until it overflows",
        )

    limit = "--latent-chunk"

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(cfg)
        self.state_length = int(cfg.latent_states)

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """Problems with the combination of this part's options, one message each."""
        yield from cls.problems_of_host(cfg)
        yield from too_long("latent_chunk", cfg)
        if cfg.decoder_layers_to_keep:
            yield (
                f"--decoder-layers-to-keep {cfg.decoder_layers_to_keep}: the blocks that read the "
                f"latent state follow every {cfg.latent_every} layers of the whole stack; leave it "
                "out"
            )
        if cfg.latent_every > cfg.decoder_layers:
            yield (
                f"--latent-every {cfg.latent_every}: expected at most --decoder-layers "
                f"{cfg.decoder_layers}, or nothing reads the state; give fewer layers"
            )

    @classmethod
    def visible(cls, cfg: Any) -> int | None:
        """As in `TextMemory.visible`: the positions of a chunk."""
        return block_length(cfg.latent_chunk, cfg.tokens_per_sample)

    def bottleneck(self, cfg: TransformerConfig) -> LatentBottleneck:
        """The bottleneck whose state is carried."""
        return LatentBottleneck(cfg)
