"""What fairseq's BART checkpoints have beside the weights of a Transformer."""

import logging

from fairseq.models import BaseFairseqModel
from torch import Tensor

logger = logging.getLogger(__name__)

TABLES = (
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "decoder.output_projection.weight",
)


def leave_out_what_is_barts_alone(state_dict: dict[str, Tensor], model: BaseFairseqModel) -> None:
    """Remove classification heads and the row of <mask>, as fairseq's own BART does.

    The row goes if the model has BART's embeddings, learned positions with a norm, and one
    word less than the checkpoint: it was the last word of the pre-training alone. What is
    removed is named in the log.

    Args:
        state_dict: a checkpoint's weights, changed in place
        model: an encoder-decoder
    """
    heads = [name for name in state_dict if name.startswith("classification_heads.")]
    for name in heads:
        del state_dict[name]
    if heads:
        logger.warning(f"left out, as the model has no such part: {', '.join(heads)}")
    cfg, words = model.encoder.cfg, model.encoder.dictionary
    table = state_dict.get(TABLES[0])
    if not (cfg.layernorm_embedding and cfg.encoder.learned_pos) or table is None:
        return
    if len(table) == len(words) + 1 and "<mask>" not in words:
        for name in TABLES:
            if name in state_dict:
                state_dict[name] = state_dict[name][:-1]
        logger.warning("left out: the embedding of <mask>, which the dictionary does not have")
