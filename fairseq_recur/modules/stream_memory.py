"""Memories over batches whose row r continues row r of the batch before."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.distributed import utils as distributed_utils
from torch import Tensor, nn

from fairseq_recur.modules.layers import between_graphs
from fairseq_recur.modules.options import option


class StreamMemory(nn.Module):
    """What the layers of a stack read in earlier batches (Dai et al. 2019, section 3.2).

    Positions have numbers, which continue within a stream and jump between streams. A memory holds
    what the layers read at the positions before a batch. It is used if all rows of the batch
    begin within it or right after it, all at the same place. Else it is empty: at the start of an
    epoch or of another set, after a gap, with other streams, and if the batches are shuffled.

    Training has a memory of its own, and evaluation another. Neither is part of a model's state,
    but that of training joins it where a checkpoint is saved to resume from, see `saved`. No
    gradient flows into a memory.

    Args:
        layers: number of layers
    """

    starts: Tensor
    states: Tensor
    carried: Tensor

    rows: ClassVar[dict[str, int]] = {"starts": 0, "states": 2, "carried": 0}
    """What is held, by name, and its dimension of rows; *carried* is empty without recurrence."""

    in_state = False
    """Whether it is part of the model's state."""

    recurrent: int | None = None
    """The layer that passes on a state in place of what it has read, or None."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = layers
        self.register_buffer("starts", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("states", torch.zeros(layers, 0, 0, 0))
        self.register_buffer("carried", torch.zeros(0, 0, 0))
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
        held, rows = self.held(), len(starts)
        # A checkpoint has the rows of all processes; those of this one are somewhere in it.
        groups = len(held["starts"]) // rows if held and rows else 0
        if not groups or held["states"].size(0) != self.layers:  # some were dropped
            return None
        offsets = starts - held["starts"][: groups * rows].view(groups, rows)
        ranges = torch.stack([offsets.amin(1), offsets.amax(1)], dim=1)
        for group, (least, most) in enumerate(ranges.tolist()):  # the one wait for the device
            if least == most and 0 <= least <= held["states"].size(1):
                return group * rows, least
        return None

    @between_graphs
    def read(self, starts: Tensor, length: int) -> tuple[Tensor | None, Tensor | None]:
        """What is known right before the rows of a batch.

        Args:
            starts: (B,) int64 numbers of the first positions
            length: the most positions to return

        Returns:
            what the layers read there, (layers, M, B, C), or None where nothing continues; and the
            state that a recurrent part has passed on, (B, N, C), or None
        """
        found = self.place(starts)
        if found is None:
            return None, None
        (first, end), held = found, self.held()
        rows, size = slice(first, first + len(starts)), held["states"].size(1)
        earlier = held["states"][:, max(0, end - length) : end, rows] if end and length else None
        return earlier, held["carried"][rows] if len(held["carried"]) and end == size else None

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
            earlier: (layers, M, B, C), what `read` gave for the same batch, or None
            length: positions to keep
            carried: (B, N, C), the state of a recurrent part after the batch, or None
        """
        fresh = inputs[0].size(0)
        states = torch.stack([x[max(0, fresh - length) :].detach() for x in inputs])
        if earlier is not None and fresh < length:
            states = torch.cat([earlier[:, max(0, earlier.size(1) + fresh - length) :], states], 1)
        held = {
            "starts": starts + (inputs[0].size(0) - states.size(1)),
            "states": states,
            "carried": states.new_empty(0, 0, 0) if carried is None else carried.detach(),
        }
        if not self.training:
            self.evaluation = held
            return
        self.restore(held)

    def clear(self) -> None:
        """Forget what training and evaluation have read."""
        self.starts = self.starts.new_empty(0)
        self.states = self.states.new_empty(self.layers, 0, 0, 0)
        self.carried = self.carried.new_empty(0, 0, 0)
        self.evaluation = {}

    @contextmanager
    def kept_aside(self) -> Iterator[None]:
        """Within this context, the memory may change; afterwards it is as before."""
        own, evaluation = dict(self.named_buffers()), self.evaluation
        try:
            yield
        finally:
            self.evaluation = evaluation
            self.restore(own)

    def restore(self, rows: dict[str, Tensor]) -> None:
        """Set the memory of training to earlier contents, given by the names of its buffers."""
        for name, value in rows.items():
            setattr(self, name, value)

    @contextmanager
    def saved(self, group: Any) -> Iterator[None]:
        """Within this context, be part of the model's state, with the rows of all processes.

        If the processes have different sizes of batches, each keeps its own.

        Args:
            group: of the processes, or None
        """
        with self.kept_aside():
            if group is not None:
                self._gather(group)
            self.in_state = True
            try:
                yield
            finally:
                self.in_state = False

    def _gather(self, group: Any) -> None:
        """Hold the rows of all processes, in the order of their ranks."""
        sizes = torch.tensor(self.states.size(), device=self.starts.device)
        everyone = distributed_utils.all_gather(sizes, group)
        if not all(torch.equal(other, sizes) for other in everyone) or not len(self.starts):
            return
        for name, rows in self.rows.items():
            own = getattr(self, name)
            all_rows = [own] * len(everyone)  # nothing to gather if it is empty
            if own.numel():
                all_rows = distributed_utils.all_gather(own.contiguous(), group)
            setattr(self, name, torch.cat(all_rows, dim=rows))

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Any:
        """As torch's, with what evaluation has read, such as for another device."""
        self.evaluation = {name: fn(value) for name, value in self.evaluation.items()}
        return super()._apply(fn, *args, **kwargs)  # type: ignore[no-untyped-call]

    def _save_to_state_dict(self, *args: Any) -> None:
        """As torch's, in a checkpoint to resume from."""
        if self.in_state:
            super()._save_to_state_dict(*args)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """As torch's, with tensors of any size; without them it is empty."""
        self.clear()
        for name in self.rows:
            own = getattr(self, name)
            given = state_dict.setdefault(prefix + name, own)
            setattr(self, name, own.new_empty(given.size()))  # on the model's device
        super()._load_from_state_dict(state_dict, prefix, *args)


def is_memory(name: str) -> bool:
    """Whether a tensor of a checkpoint belongs to a memory, and is not a weight.

    A memory is the attribute ``memory`` of an encoder or a decoder.
    """
    return name.split(".")[-2:-1] == ["memory"] and name.split(".")[-1] in StreamMemory.rows


class SeriesMemory(StreamMemory):
    """The memory of a forecaster's encoder; a position is a row of the series."""

    @dataclass
    class Options:
        """The option that chooses it."""

        encoder_memory: ChoiceEnum(["none", "xl"]) = option(  # type: ignore[valid-type]
            "none",
            "what the encoder's self-attention reads besides its window: nothing, or what each "
            "layer read in the batch before, if its windows follow in time (xl, Dai et al. 2019)",
        )

        @staticmethod
        def problems(cfg: Any) -> Iterator[str]:
            """What is wrong with these options of a model, flat, one message each."""
            if cfg.encoder_memory != "none" and cfg.encoder_layers < 1:
                yield (
                    f"--encoder-layers {cfg.encoder_layers}: a memory needs at least one layer "
                    "that it keeps something for; give 1 or more, or --encoder-memory none"
                )
