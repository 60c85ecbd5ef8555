"""Memories over batches whose row r continues row r of the batch before."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.distributed import utils as distributed_utils
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_recur.modules.options import option


class StreamMemory(nn.Module):
    """What the layers of a stack read in earlier batches (Dai et al. 2019, section 3.2).

    A position has a number, which goes on within a stream and jumps between streams. A memory holds
    what the layers read at the positions before a batch. It is used if all rows of the batch
    begin within it or right after it, all at the same place. Else it is empty: at the start of an
    epoch or of another set, after a gap, with other streams, and if the batches are shuffled.

    Training has a memory of its own, which is saved with the model's weights; that of evaluation
    is not. No gradient flows into a memory.

    Args:
        layers: number of layers
    """

    starts: Tensor
    states: Tensor

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = layers
        self.register_buffer("starts", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("states", torch.zeros(layers, 0, 0, 0))
        self.evaluation: tuple[Tensor, Tensor] | None = None

    def before(self, starts: Tensor, length: int) -> Tensor | None:
        """What the layers read right before the rows of a batch.

        Args:
            starts: (B,) int64 numbers of the first positions
            length: the most positions to return

        Returns:
            (layers, M, B, C), or None where nothing continues
        """
        known, states = self.starts, self.states
        if not self.training:
            known, states = self.evaluation or (known[:0], states)
        rows, kept = len(starts), states.size(1)
        if states.size(0) != self.layers:  # some layers of a checkpoint were dropped
            return None
        # A checkpoint has the rows of all processes; those of this one are somewhere in it.
        for first in range(0, len(known) - rows + 1, max(1, rows)):
            places = (starts - known[first : first + rows]).tolist()
            if len(set(places)) == 1 and 1 <= places[0] <= kept:
                end = places[0]
                return states[:, max(0, end - length) : end, first : first + rows]
        return None

    def keep(
        self, starts: Tensor, inputs: list[Tensor], earlier: Tensor | None, length: int
    ) -> None:
        """Store what the layers have read.

        Args:
            starts: (B,) int64 numbers of the first positions
            inputs: of the layers, from the bottom, (T, B, C) each
            earlier: (layers, M, B, C), what `before` gave for the same batch, or None
            length: positions to keep
        """
        read = inputs if earlier is None else [torch.cat(x) for x in zip(earlier, inputs)]
        first = max(0, read[0].size(0) - length)
        states = torch.stack([x[first:] for x in read]).detach()
        starts = starts + (inputs[0].size(0) - states.size(1))
        if self.training:
            self.starts, self.states = starts, states
        else:
            self.evaluation = starts, states

    @contextmanager
    def of_all_processes(self, group: Any) -> Iterator[None]:
        """Hold the rows of all processes, in their order, for the time in which it is saved.

        If the processes have different sizes of batches, each keeps its own.
        """
        own = self.starts, self.states
        sizes = torch.tensor(self.states.size(), device=self.starts.device)
        everyone = distributed_utils.all_gather(sizes, group)
        if all(torch.equal(other, sizes) for other in everyone) and self.states.numel():
            starts, states = (distributed_utils.all_gather(x.contiguous(), group) for x in own)
            self.starts, self.states = torch.cat(starts), torch.cat(states, dim=2)
        try:
            yield
        finally:
            self.starts, self.states = own

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """As torch's, with tensors of any size."""
        for name in ("starts", "states"):
            if prefix + name in state_dict:
                setattr(self, name, torch.empty_like(state_dict[prefix + name]))
        super()._load_from_state_dict(state_dict, prefix, *args)


class SeriesMemory(StreamMemory):
    """The memory of a forecaster's encoder; a position is a row of the series."""

    @dataclass
    class Options:
        """The option that chooses it."""

        encoder_memory: ChoiceEnum(["none", "xl"]) = option(  # type: ignore[valid-type]
            "none",
            "what the encoder's self-attention reads beside its window: nothing, or what each "
            "layer read in the batch before, if its windows follow in time (xl, Dai et al. 2019)",
        )


def reach(cfg: Any, side: str) -> int | None:
    """The number of positions that a position sees, itself included; None without a limit."""
    limited = side == "decoder" and getattr(cfg, "memory_same_length", False)
    return int(cfg.memory_length) if limited else None


class SegmentMemory(StreamMemory):
    """Transformer-XL's memory of a language model: the last positions before a segment of text.

    Args:
        cfg: the host's configuration
    """

    @dataclass
    class Options:
        """Of the memory's length."""

        memory_length: int = option(
            512, "positions before a segment whose states are kept in the memory"
        )
        memory_same_length: bool = option(
            False,
            "each position sees as many positions as the memory is long, itself included, also "
            "within its segment; by default it sees all of its segment and all of the memory",
        )

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(cfg.decoder.layers)
        self.length, self.segment = int(cfg.memory_length), int(cfg.tokens_per_sample)
        self.reach = reach(cfg, "decoder")

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """What is wrong with the options of this part together, one message each."""
        if cfg.memory_same_length and not cfg.memory_length:
            yield (
                "--memory-same-length with --memory-length 0 lets a position see nothing; give a "
                "longer memory"
            )
        if cfg.decoder_layerdrop > 0:
            yield (
                f"--decoder-layerdrop {cfg.decoder_layerdrop}: a layer that was dropped leaves no "
                "states for the memory; set it to 0, or --decoder-memory none"
            )
        if not cfg.no_token_positional_embeddings:
            yield (
                "--decoder-memory needs --no-token-positional-embeddings: in the memory and in the "
                "segment the same positions would occur; --decoder-self-attention xl has relative "
                "ones"
            )

    def first_visible(self, position: int) -> int:
        """The first position that a position sees, if the text is cut as in training."""
        if self.reach is not None:
            return max(0, position - self.reach + 1)
        return max(0, position // self.segment * self.segment - self.length)
