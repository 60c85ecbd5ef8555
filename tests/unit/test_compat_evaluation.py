"""fairseq-eval-lm: no text is left out, and pieces become words."""

import math
from argparse import Namespace
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary, MonolingualDataset
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq_cli import eval_lm
from torch import Tensor, nn

from fairseq_recur.errors import ConfigError


@pytest.mark.parametrize(("mode", "size", "window", "refused"), [
    ("none", 9, 0, "--tokens-per-sample 9: blocks of up to 9 tokens, of which the model reads 8"),
    ("none", 6, 3, "--tokens-per-sample 9: .* give --tokens-per-sample 8"),
    ("none", 8, 0, None), ("none", 5, 3, None),
    ("complete", 8, 0, None), ("eos", 9, 0, None),  # these blocks are sentences
])  # fmt: skip
def test_eval_lm_leaves_no_block_out(
    mode: str, size: int, window: int, refused: str | None
) -> None:
    """Stock fairseq does, and prints the perplexity of the others."""
    dictionary = Dictionary()
    args = Namespace(tokens_per_sample=size, sample_break_mode=mode)
    task = LanguageModelingTask(args, dictionary)
    sizes = np.array([5, 5 if mode == "none" else 9]) if refused is None else np.array([size])
    data = [torch.full((n,), dictionary.eos()) for n in sizes]
    dataset = MonolingualDataset(data, sizes, dictionary, dictionary, False, False)
    given = {"max_positions": 8, "context_window": window, "batch_size": 1}
    if refused is None:
        assert len(list(task.eval_lm_dataloader(dataset, **given))) == sum(sizes <= 8)
        return
    with pytest.raises(ConfigError, match=refused):
        task.eval_lm_dataloader(dataset, **given)


class Uniform(nn.Module):
    """Gives every word the same probability."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(words))

    def forward(self, src_tokens: Tensor, **_: Any) -> tuple[Tensor, None]:
        return self.scores.expand(*src_tokens.size(), -1), None

    def get_normalized_probs(
        self, out: tuple[Tensor, None], log_probs: bool, sample: Any
    ) -> Tensor:
        return out[0].log_softmax(-1) if log_probs else out[0].softmax(-1)


@pytest.mark.parametrize(("asked", "words"), [(None, 4), ("subword_nmt", 3), ("@@ ", 3)])
def test_eval_lm_joins_pieces(asked: str | None, words: int) -> None:
    """A line of four symbols, its end among them, of which one continues: three words."""
    dictionary = Dictionary()
    line = dictionary.encode_line("un@@ do it").long()[None]
    sample = {
        "id": torch.tensor([0]), "ntokens": 4, "target": line,
        "net_input": {"src_tokens": line, "src_lengths": torch.tensor([4])},
    }  # fmt: skip
    found = eval_lm.eval_lm([Uniform(len(dictionary))], dictionary, [sample], asked)
    assert found["loss"] == pytest.approx(4 / words * math.log2(len(dictionary)))
