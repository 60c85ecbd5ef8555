"""The decoder of a language model with a memory, or in the host of Transformer-XL."""

import logging
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_recur.models.decoder import RecurrentTransformerDecoder
from fairseq_recur.modules.block_recurrent import connected
from fairseq_recur.modules.context import (
    Context,
    IncrementalState,
    Padding,
    additive_mask,
    causal_mask,
)
from fairseq_recur.modules.parts import MEMORY, NONE
from fairseq_recur.modules.text_memory import TextMemory
from fairseq_recur.modules.transformer_xl import (
    UnprojectedAdaptiveInput,
    add_biases,
    draw_weights,
    is_transformer_xl,
)
from fairseq_recur.modules.xl import share_position_biases

logger = logging.getLogger(__name__)


class MemoryDecoder(RecurrentTransformerDecoder):
    """A decoder without an encoder whose batches are segments of streams of text.

    Teacher forcing reads the memory of the batches before, if it is told which positions the rows
    begin with. Otherwise each row is a text by itself, as in decoding step by step: both begin with
    an empty memory, and cut the text in the same places as training.

    Args:
        cfg: the host's configuration
        dictionary: of the words
        embed_tokens: their embedding
    """

    output_projection: nn.Linear

    def __init__(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Module
    ) -> None:
        memory = None if cfg.decoder_memory == NONE else MEMORY[cfg.decoder_memory](cfg)
        self._recurrent = {} if memory is None else {memory.recurrent: memory}
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn=True)
        del self._recurrent
        self.memory = memory
        self.bottleneck: Any = None if memory is None else memory.bottleneck(cfg)
        if is_transformer_xl(cfg):
            share_position_biases(self.modules())
            draw_weights(self, cfg.init_std)

    def build_layer(self, number: int, cfg: TransformerConfig, no_encoder_attn: bool) -> nn.Module:
        """Layer *number* from the bottom, which may be the memory's."""
        layer = super().build_layer(number, cfg, no_encoder_attn)
        return self._recurrent[number].build_layer(cfg) if number in self._recurrent else layer

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """As fairseq's; a stock layer in the place of the memory's own is removed and named."""
        super().upgrade_state_dict_named(state_dict, name)
        if self.memory is None or self.memory.recurrent is None:
            return
        prefix = f"{name}.layers.{self.memory.recurrent}."
        own = self.layers[self.memory.recurrent].state_dict(prefix=prefix)
        found = [key for key in state_dict if key.startswith(prefix)]
        if found and not own.keys() & set(found):
            for key in found:
                del state_dict[key]
            logger.warning(f"left out, as the memory has a layer of its own there: {prefix[:-1]}")

    def build_output_projection(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Module
    ) -> None:
        """As fairseq's; Transformer-XL has a bias for each word."""
        super().build_output_projection(cfg, dictionary, embed_tokens)
        if not is_transformer_xl(cfg):
            return
        if self.adaptive_softmax is not None:
            tied = cfg.tie_adaptive_weights
            bare = tied and isinstance(embed_tokens, UnprojectedAdaptiveInput)
            add_biases(self.adaptive_softmax, projected=not bare)
            return
        output = nn.Linear(*self.output_projection.weight.size()[::-1])
        output.weight = self.output_projection.weight
        self.output_projection = output

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: None = None,
        incremental_state: IncrementalState | None = None,
        features_only: bool = False,
        src_lengths: Tensor | None = None,
        starts: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, list[Any]]]:
        """Logits of the next words (B, T, V); called as fairseq's commands call language models.

        *starts* are (B,) int64 numbers of the first positions, see `StreamMemory`. Without them the
        memory of earlier batches is neither read nor changed.
        """
        x, extra = self.extract_features(
            prev_output_tokens, incremental_state=incremental_state, starts=starts
        )
        return (x if features_only else self.output_layer(x)), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: None = None,
        incremental_state: IncrementalState | None = None,
        starts: Tensor | None = None,
        src_lengths: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, list[Any]]]:
        """The decoder without its output layer; arguments as in `forward`."""
        if self.memory is not None and incremental_state is None and starts is None:
            if prev_output_tokens.size(1) > self.memory.segment:
                return self.read_text(prev_output_tokens, self.memory)
        x = self.embed(prev_output_tokens, incremental_state)
        memory = self.memory if incremental_state is None and starts is not None else None
        recurrent = None if self.memory is None else self.memory.recurrent
        earlier, carried = None, None
        if memory is not None and starts is not None:
            earlier, carried = memory.read(starts, memory.length)
        if self.bottleneck is not None:
            out, carried = self.read_chunks(x, prev_output_tokens, carried, incremental_state)
            if memory is not None and starts is not None:
                memory.keep(starts, [x] * self.num_layers, None, memory.length, carried)
            return self.features(out), {"attn": [None], "inner_states": [x, out]}
        if incremental_state is None:
            remembered = 0 if earlier is None else earlier.size(1)
            padded = F.pad(prev_output_tokens.eq(self.padding_idx), (remembered, 0))
            context = self.segment_context(x, Padding.of(padded), remembered)
        else:
            context = self.step_context(x, prev_output_tokens, incremental_state)
        states = [x]
        for index, layer in enumerate(self.layers):
            if index == recurrent:
                x, carried = self.run(layer, x, carried, context)
            else:
                if earlier is not None:
                    context = replace(context, memory=earlier[index].to(x.dtype))
                x, _, _ = self.run(layer, x, context, False)
            states.append(x)
        if memory is not None and starts is not None:
            memory.keep(starts, states[:-1], earlier, memory.length, carried)
        return self.features(x), {"attn": [None], "inner_states": states}

    def read_text(self, tokens: Tensor, memory: TextMemory) -> tuple[Tensor, dict[str, list[Any]]]:
        """A text by itself, in the segments into which training cuts it.

        Args:
            tokens: (B, T), more than a segment
            memory: of the decoder

        Returns:
            as `extract_features`
        """
        starts, parts = torch.zeros(len(tokens), dtype=torch.int64, device=tokens.device), []
        with memory.kept_aside():
            memory.clear()
            for part in tokens.split(memory.segment, dim=1):
                parts.append(self.extract_features(part, starts=starts))
                starts = starts + part.size(1)
        states = zip(*(extra["inner_states"] for _, extra in parts))
        inner_states = [torch.cat(of_layer) for of_layer in states]
        return torch.cat([x for x, _ in parts], 1), {"attn": [None], "inner_states": inner_states}

    def read_chunks(
        self, x: Tensor, tokens: Tensor, state: Tensor | None, incremental_state: Any
    ) -> tuple[Tensor, Tensor]:
        """The layers with a latent bottleneck.

        Args:
            x: (T, B, C); in incremental decoding the newest position
            tokens: (B, L) all tokens so far
            state: (B, N, C) after the segment before, or None for a new text
            incremental_state: in incremental decoding, else None

        Returns:
            (T, B, C), and the state after it (B, N, C)
        """
        bottleneck = self.bottleneck
        if incremental_state is not None:
            return self.read_step(x, tokens, incremental_state)
        state = bottleneck.initial_state(x) if state is None else state.to(x.dtype)
        paddings, outputs = Padding.of_parts(tokens.eq(self.padding_idx), bottleneck.block), []
        for part, padding in zip(x.split(bottleneck.block), paddings):
            out, state = self.read_chunk(part, padding, state)
            outputs.append(out)
        return connected(outputs, torch.cat(outputs), state), state

    def read_step(self, x: Tensor, tokens: Tensor, incremental_state: Any) -> tuple[Tensor, Tensor]:
        """`read_chunks` for the newest position (1, B, C): the layers keep the chunk's keys."""
        bottleneck, position = self.bottleneck, tokens.size(1) - 1
        known, state = bottleneck.extended(x, incremental_state)
        place = known.size(0) - 1
        padding = Padding.of(tokens[:, position - place :].eq(self.padding_idx))
        context = Context(
            padding=padding,
            mask=additive_mask(None, padding, x.dtype),
            incremental_state=incremental_state,
            position=position,
            kept=place,
        )
        x = x + bottleneck.code(place + 1, x)[-1]
        for index, layer in enumerate(self.layers):
            x, _, _ = self.run(layer, x, context, False)
            x = bottleneck.read(index, x, state)
        known = torch.cat([known[:-1], x])  # the state reads what the layers made of the chunk
        ends = bottleneck.ends_block(position)
        after = bottleneck.write(state, known, padding) if ends else state
        bottleneck.save(known, state, after, position, incremental_state)
        return x, after

    def read_chunk(
        self, x: Tensor, padding: Padding | None, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """All layers for a chunk (T, B, C) with its padding, and the state after it."""
        bottleneck = self.bottleneck
        x = bottleneck.placed(x)
        context = self.segment_context(x, padding, 0)
        for index, layer in enumerate(self.layers):
            x, _, _ = self.run(layer, x, context, False)
            x = self.run(partial(bottleneck.read, index), x, state)
        return x, self.run(bottleneck.write, state, x, padding)

    def segment_context(self, x: Tensor, padding: Padding | None, remembered: int) -> Context:
        """The context of a segment, for the layers.

        Args:
            x: (T, B, C) input of the layers
            padding: of the memory and the segment (B, M + T), or None
            remembered: M, positions in the memory
        """
        reach = None if self.memory is None else self.memory.reach
        future = causal_mask(x.size(0), remembered + x.size(0), x, reach)
        return Context(
            padding=padding,
            mask=additive_mask(future, padding, x.dtype),
            causal=padding is None and not remembered and reach is None,
            future=future,
        )

    def step_context(self, x: Tensor, tokens: Tensor, state: IncrementalState) -> Context:
        """The context of the newest of the positions *tokens* (B, L), for the layers."""
        position = tokens.size(1) - 1
        first = 0 if self.memory is None else self.memory.first_visible(position)
        padding = Padding.of(tokens[:, first:].eq(self.padding_idx))
        return Context(
            padding=padding,
            mask=additive_mask(None, padding, x.dtype),
            incremental_state=state,
            position=position,
            kept=None if self.memory is None else position - first,
        )
