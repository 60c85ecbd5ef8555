"""What the decoder tells its layers in incremental decoding: whose beams the rows are, and where.

fairseq hands a layer the rows of a batch and nothing about them. What depends on the source alone
can be shared by the beams of a sentence if the layer knows which rows are whose.
"""

from typing import Any

import torch
from torch import Tensor

KEY = "decoding"

State = dict[str, dict[str, Any]]


def note_step(incremental_state: State, sentences: Tensor, position: int) -> None:
    """Tell the layers about the step that begins.

    Args:
        incremental_state: fairseq's, of the whole decoder
        sentences: (B,) int64, which sentence each row is a hypothesis for
        position: t, of the token that is being decoded
    """
    incremental_state[KEY] = {"sentences": sentences, "position": position}


def current_step(incremental_state: State) -> tuple[Tensor, int]:
    """The sentences and the position of the step; see `note_step`."""
    step = incremental_state[KEY]
    return step["sentences"], step["position"]


class Beams:
    """Which rows of a batch share a sentence.

    Args:
        sentences: (B,) int64, the sentence of each row
        known: (U,) int64, sorted: the sentences of which something is stored; None: these ones

    Attributes:
        known: (U,) as above
        first: (U',) int64, for each sentence that is there the first of its rows
        stored: int64, the places in *known* to read: one for each group of rows
        size: rows of a group: the beam if every sentence has as many rows, one after the
            other, as fairseq's generator has them; else 1
    """

    def __init__(self, sentences: Tensor, known: Tensor | None = None) -> None:
        self.sentences = sentences
        there, which = torch.unique(sentences, return_inverse=True)
        rows = torch.arange(len(sentences), device=sentences.device)
        self.first = rows.new_full((len(there),), len(rows)).scatter_reduce(0, which, rows, "amin")
        self.known = there if known is None else known
        places = torch.searchsorted(self.known, there)
        self.size = len(rows) // len(there)
        together = torch.arange(len(there), device=rows.device).repeat_interleave(self.size)
        if torch.equal(which, together):
            self.stored = places
        else:
            self.size, self.stored = 1, places[which]
