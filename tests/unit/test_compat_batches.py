"""Batches hold every sentence: a lost one is neither translated nor scored."""

from argparse import Namespace
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary, MonolingualDataset, bucket_pad_length_dataset, data_utils
from fairseq.tasks.language_modeling import LanguageModelingTask

from fairseq_recur.errors import ConfigError

LENGTHS = np.array([3 + i % 10 for i in range(20)])


@pytest.mark.parametrize("multiple", [1, 2, 8])
@pytest.mark.parametrize("tokens, sentences", [(500, None), (100, None), (None, 16), (None, 6)])
@pytest.mark.parametrize("as_list", [False, True])
def test_no_sentence_is_lost(multiple: int, tokens: int, sentences: int, as_list: bool) -> None:
    order = np.random.RandomState(0).permutation(20)
    for vector in (LENGTHS[order], None):
        batches = data_utils.batch_by_size(
            order.tolist() if as_list else order,
            lambda i: LENGTHS[i],
            num_tokens_vec=vector,
            max_tokens=tokens,
            max_sentences=sentences,
            required_batch_size_multiple=multiple,
        )
        assert np.concatenate(batches).tolist() == order.tolist()
        for batch in batches[:-1]:  # what --required-batch-size-multiple promises
            assert len(batch) < multiple or len(batch) % multiple == 0 or sentences == 6


@pytest.mark.parametrize("indices", [[], np.array([], dtype=np.int64)])
def test_no_sentence_at_all(indices: Any) -> None:
    with pytest.raises(ConfigError, match="no sentence is left to form batches.* give a greater"):
        data_utils.batch_by_size(indices, lambda i: LENGTHS[i], max_tokens=9)


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


def test_fixed_shapes_are_left_alone() -> None:
    """They drop what does not fill a shape, and that is their purpose."""
    arguments = (np.arange(20), lambda i: LENGTHS[i])
    shapes = {"fixed_shapes": [(8, 15), (4, 15)]}
    found = data_utils.batch_by_size(*arguments, **shapes)
    expected = data_utils.batch_by_size.__wrapped__(*arguments, **shapes)
    assert [list(b) for b in found] == [list(b) for b in expected]


def test_buckets_of_lengths() -> None:
    """Each bucket's length is one of the lengths, and the last one holds all."""
    sizes = np.array([3, 9, 4, 4, 12, 7, 5, 8])
    for module in (data_utils, bucket_pad_length_dataset):
        assert module.get_buckets(sizes, 1).tolist() == [12]
        assert module.get_buckets(sizes, 4).tolist() == [4, 5, 8, 12]
    assert data_utils.get_buckets(np.array([6, 6, 6]), 3).tolist() == [6]
