"""The sentence representations of trained encoders (Hao et al. 2019, "Linguistic Analyses").

e is the mean of the top layer of the Transformer encoder over the tokens of a sentence. r is the
mean of the top layer of the recurrence encoder: over the tokens or, for an attentive recurrent
network, over its R steps. The end-of-sentence token is included, because the encoders write to it
and the decoder reads it; padding is not. If the encoder outputs are joined before the decoder
reads them (the multi-column encoder), e is the mean of the joined output and there is no r.
Nothing is trained here.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fairseq.data.data_utils import batch_by_size
from fairseq.models.transformer import TransformerEncoderBase
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import TranslationTask
from torch import Tensor, nn
from tqdm import tqdm

from fairseq_recur.errors import ConfigError
from fairseq_recur.loading.models import load
from fairseq_recur.ops.padding import masked_mean
from fairseq_recur.text import Codec, Text


class SentenceEncoder:
    """The frozen encoders of one model.

    Args:
        model: has a Transformer encoder and, optionally, a recurrence encoder
        task: the task that the model was trained on, with its source dictionary
        codec: divides a sentence into its subwords
        device: where to compute
        max_tokens: subwords per batch, including padding

    Attributes:
        has_recurrence: whether the output of a recurrence encoder is available separately, as r
    """

    def __init__(
        self,
        model: nn.Module,
        task: FairseqTask,
        codec: Codec,
        device: torch.device,
        max_tokens: int,
    ) -> None:
        encoder: Any = model.encoder
        self.encoder = encoder.to(device).float().eval().requires_grad_(False)
        self.task, self.device = task, device
        self.text = Text(task.source_dictionary, codec)
        self.max_tokens = max_tokens
        self.max_positions = int(self.encoder.max_positions())
        end = torch.tensor([[task.source_dictionary.eos()]], device=device)
        self.has_recurrence = len(self.means(end)) > 1

    def tokens(self, sentence: str) -> Tensor:
        """Return the token numbers of a sentence, end-of-sentence included: (S,) int64."""
        return self.text.encode(sentence)

    def check(self, sentences: Sequence[str]) -> float:
        """Return the share of tokens that are not in the dictionary.

        Raises:
            ConfigError: a sentence is too long for the model
        """
        unknown = total = 0
        longest = self.max_positions - len(getattr(self.task, "prefix", None) or [])
        for sentence in sentences:
            tokens = self.tokens(sentence)
            if len(tokens) > longest:
                raise ConfigError(
                    f"a sentence has {len(tokens)} subwords, but the model reads at most "
                    f"{longest}; shorten or remove it: {sentence[:60]} ..."
                )
            unknown += int(tokens.eq(self.task.source_dictionary.unk()).sum())
            total += len(tokens)
        return unknown / max(total, 1)

    @torch.no_grad()
    def represent(self, sentences: Sequence[str], progress: str = "") -> tuple[Tensor, ...]:
        """Compute (e,), or (e, r) if there is an r, in the order of the sentences.

        Args:
            sentences: N sentences, words separated by spaces
            progress: label of the progress bar

        Returns:
            e (N, C) and r (N, 2C or C), float32, on the device
        """
        tokens = [self.tokens(sentence) for sentence in sentences]
        lengths = np.array([len(t) for t in tokens], dtype=np.int64)
        dataset = self.task.build_dataset_for_inference(tokens, lengths)
        order = np.argsort(lengths, kind="stable")  # similar lengths need little padding
        limit = max(self.max_tokens, int(lengths.max()))
        batches = batch_by_size(order, lambda i: lengths[i], max_tokens=limit)
        results: list[Tensor] = []
        with tqdm(total=len(tokens), desc=progress, unit=" sentences", disable=None) as bar:
            for batch in batches:
                sample = dataset.collater([dataset[int(i)] for i in batch])
                means = self.means(sample["net_input"]["src_tokens"].to(self.device))
                if not results:
                    results = [m.new_empty(len(tokens), m.size(1)) for m in means]
                for result, mean in zip(results, means):
                    result[sample["id"].to(self.device)] = mean
                bar.update(len(batch))
        return tuple(results)

    @torch.no_grad()
    def means(self, src_tokens: Tensor) -> tuple[Tensor, ...]:
        """Compute e (B, C), and r (B, 2C or C) if there is one, of padded tokens (B, S)."""
        mask = src_tokens.eq(self.encoder.padding_idx)
        out = self.encoder(src_tokens, src_lengths=(~mask).sum(dim=1))
        means = [masked_mean(out["encoder_out"][0].transpose(0, 1), mask)]
        if "recurrence_out" in out:
            states = out["recurrence_out"][0].transpose(0, 1)
            masks = out["recurrence_padding_mask"]  # empty if the states are steps
            means.append(masked_mean(states, masks[0] if masks else None))
        return tuple(means)


def load_encoder(
    path: str, data: str | None, codec: Codec, device: torch.device, max_tokens: int
) -> SentenceEncoder:
    """Load the encoders of a checkpoint.

    Args:
        path: of the checkpoint, or of the folder of its training
        data: folder with the dictionaries; None to look where `from_pretrained` does
        codec: divides a sentence into its subwords
        device: where to compute
        max_tokens: subwords per batch, including padding

    Raises:
        CheckpointError: not a checkpoint, or one that does not fit the dictionaries
        ConfigError: there are no dictionaries, or the model has no Transformer encoder
    """
    found = load(path, data=data, kinds=(TranslationTask,))
    model = found.models[0]
    if not isinstance(getattr(model, "encoder", None), TransformerEncoderBase):
        raise ConfigError(
            f"{path}: a {type(model).__name__} has no Transformer encoder; expected an "
            "encoder-decoder of this plug-in or fairseq's transformer"
        )
    return SentenceEncoder(model, found.task, codec, device, max_tokens)
