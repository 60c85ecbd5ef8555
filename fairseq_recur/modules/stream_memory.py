"""Memories over batches whose row r continues row r of the batch before."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.distributed import utils as distributed_utils
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

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

    rows: ClassVar[dict[str, int]] = {"starts": 0, "states": 2}
    """What is held, by name, and its dimension of rows."""

    recurrent: int | None = None
    """The layer that passes on a state in place of what it has read, or None."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = layers
        self.register_buffer("starts", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("states", torch.zeros(layers, 0, 0, 0))
        self.evaluation: dict[str, Tensor] = {}

    def held(self) -> dict[str, Tensor]:
        """What is held, by name: that of training, or of evaluation; empty before a batch."""
        if not self.training:
            return self.evaluation
        return {name: getattr(self, name) for name in self.rows}

    def place(self, starts: Tensor) -> tuple[int, int] | None:
        """Where rows begin: the number of the first one, and positions held before them.

        Args:
            starts: (B,) int64 numbers of the first positions

        Returns:
            None where nothing continues
        """
        held = self.held()
        if not held or held["states"].size(0) != self.layers:  # some were dropped
            return None
        known, rows = held["starts"], len(starts)
        # A checkpoint has the rows of all processes; those of this one are somewhere in it.
        for first in range(0, len(known) - rows + 1, max(1, rows)):
            places = set((starts - known[first : first + rows]).tolist())
            if len(places) == 1 and 0 <= min(places) <= held["states"].size(1):
                return first, min(places)
        return None

    def before(self, starts: Tensor, length: int) -> Tensor | None:
        """What the layers read right before the rows of a batch.

        Args:
            starts: (B,) int64 numbers of the first positions
            length: the most positions to return

        Returns:
            (layers, M, B, C), or None where nothing continues
        """
        found = self.place(starts)
        if found is None or not found[1] or not length:
            return None
        first, end = found
        rows = slice(first, first + len(starts))
        return self.held()["states"][:, max(0, end - length) : end, rows]

    def state(self, starts: Tensor) -> Tensor | None:
        """The state that a recurrent part has passed on to the rows of a batch, or None.

        Args:
            starts: (B,) int64 numbers of the first positions

        Returns:
            (B, N, C), or None where nothing continues
        """
        found = self.place(starts) if "carried" in self.rows else None
        if found is None or found[1] != self.held()["states"].size(1):
            return None
        return self.held()["carried"][found[0] : found[0] + len(starts)]

    def keep(
        self,
        starts: Tensor,
        inputs: list[Tensor],
        earlier: Tensor | None,
        length: int,
        carried: Tensor | None = None,
    ) -> None:
        """Store what the layers have read.

        Args:
            starts: (B,) int64 numbers of the first positions
            inputs: of the layers, from the bottom, (T, B, C) each
            earlier: (layers, M, B, C), what `before` gave for the same batch, or None
            length: positions to keep
            carried: (B, N, C), the state of a recurrent part after the batch, or None
        """
        read = inputs if earlier is None else [torch.cat(x) for x in zip(earlier, inputs)]
        first = max(0, read[0].size(0) - length)
        states = torch.stack([x[first:] for x in read]).detach()
        held = {"starts": starts + (inputs[0].size(0) - states.size(1)), "states": states}
        if carried is not None:
            held["carried"] = carried.detach()
        if not self.training:
            self.evaluation = held
            return
        for name, value in held.items():
            setattr(self, name, value)

    @contextmanager
    def of_all_processes(self, group: Any) -> Iterator[None]:
        """Hold the rows of all processes, in their order, for the time in which it is saved.

        If the processes have different sizes of batches, each keeps its own.
        """
        own = {name: getattr(self, name) for name in self.rows}
        sizes = torch.tensor(self.states.size(), device=self.starts.device)
        everyone = distributed_utils.all_gather(sizes, group)
        if all(torch.equal(other, sizes) for other in everyone) and len(self.starts):
            for name, rows in self.rows.items():
                all_rows = [own[name]] * len(everyone)  # as it is where nothing is in it
                if own[name].numel():
                    all_rows = distributed_utils.all_gather(own[name].contiguous(), group)
                setattr(self, name, torch.cat(all_rows, dim=rows))
        try:
            yield
        finally:
            for name, value in own.items():
                setattr(self, name, value)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """As torch's, with tensors of any size."""
        for name in self.rows:
            if prefix + name in state_dict:
                size = state_dict[prefix + name].size()
                setattr(self, name, getattr(self, name).new_empty(size))  # on the model's device
        super()._load_from_state_dict(state_dict, prefix, *args)


def leave_to_each_process(model: nn.Module) -> None:
    """Keep ``--broadcast-buffers`` from replacing a process's memory by that of the first."""
    names = [
        f"{place}.{name}"
        for place, module in model.named_modules()
        if isinstance(module, StreamMemory)
        for name in module.rows
    ]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)


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

    of_positions: ClassVar[bool] = True
    """Whether attention maps read what it keeps."""

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(cfg.decoder.layers)
        self.length, self.segment = int(cfg.memory_length), int(cfg.tokens_per_sample)
        self.reach = reach(cfg, "decoder")

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """What is wrong with the options of this part together, one message each."""
        yield from cls.problems_of_host(cfg)
        if cfg.memory_same_length and not cfg.memory_length:
            yield (
                "--memory-same-length with --memory-length 0 lets a position see nothing; give a "
                "longer memory"
            )

    @staticmethod
    def problems_of_host(cfg: Any) -> Iterator[str]:
        """What every memory needs of the model around it."""
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

    def build_layer(self, cfg: TransformerConfig) -> nn.Module:
        """The layer `recurrent`, of which this memory has none."""
        raise NotImplementedError(type(self).__name__)

    def bottleneck(self, cfg: TransformerConfig) -> nn.Module | None:
        """What the layers read and write between chunks, or None."""
        return None

    def first_visible(self, position: int) -> int:
        """The first position that a position sees, if the text is cut as in training."""
        if self.reach is not None:
            return max(0, position - self.reach + 1)
        return max(0, position // self.segment * self.segment - self.length)
