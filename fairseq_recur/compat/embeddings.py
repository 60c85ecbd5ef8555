"""Embeddings of several widths, or of characters, in mixed precision."""

from typing import Any

import torch

from fairseq_recur.compat.registry import Function, mend, source_of

ADAPTIVE = "fairseq.modules.adaptive_input:AdaptiveInput.forward"
CHARACTERS = "fairseq.modules.character_token_embedder:CharacterTokenEmbedder.forward"

of_one_precision = mend(
    "embeddings and amp",
    reason="--adaptive-input and --character-embeddings put vectors of the autocast's precision "
    "into tensors of float32 or the reverse, which torch refuses, so that --amp ends with an error",
    until="a fairseq whose two modules have one dtype under autocast",
    needed=lambda: (
        "result[mask] = self.embeddings" in source_of(ADAPTIVE)
        or "word_embs[eos] = self.symbol_embeddings" in source_of(CHARACTERS)
    ),
)


@of_one_precision.patch(ADAPTIVE)
@of_one_precision.patch(CHARACTERS)
def embed(forward: Function, self: Any, input: torch.Tensor) -> Any:
    """Compute the embeddings in the precision of their weights."""
    if input.is_meta:  # `fairseq-recur plan` computes shapes there; torch.autocast refuses it
        return forward(self, input)
    with torch.autocast(input.device.type, enabled=False):
        return forward(self, input)
