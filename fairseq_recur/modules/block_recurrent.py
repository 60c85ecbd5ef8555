"""The layer of a Block-Recurrent Transformer (Hutchins et al. 2022), and what carries its state.

Its structure is that of the public code that Huang et al. 2023 modified. The parameter counts in
their table 7 confirm it: four attentions with parameters of their own, two gates, two networks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from fairseq_recur.modules.context import Context
from fairseq_recur.modules.layers import kept_layers
from fairseq_recur.modules.multihead import probability
from fairseq_recur.modules.options import flag, option
from fairseq_recur.modules.part import FreshWeights
from fairseq_recur.modules.t5 import inner_width
from fairseq_recur.modules.text_memory import XLMemory
from fairseq_recur.ops.attention import dot_product_attention
from fairseq_recur.ops.block_recurrent import rotary, state_gate


class BlockAttention(nn.Module):
    """Multi-head attention that norms what attends, but not another sequence that it reads.

    The projections of queries, keys and values have no biases; that of the output has one.

    Args:
        cfg: the host's configuration
        rotated: turn queries and keys by their positions: half of a head's channels, but at
            least 32 (all of a narrower head)
        causal: hide later keys
    """

    def __init__(self, cfg: TransformerConfig, rotated: bool, causal: bool = False) -> None:
        super().__init__()
        width, inner = cfg.decoder.embed_dim, inner_width(cfg, "decoder")
        self.heads, self.causal = cfg.decoder.attention_heads, causal
        size = inner // self.heads
        self.rotated = min(size - size % 2, max(size // 4 * 2, 32)) if rotated else 0
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(width, inner, bias=False) for _ in range(3)
        )
        self.out_proj = nn.Linear(inner, width)
        self.dropout_module = FairseqDropout(cfg.attention_dropout, module_name=type(self).__name__)

    def forward(
        self, x: Tensor, source: Tensor | None = None, visible: Tensor | None = None
    ) -> Tensor:
        """Attend from *x* to another sequence or to itself.

        Args:
            x: (B, T, C)
            source: (B, S, C), or None
            visible: the keys that are read, as in `visible_keys`, or None for all

        Returns:
            (B, T, C)
        """
        x = self.norm(x)
        read = x if source is None else source
        q = self.split(self.q_proj(x))
        k, v = (self.split(project(read)) for project in (self.k_proj, self.v_proj))
        if self.rotated:
            q, k = rotary(q, self.rotated), rotary(k, self.rotated)
        dropout = probability(self.dropout_module)
        heads = dot_product_attention(q, k, v, visible, dropout, self.causal)
        return self.out_proj(heads.transpose(1, 2).flatten(2))

    def split(self, x: Tensor) -> Tensor:
        """Make the heads a dimension: (B, T, H D) to (B, H, T, D)."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class StateGate(nn.Module):
    """What a state takes in and what it keeps of itself, each by a linear map of the update."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.update, self.write, self.keep = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        """The next state (B, N, C) for an update *x* (B, N, C)."""
        return state_gate(self.update(x), self.write(x), self.keep(x), state)


class RecurrentBlocks(FairseqIncrementalState, nn.Module):
    """What passes on a state from block to block of the positions of a segment.

    Incremental decoding keeps the block so far, from which its end makes the next state. Padding
    must come last.

    Args:
        cfg: the host's configuration
        block: positions of a block; 0: half of a segment
    """

    get_incremental_state: Callable[..., Any]
    set_incremental_state: Callable[..., Any]

    def __init__(self, cfg: TransformerConfig, block: int) -> None:
        super().__init__()
        self.segment = int(cfg.tokens_per_sample)
        self.block = block_length(block, self.segment)

    def initial_state(self, x: Tensor) -> Tensor:
        """The state of a new text for each column of *x* (T, B, C): (B, N, C)."""
        raise NotImplementedError(type(self).__name__)

    def extended(self, x: Tensor, incremental_state: Any) -> tuple[Tensor, Tensor]:
        """In incremental decoding what is kept of the block, and *x*: (T, B, C); and the state."""
        saved = self.get_incremental_state(incremental_state, "block")
        if saved is None:
            return x, self.initial_state(x)
        return torch.cat([saved["inputs"].transpose(0, 1), x]), saved["state"]

    def ends_block(self, position: int) -> bool:
        """Whether a position is the last one of a block, after which the state changes."""
        return (position + 1) % self.segment % self.block == 0

    def save(
        self, inputs: Tensor, state: Tensor, after: Tensor, position: int, incremental_state: Any
    ) -> None:
        """Keep what the next step needs.

        Args:
            inputs: (T, B, C) of the block so far, from which the next state is made
            state: (B, N, C) that this block reads
            after: (B, N, C) that the next block reads
            position: the newest one
            incremental_state: fairseq's
        """
        if self.ends_block(position):
            inputs, state = inputs[:0], after
        saved = {"inputs": inputs.transpose(0, 1), "state": state}
        self.set_incremental_state(incremental_state, "block", saved)

    def reorder_incremental_state(self, incremental_state: Any, new_order: Tensor) -> None:
        """Move the rows of fairseq's incremental state to the order *new_order* (B',)."""
        saved = self.get_incremental_state(incremental_state, "block")
        if saved is not None:
            moved = {name: x.index_select(0, new_order) for name, x in saved.items()}
            self.set_incremental_state(incremental_state, "block", moved)


class BlockRecurrentLayer(FreshWeights, RecurrentBlocks):
    """A layer that reads its input in blocks, and passes on a state from block to block.

    A block attends to itself and to the state, and the state to itself and to the block. So a
    position sees its block, and all earlier ones through the state. The state of a new text is
    zero; a learned vector tells each of its vectors from the others, as Hutchins et al. have it.
    Without one they would stay equal.
    """

    slot = "block-recurrent layer"

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(cfg, int(cfg.recurrent_block))
        width = cfg.decoder.embed_dim
        self.identity = nn.Parameter(torch.empty(cfg.recurrent_state_length, width))
        nn.init.normal_(self.identity, std=0.02)
        self.input_self = BlockAttention(cfg, rotated=True, causal=True)
        self.state_self = BlockAttention(cfg, rotated=True)
        self.input_to_state = BlockAttention(cfg, rotated=False)
        self.state_to_input = BlockAttention(cfg, rotated=False)
        self.input_proj, self.state_proj = (
            nn.Linear(2 * width, width, bias=False) for _ in range(2)
        )
        self.gates = nn.ModuleList(StateGate(width) for _ in range(2))
        self.input_ffn, self.state_ffn = (
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(2)
        )
        self.dropout_module = FairseqDropout(cfg.dropout, module_name=type(self).__name__)

    def forward(self, x: Tensor, state: Tensor | None, context: Context) -> tuple[Tensor, Tensor]:
        """One layer.

        Args:
            x: (T, B, C); in incremental decoding the newest position
            state: (B, N, C) after the segment before, or None for a new text
            context: of the batch

        Returns:
            (T, B, C), and the state after it (B, N, C)
        """
        if context.incremental_state is not None:
            return self.step(x, context)
        state = self.initial_state(x) if state is None else state.to(x.dtype)
        out = []
        for block in x.transpose(0, 1).split(self.block, dim=1):
            read, state = self.read(block, state)
            out.append(read)
        return connected(out, torch.cat(out, dim=1).transpose(0, 1), state), state

    def initial_state(self, x: Tensor) -> Tensor:
        """The state of a new text for each column of *x* (T, B, C): (B, N, C)."""
        return x.new_zeros(x.size(1), *self.identity.size())

    def read(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The output for a block (B, W, C), and the next state (B, N, C)."""
        return self.output(x, state), self.next_state(x, state)

    def output(self, x: Tensor, state: Tensor) -> Tensor:
        """The output for a block (B, W, C)."""
        known = state + self.identity
        attended = torch.cat([self.input_to_state(x, known), self.input_self(x)], dim=2)
        x = x + self.dropout_module(self.input_proj(attended))
        return x + self.dropout_module(self.input_ffn(x))

    def next_state(self, x: Tensor, state: Tensor) -> Tensor:
        """The state (B, N, C) after a block *x* (B, W, C)."""
        known = state + self.identity
        updated = torch.cat([self.state_to_input(known, x), self.state_self(known)], dim=2)
        between = self.gates[0](self.state_proj(updated), state)
        return self.gates[1](self.state_ffn(between), between)

    def step(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """`forward` for the newest position (1, B, C), from the inputs of its block so far."""
        assert context.position is not None
        inputs, state = self.extended(x, context.incremental_state)
        block = inputs.transpose(0, 1)
        out = self.output(block, state)
        after = self.next_state(block, state) if self.ends_block(context.position) else state
        self.save(inputs, state, after, context.position, context.incremental_state)
        return out[:, -1:].transpose(0, 1), after


def block_length(given: int, segment: int) -> int:
    """Positions of a block: the *given* number; 0: half of a segment."""
    return given or max(1, segment // 2)


def connected(blocks: list[Tensor], x: Tensor, state: Tensor) -> Tensor:
    """*x*, the output of *blocks*, with a gradient of zero for *state* if there is one block.

    Only later blocks read the state that a block leaves. But several processes wait for a gradient
    of every parameter, also of those that only make the state.
    """
    if len(blocks) > 1 or not torch.is_grad_enabled():
        return x
    # Not 0 * state, which is NaN if the state has overflowed.
    nothing = state.masked_fill(torch.ones_like(state, dtype=torch.bool), 0.0)
    return x + nothing.sum().to(x.dtype)


class BlockRecurrentMemory(XLMemory):
    """The state of a block-recurrent layer; the other layers have Transformer-XL's memory."""

    about = "in one layer a recurrent state, Hutchins et al. 2022"

    @dataclass
    class Options(XLMemory.Options):
        """Adds those of the layer."""

        recurrent_layer: int = option(
            3, "number of the block-recurrent layer, counted from the top", (1, 2**16)
        )
        recurrent_state_length: int = option(
            128, "vectors of the state of a block-recurrent layer", (1, 2048)
        )
        recurrent_block: int = option(
            0,
            "positions of a block, after which the recurrent state is updated; 0: half of "
            "--tokens-per-sample, so that a gradient flows through one update",
        )

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(cfg)
        self.recurrent = cfg.decoder.layers - int(cfg.recurrent_layer)
        self.state_length = int(cfg.recurrent_state_length)

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """Problems with the combination of this part's options, one message each."""
        yield from super().problems(cfg, side)
        if cfg.recurrent_layer > cfg.decoder_layers:
            yield (
                f"--decoder-memory {cfg.decoder_memory} with --recurrent-layer "
                f"{cfg.recurrent_layer}: expected at most --decoder-layers "
                f"{cfg.decoder_layers}; give the number of a layer from the top"
            )
        elif (kept := kept_layers(cfg, "decoder")) is not None:
            layer = cfg.decoder_layers - cfg.recurrent_layer
            if layer not in kept:
                yield (
                    f"--decoder-layers-to-keep {cfg.decoder_layers_to_keep} drops the "
                    f"block-recurrent layer, number {layer} from the bottom, from 0 "
                    f"(--recurrent-layer {cfg.recurrent_layer}); keep it"
                )
        yield from too_long("recurrent_block", cfg)

    @classmethod
    def prune(cls, cfg: Any) -> None:
        """Give the block-recurrent layer its number among the layers that are kept."""
        kept = kept_layers(cfg, "decoder")
        assert kept is not None, "the options are checked"
        cfg.recurrent_layer = len(kept) - kept.index(cfg.decoder_layers - cfg.recurrent_layer)

    def build_layer(self, cfg: TransformerConfig) -> nn.Module:
        """The block-recurrent layer."""
        return BlockRecurrentLayer(cfg)


def too_long(name: str, cfg: Any) -> Iterator[str]:
    """What is wrong with a block that is not shorter than a segment: nothing trains its state.

    Args:
        name: of the option with the block's length; 0 is half of a segment
        cfg: the model's options, flat
    """
    length, segment = getattr(cfg, name), cfg.tokens_per_sample
    if length >= segment > 1:
        yield (
            f"{flag(name)} {length}: expected less than --tokens-per-sample {segment}, as only the "
            "later blocks of a segment give the state's update a gradient"
        )
