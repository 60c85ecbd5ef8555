"""The flags of ``--task summarization``, and the checks for conflicts among them."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq import utils
from fairseq.data import data_utils
from fairseq.data.encoders import TOKENIZER_REGISTRY
from fairseq.data.indexed_dataset import dataset_exists
from fairseq.tasks.translation import TranslationConfig
from omegaconf import DictConfig

from fairseq_recur.errors import ConfigError
from fairseq_recur.modules.options import flag, option
from fairseq_recur.scoring.rouge import VARIANTS
from fairseq_recur.scoring.sentences import SEPARATOR
from fairseq_recur.search import search_options
from fairseq_recur.text import section

OF_ROUGE = (
    "eval_rouge_remove_bpe", "eval_rouge_detok", "eval_rouge_detok_args", "eval_rouge_separator",
    "eval_rouge_print_samples",
)  # fmt: skip
"""Options that act on the summaries of a validation. Those of --eval-rouge-args outlive it."""


@dataclass
class SummarizationConfig(TranslationConfig):
    """The flags of fairseq's task ``translation``, and those for summaries."""

    source_prefix: Optional[str] = option(  # noqa: UP045
        None,
        "text before every source, such as 'summarize: '; encoded with --tokenizer "
        "and --bpe if given. Generation takes it from the checkpoint",
    )
    truncate_target: bool = option(
        False,
        "truncate summaries for training to max-target-positions; ROUGE compares with whole ones",
    )
    eval_rouge: bool = option(False, "generate in validation and log ROUGE")
    eval_rouge_args: str = option(
        "{}",
        "generation options for --eval-rouge as JSON, e.g. "
        '\'{"beam": 4, "lenpen": 2, "min_len": 55, "max_len_b": 140}\'',
    )
    eval_rouge_remove_bpe: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata={
            "help": "remove BPE before computing ROUGE: '@@ ', sentencepiece, ...",
            "argparse_const": "@@ ",
        },
    )
    eval_rouge_detok: str = option(
        "space",
        "detokenizer for --eval-rouge, e.g. moses; space for none, or for the one of "
        "--tokenizer if given",
    )
    eval_rouge_detok_args: str = option("{}", "options of the detokenizer as JSON")
    eval_rouge_separator: str = option(
        SEPARATOR, "mark between sentences, like --rouge-separator of generate"
    )
    eval_rouge_print_samples: bool = option(False, "log one summary and its reference per batch")


def whole_config(cfg: Any) -> DictConfig | None:
    """Return the command's configuration, which contains the task's, or None without one."""
    whole = cfg._get_parent() if isinstance(cfg, DictConfig) else None
    return whole if isinstance(whole, DictConfig) else None


def json_option(flag: str, text: str | None) -> dict[str, Any]:
    """Read the options in a flag; raise ValueError unless it is a JSON object."""
    try:
        options = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f'{flag} {text}: not JSON ({error}); expected an object such as {{"beam": 4}}'
        ) from error
    if not isinstance(options, dict):
        raise ValueError(f'{flag} {text}: expected a JSON object such as {{"beam": 4}}')
    return options


def training_problems(cfg: SummarizationConfig) -> list[str]:
    """Return the problems of the options of a training, except for the source prefix."""
    whole = whole_config(cfg)
    found = []
    if cfg.load_alignments:
        found.append("--load-alignments: summaries have no word alignments; leave it out")
    if whole is not None:
        found += _checkpoint_metric_problems(cfg, whole)
    found += _generation_problems(cfg)  # `summarize` reads them from the checkpoint
    if not cfg.eval_rouge:
        found += _without_effect(cfg)
    else:
        found += _decoding_problems(cfg, whole)
        if whole is not None:
            found += _validation_problems(cfg, whole)
    return found


def _checkpoint_metric_problems(cfg: SummarizationConfig, whole: DictConfig) -> Iterator[str]:
    """Check that the best checkpoint is chosen by a ROUGE that is computed and maximized."""
    metric = whole.checkpoint.best_checkpoint_metric
    if not metric.lower().startswith("rouge"):
        return
    if metric not in VARIANTS:
        yield f"--best-checkpoint-metric {metric}: expected one of {', '.join(VARIANTS)}"
    if not cfg.eval_rouge:
        yield f"--best-checkpoint-metric {metric} needs --eval-rouge"
    if not whole.checkpoint.maximize_best_checkpoint_metric:
        yield (
            f"--best-checkpoint-metric {metric} needs --maximize-best-checkpoint-metric, "
            "without which the checkpoint with the lowest value is kept"
        )


def _without_effect(cfg: SummarizationConfig) -> Iterator[str]:
    """Report options of the summaries in a validation that has none."""
    for name in OF_ROUGE:
        if getattr(cfg, name) != SummarizationConfig.__dataclass_fields__[name].default:
            yield f"{flag(name)} has no effect without --eval-rouge; give it, or leave this out"


def _generation_problems(cfg: SummarizationConfig) -> Iterator[str]:
    """Check --eval-rouge-args against fairseq's search options."""
    try:
        options = json_option("--eval-rouge-args", cfg.eval_rouge_args)
    except ValueError as error:
        yield str(error)
        return
    if cfg.max_target_positions < 2:
        yield (
            f"--max-target-positions {cfg.max_target_positions}: expected at least 2, for a word "
            "and the end of the summary"
        )
        return
    try:
        search_options(options, 1, cfg.max_source_positions, cfg.max_target_positions)
    except ConfigError as error:
        yield f"--eval-rouge-args: {error}"


def _decoding_problems(cfg: SummarizationConfig, whole: DictConfig | None) -> Iterator[str]:
    """Check that summaries are detokenized exactly once, by a known detokenizer."""
    try:
        json_option("--eval-rouge-detok-args", cfg.eval_rouge_detok_args)
    except ValueError as error:
        yield str(error)
    if cfg.eval_rouge_detok not in TOKENIZER_REGISTRY:
        yield (
            f"--eval-rouge-detok {cfg.eval_rouge_detok}: expected one of "
            f"{', '.join(sorted(TOKENIZER_REGISTRY))}"
        )
    elif cfg.eval_rouge_detok != "space" and section(whole, "tokenizer"):
        yield "--tokenizer and --eval-rouge-detok: both would detokenize; give one"
    if cfg.eval_rouge_remove_bpe and section(whole, "bpe"):
        yield "--bpe and --eval-rouge-remove-bpe: both would join subwords; give one"


def _validation_problems(cfg: SummarizationConfig, whole: DictConfig) -> Iterator[str]:
    """Check that there is a validation, with reference summaries."""
    if whole.dataset.disable_validation:
        yield (
            "--eval-rouge needs the validation that --disable-validation switches off; "
            "leave out one of them"
        )
        return
    folder = utils.split_paths(cfg.data)[0]
    source, target = cfg.source_lang, cfg.target_lang
    if source is None or target is None:
        source, target = data_utils.infer_language_pair(folder)
    for split in whole.dataset.valid_subset.split(","):
        for pair in (f"{source}-{target}", f"{target}-{source}"):
            name = os.path.join(folder, f"{split}.{pair}.")
            if dataset_exists(f"{name}{source}", cfg.dataset_impl):
                if not dataset_exists(f"{name}{target}", cfg.dataset_impl):
                    yield (
                        f"--eval-rouge: the subset {split} has no summaries ({name}{target}.bin); "
                        "preprocess it with both sides"
                    )
