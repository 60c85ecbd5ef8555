"""The log of a training with a memory says how much of the text it reads."""

import logging
from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.tasks.language_modeling import LanguageModelingConfig

from fairseq_recur.tasks.streams import StreamDataset, StreamLanguageModelingTask, Text


def test_the_tokens_that_are_read_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    given = Namespace(**{**vars(LanguageModelingConfig()), "data": None, "tokens_per_sample": 4})
    task: Any = StreamLanguageModelingTask.setup_task(given)
    tokens = torch.arange(100, 134, dtype=torch.int32)
    with caplog.at_level(logging.INFO):
        for whole in (True, False, False):
            data = StreamDataset(Text(tokens, 2, 0, whole), 4)
            made = task.get_batch_iterator(data, max_sentences=3).next_epoch_itr()
            read = sum(batch["ntokens"] for batch in made)
            assert read == (34 if whole else 24)
    said = [record.message for record in caplog.records if "training reads" in record.message]
    assert said == ["training reads 24 of 34 tokens, in 3 streams with segments of 4 tokens"]
