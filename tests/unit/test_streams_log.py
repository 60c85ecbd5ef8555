"""The log says how a set of text is read, and whether a memory is of use; streams of eval-lm."""

import logging
from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.tasks.language_modeling import LanguageModelingConfig

from fairseq_recur.tasks.streams import StreamDataset, StreamLanguageModelingTask, Text

TOKENS = torch.arange(100, 134, dtype=torch.int32)


@pytest.fixture
def task() -> Any:
    given = {**vars(LanguageModelingConfig()), "data": None, "tokens_per_sample": 4}
    return StreamLanguageModelingTask.setup_task(Namespace(**given))


def test_the_tokens_that_are_read_are_logged_once(
    task: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for whole in (True, False, False):
            data = StreamDataset(Text(TOKENS, 2, 0, whole), 4)
            made = task.get_batch_iterator(data, max_sentences=3).next_epoch_itr()
            read = sum(batch["ntokens"] for batch in made)
            assert read == (34 if whole else 24)
    assert [record.message for record in caplog.records if "streams" in record.message] == [
        "a set of 34 tokens is read in 3 streams with segments of 4 tokens",
        "training reads 24 of 34 tokens, in 3 streams with segments of 4 tokens",
    ]


def test_streams_without_a_use_of_the_memory_are_noticed(
    task: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    data = StreamDataset(Text(TOKENS, 2, 0, True), 4)
    for rows, warnings in ((8, 0), (9, 1), (9, 1)):
        task.get_batch_iterator(data, max_sentences=rows)
        assert len(caplog.records) == warnings
    assert "these streams have 3 tokens, less than a segment" in caplog.text
    task.get_batch_iterator(StreamDataset(Text(TOKENS[:3], 2, 0, True), 4), max_sentences=1)
    assert len(caplog.records) == 1, "a text can be that short"


@pytest.mark.parametrize(
    "given, streams", [({}, 1), ({"batch_size": 3}, 3), ({"max_tokens": 8}, 2)], ids=str
)
def test_eval_lm_reads_one_stream_unless_it_is_told_otherwise(
    task: Any, given: dict[str, int], streams: int
) -> None:
    """fairseq passes its 36,000 tokens if there is neither option."""
    data = StreamDataset(Text(TOKENS, 2, 0, True), 4)
    made = task.eval_lm_dataloader(data, **{"max_tokens": 36_000, **given}, num_workers=0)
    first = next(iter(made))
    assert first["target"].shape == (streams, 4)
