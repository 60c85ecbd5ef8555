"""Running a model on one sentence: its translation, and its attention."""

from collections import defaultdict
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.dataclass.configs import GenerationConfig
from fairseq.tasks import FairseqTask
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_recur.inspection.capture import Maps, captured


@torch.no_grad()
def translate(task: FairseqTask, model: Any, source: Tensor, **options: Any) -> Tensor:
    """Find the best translation with fairseq's generator.

    Args:
        task: the model's task
        model: an encoder-decoder in evaluation mode
        source: (S,) int64, with the end of the sentence
        options: fields of fairseq's GenerationConfig, such as ``beam``

    Returns:
        (T,) int64, with the end of the sentence
    """
    generator = task.build_generator([model], OmegaConf.structured(GenerationConfig(**options)))
    sample = {"net_input": {"src_tokens": source[None], "src_lengths": lengths(source)}}
    return task.inference_step(generator, [model], sample)[0][0]["tokens"]


@torch.no_grad()
def look(model: Any, source: Tensor, target: Tensor, eos: int, step_by_step: bool = False) -> Maps:
    """Capture a model's attention and gates for a source and a target.

    Args:
        model: an encoder-decoder in evaluation mode
        source: (S,) int64, with the end of the sentence
        target: (T,) likewise
        eos: the first input of fairseq's decoders
        step_by_step: decode incrementally instead of the whole target at once

    Returns:
        the maps; row t of the decoder's maps belongs to the prediction of target token t
    """
    inputs = torch.cat([target.new_tensor([eos]), target[:-1]])[None]
    with captured(model) as maps:
        encoded = model.encoder(source[None], src_lengths=lengths(source))
        if not step_by_step:
            model.decoder(inputs, encoder_out=encoded)
            return dict(maps)
        of_encoder = dict(maps)
        rows: dict[Any, list[Tensor]] = defaultdict(list)
        state: dict[str, Any] = {}
        for length in range(1, len(target) + 1):
            maps.clear()
            model.decoder(inputs[:, :length], encoder_out=encoded, incremental_state=state)
            for place, row in maps.items():
                more = len(target) - length if place[0] == "decoder" else 0
                rows[place].append(F.pad(row, (0, more)))
    return {**of_encoder, **{place: torch.cat(row, dim=-2) for place, row in rows.items()}}


def lengths(tokens: Tensor) -> Tensor:
    """The length of one sentence (S,), as fairseq expects it: (1,) int64."""
    return tokens.new_tensor([len(tokens)])
