"""ROUGE in validation, from generated summaries and summed over batches and processes."""

import logging
from argparse import Namespace
from typing import Any

import torch
from fairseq import utils
from fairseq.logging import metrics
from fairseq.tasks import FairseqTask
from torch import Tensor

from fairseq_recur.scoring.rouge import VARIANTS, Rouge, hide_unknown
from fairseq_recur.tasks.summarization_config import json_option, whole_config
from fairseq_recur.text import codec_of

logger = logging.getLogger(__name__)

COUNT = "_rouge_count"


class RougeEvaluation:
    """Generates and scores summaries like ``fairseq-generate --scoring rouge``.

    Args:
        task: with the options of `SummarizationConfig`.
        model: the model to validate.
    """

    def __init__(self, task: FairseqTask, model: torch.nn.Module) -> None:
        cfg, whole = task.cfg, whole_config(task.cfg)
        self.task = task
        self.rouge = Rouge(separator=cfg.eval_rouge_separator)
        options = json_option("--eval-rouge-args", cfg.eval_rouge_args)
        self.generator = task.build_generator([model], Namespace(**options))
        detok = json_option("--eval-rouge-detok-args", cfg.eval_rouge_detok_args)
        detokenizer = Namespace(tokenizer=cfg.eval_rouge_detok, **detok)
        self.codec = codec_of(whole, "--eval-rouge", detokenizer)

    def score_batch(self, sample: dict[str, Any], model: torch.nn.Module) -> dict[str, float]:
        """Return the number of summaries in a batch and the sum of each variant's F-measures.

        Both can be summed over batches and processes.
        """
        found = self.task.inference_step(self.generator, [model], sample)
        sums: dict[str, float] = {COUNT: len(found), **{f"_{name}": 0.0 for name in VARIANTS}}
        pairs = [
            hide_unknown(self._text(target, escape_unk=True), self._text(of_one[0]["tokens"]))
            for of_one, target in zip(found, self._references(sample))
        ]
        if self.task.cfg.eval_rouge_print_samples:
            logger.info("example reference: %s\nexample hypothesis: %s", *pairs[0])
        for reference, hypothesis in pairs:
            for name, value in self.rouge.score([reference], hypothesis).items():
                sums[f"_{name}"] += value
        return sums

    def _references(self, sample: dict[str, Any]) -> list[Tensor]:
        """Return the summaries of a batch, without the truncation of ``target``."""
        pad = self.task.target_dictionary.pad()
        whole = sample.get("references")
        return whole or [utils.strip_pad(target, pad) for target in sample["target"]]

    def _text(self, tokens: Tensor, escape_unk: bool = False) -> str:
        """Return the detokenized text for ids."""
        pieces = self.task.target_dictionary.string(
            tokens.int().cpu(), self.task.cfg.eval_rouge_remove_bpe, escape_unk=escape_unk
        )
        return self.codec.text(pieces)


def log_rouge(logging_outputs: list[dict[str, Any]]) -> None:
    """Log ROUGE, times 100, from the results of `RougeEvaluation.score_batch`.

    Args:
        logging_outputs: of one or several processes; those of training have no ROUGE.
    """
    sums = {
        key: float(sum(log.get(key, 0) for log in logging_outputs))
        for key in (COUNT, *(f"_{name}" for name in VARIANTS))
    }
    if not sums[COUNT]:
        return
    for key, value in sums.items():
        metrics.log_scalar(key, value)
    for name in VARIANTS:
        mean = lambda meters, key=f"_{name}": 100 * meters[key].sum / meters[COUNT].sum
        metrics.log_derived(name, mean)
