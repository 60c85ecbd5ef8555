"""Batches hold every sentence: a lost one is neither translated nor scored."""

from typing import Any

import numpy as np
import pytest
from fairseq.data import bucket_pad_length_dataset, data_utils

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
