"""The memory of a Transformer-XL over batches whose windows follow each other in time."""

from dataclasses import dataclass
from typing import Any

import torch
from fairseq.dataclass import ChoiceEnum
from torch import Tensor, nn

from fairseq_recur.modules.options import option


class SeriesMemory(nn.Module):
    """What the layers of an encoder read in the last batch (Dai et al. 2019, section 3.2).

    Row r of a batch continues row r of the batch before, if all of its windows begin the same
    number of rows later, at least one and at most a window. Then the first rows of the earlier
    windows are the rows before the present ones. Else the memory is empty: at the start of an
    epoch or of another split, and after a gap.

    Training has a memory of its own, which is saved with the model's weights; that of evaluation
    is not. No gradient flows into a memory.

    Args:
        layers: number of layers
    """

    @dataclass
    class Options:
        """The option that chooses it."""

        encoder_memory: ChoiceEnum(["none", "xl"]) = option(  # type: ignore[valid-type]
            "none",
            "what the encoder's self-attention reads beside its window: nothing, or what each "
            "layer read in the batch before, if its windows follow in time (xl, Dai et al. 2019)",
        )

    starts: Tensor
    states: Tensor

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.register_buffer("starts", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("states", torch.zeros(layers, 0, 0, 0))
        self.evaluation: tuple[Tensor, Tensor] | None = None

    def before(self, starts: Tensor, length: int) -> Tensor | None:
        """What the layers read right before windows.

        Args:
            starts: (B,) numbers of the windows
            length: of a window

        Returns:
            (layers, M, B, C), or None where nothing continues
        """
        known, states = self.starts, self.states
        if not self.training:
            known, states = self.evaluation or (known[:0], states)
        if not 0 < len(starts) <= len(known):
            return None
        shifts = (starts - known[: len(starts)]).tolist()
        if len(set(shifts)) > 1 or not 1 <= shifts[0] <= length or states.size(1) != length:
            return None
        return states[:, : shifts[0], : len(starts)]

    def keep(self, starts: Tensor, inputs: list[Tensor]) -> None:
        """Store the layers' inputs (L, B, C), the bottom layer's first."""
        states = torch.stack(inputs).detach()
        if self.training:
            self.starts, self.states = starts.clone(), states
        else:
            self.evaluation = starts.clone(), states

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """As torch's, with tensors of any size."""
        for name in ("starts", "states"):
            if prefix + name in state_dict:
                setattr(self, name, torch.empty_like(state_dict[prefix + name]))
        super()._load_from_state_dict(state_dict, prefix, *args)
