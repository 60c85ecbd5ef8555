"""A temporal latent bottleneck (Didolkar et al. 2022): layers over chunks, a state between them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from fairseq.incremental_decoding_utils import with_incremental_state
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from fairseq_recur.modules.block_recurrent import BlockAttention, too_long
from fairseq_recur.modules.options import option
from fairseq_recur.modules.stream_memory import SegmentMemory, StreamMemory
from fairseq_recur.ops.precision import at_least_float32
from fairseq_recur.ops.relative_positions import sinusoids


class LatentBlock(nn.Module):
    """A sub-layer that attends to another sequence, and a position-wise network, both pre-norm.

    Args:
        cfg: the host's configuration
    """

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__()
        width, inner = cfg.decoder.embed_dim, cfg.decoder.ffn_embed_dim
        self.attention = BlockAttention(cfg, rotated=False)
        self.network = nn.Sequential(
            nn.RMSNorm(width, eps=1e-6), nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width)
        )
        self.dropout_module = FairseqDropout(cfg.dropout, module_name=type(self).__name__)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        """(B, T, C) that attends to *source* (B, S, C)."""
        x = x + self.dropout_module(self.attention(x, source))
        return x + self.dropout_module(self.network(x))


@with_incremental_state
class LatentBottleneck(nn.Module):
    """The state between chunks, what reads it among the layers, and what writes it after them.

    A chunk's layers see the chunk. After every few of them a block reads the state, and after the
    last one the state reads the chunk. So a position sees earlier chunks through the state alone.
    The state of a new text is a code of its vectors' numbers. Padding must come last.

    Args:
        cfg: the host's configuration
    """

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__()
        self.segment = int(cfg.tokens_per_sample)
        self.chunk = int(cfg.latent_chunk) or max(1, self.segment // 2)
        self.size, self.width = int(cfg.latent_states), cfg.decoder.embed_dim
        self.every = int(cfg.latent_every)
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

    def first(self, x: Tensor) -> Tensor:
        """The state of a new text for each column of *x* (T, B, C): (B, N, C)."""
        return self.code(self.size, x).expand(x.size(1), -1, -1)

    def read(self, index: int, x: Tensor, state: Tensor) -> Tensor:
        """What follows layer *index* for a chunk *x* (T, B, C): a reader of the state, or none."""
        number, last = divmod(index + 1, self.every)
        if last:
            return x
        return self.readers[number - 1](x.transpose(0, 1), state).transpose(0, 1)

    def write(self, state: Tensor, x: Tensor) -> Tensor:
        """The state (B, N, C) after a chunk *x* (T, B, C)."""
        return self.writer(state, x.transpose(0, 1))

    def extended(self, x: Tensor, incremental_state: Any) -> tuple[Tensor, Tensor]:
        """In incremental decoding the inputs of the chunk so far (T, B, C), and the state."""
        saved = self.get_incremental_state(incremental_state, "chunk")
        if saved is None:
            return x, self.first(x)
        return torch.cat([saved["inputs"].transpose(0, 1), x]), saved["state"]

    def save(
        self, inputs: Tensor, state: Tensor, after: Tensor, position: int, incremental_state: Any
    ) -> None:
        """Keep what the next step needs.

        Args:
            inputs: (T, B, C) of the chunk so far
            state: (B, N, C) that this chunk reads
            after: (B, N, C) that the next chunk reads
            position: the newest one
            incremental_state: fairseq's
        """
        place = (position + 1) % self.segment
        if place == 0 or place % self.chunk == 0:
            inputs, state = inputs[:0], after
        saved = {"inputs": inputs.transpose(0, 1), "state": state}
        self.set_incremental_state(incremental_state, "chunk", saved)

    def reorder_incremental_state(self, incremental_state: Any, new_order: Tensor) -> None:
        """Move the rows of fairseq's incremental state to the order *new_order* (B',)."""
        saved = self.get_incremental_state(incremental_state, "chunk")
        if saved is not None:
            moved = {name: x.index_select(0, new_order) for name, x in saved.items()}
            self.set_incremental_state(incremental_state, "chunk", moved)


class LatentMemory(SegmentMemory):
    """The state of a latent bottleneck; of positions nothing is kept.

    Args:
        cfg: the host's configuration
    """

    @dataclass
    class Options:
        """Of the bottleneck."""

        latent_chunk: int = option(
            0,
            "positions of a chunk, after which the latent state is written; 0: half of "
            "--tokens-per-sample, so that a gradient flows through it",
        )
        latent_states: int = option(64, "vectors of the latent state", (1, 2048))
        latent_every: int = option(
            2, "layers of a chunk after which a block reads the latent state", (1, 2**16)
        )

    of_positions = False
    carried: Tensor
    rows: ClassVar[dict[str, int]] = {**SegmentMemory.rows, "carried": 0}

    def __init__(self, cfg: TransformerConfig) -> None:
        StreamMemory.__init__(self, cfg.decoder.layers)
        self.length, self.segment, self.reach = 0, int(cfg.tokens_per_sample), None
        self.register_buffer("carried", torch.zeros(0, 0, 0))

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """What is wrong with the options of this part together, one message each."""
        yield from cls.problems_of_host(cfg)
        yield from too_long("latent_chunk", cfg)
        if cfg.latent_every > cfg.decoder_layers:
            yield (
                f"--latent-every {cfg.latent_every}: expected at most --decoder-layers "
                f"{cfg.decoder_layers}, or nothing reads the state; give fewer layers"
            )

    def bottleneck(self, cfg: TransformerConfig) -> LatentBottleneck:
        """The bottleneck whose state is carried."""
        return LatentBottleneck(cfg)
