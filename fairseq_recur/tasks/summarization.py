"""``--task summarization``: fairseq's ``translation`` with a source prefix, truncation and ROUGE.

The prefix and the truncation of the training are saved with the model, and generation uses them.
"""

import logging
from typing import Any

import torch
from fairseq import utils
from fairseq.data import Dictionary, ListDataset
from fairseq.tasks import FairseqTask, register_task
from fairseq.tasks.translation import TranslationTask, load_langpair_dataset
from omegaconf import DictConfig
from torch import Tensor

from fairseq_recur.compat.registry import Function, extend
from fairseq_recur.errors import ConfigError, refuse
from fairseq_recur.tasks.eval_rouge import RougeEvaluation, log_rouge
from fairseq_recur.tasks.summarization_config import (
    SummarizationConfig,
    training_problems,
    whole_config,
)
from fairseq_recur.tasks.summarization_data import FramedDataset, SummarizationDataset
from fairseq_recur.text import codec_of

logger = logging.getLogger(__name__)

STATE = "summarization"
"""Key in a checkpoint's ``task_state`` of the prefix and truncation of the training."""


def encode_prefix(text: str, dictionary: Dictionary, whole: DictConfig | None) -> list[str]:
    """Return the dictionary's symbols of a source prefix.

    Args:
        text: as the user writes it.
        dictionary: of the sources.
        whole: the command's configuration with the tokenizer and the BPE, if any.

    Raises:
        ConfigError: some symbols are not in the dictionary, or as `build_codec`.
        InstallationError: as `build_codec`.
    """
    text = text.strip()
    if not text:
        return []
    codec = codec_of(whole, "--source-prefix")
    symbols = codec.pieces(text).split()
    unknown = [symbol for symbol in symbols if dictionary.index(symbol) == dictionary.unk()]
    if unknown:
        how = (
            "choose another prefix, or learn subwords and dictionary from text that contains it"
            if codec.bpe is not None
            else "give the --bpe and --tokenizer of the data with their options, or write the "
            "prefix as it would be in the data"
        )
        raise ConfigError(
            f"--source-prefix {text!r}: the dictionary does not contain {', '.join(unknown)}; {how}"
        )
    return symbols


@register_task("summarization", dataclass=SummarizationConfig)
class SummarizationTask(TranslationTask):
    """Summarization of texts in the data of ``fairseq-preprocess``.

    Raises:
        ConfigError: conflicting options; one error lists them all.
    """

    cfg: SummarizationConfig

    def __init__(
        self, cfg: SummarizationConfig, src_dict: Dictionary, tgt_dict: Dictionary
    ) -> None:
        super().__init__(cfg, src_dict, tgt_dict)
        whole = whole_config(cfg)
        self.training = whole is None or whole.common_eval.path is None
        self.prefix: list[str] | None = None
        self.truncate_source: bool = cfg.truncate_source
        self.limits: tuple[int, int] = self.max_positions()
        self.of_models: list[tuple[int, int]] = []
        self.evaluation: RougeEvaluation | None = None
        # A model reads summaries for a criterion or their score; otherwise they are references.
        self.reads_target: bool = whole is not None and whole.generation.score_reference

    @classmethod
    def setup_task(cls, cfg: SummarizationConfig, **kwargs: Any) -> "SummarizationTask":
        """Create the task from the command line or a checkpoint.

        Raises:
            ConfigError: invalid options or missing dictionaries.
        """
        try:
            task = super().setup_task(cfg, **kwargs)
        except OSError as error:
            raise ConfigError(
                f"no dictionary {error.filename} ({error.strerror}); expected dict.LANG.txt in "
                f"DATA for --source-lang {cfg.source_lang} and --target-lang {cfg.target_lang}"
            ) from error
        task.training = task.training and not kwargs.get("from_checkpoint", False)
        if task.training:
            task.check_training()
        return task

    def check_training(self) -> None:
        """Encode the prefix for training; raise ConfigError with all problems."""
        wrong = training_problems(self.cfg)
        try:
            self._encode_given_prefix()
        except ConfigError as error:
            wrong.append(str(error))
        refuse("task summarization", wrong)
        saved = {
            "source_prefix": self.cfg.source_prefix or "", "prefix_symbols": self.prefix,
            "truncate_source": self.truncate_source,
        }  # fmt: skip
        self.state.merge_state_dict({STATE: saved})  # which checkpoints contain

    def _encode_given_prefix(self) -> None:
        """Set the prefix from --source-prefix; raise ConfigError if it is invalid."""
        text = self.cfg.source_prefix or ""
        prefix = encode_prefix(text, self.src_dict, whole_config(self.cfg))
        # A prefix, one token of the text, and the end of the sentence.
        if len(prefix) + 2 > self.cfg.max_source_positions:
            raise ConfigError(
                f"--source-prefix {text!r} has {len(prefix)} tokens, which leaves no room for a "
                f"text in --max-source-positions {self.cfg.max_source_positions}; shorten it"
            )
        self.prefix = prefix
        if prefix:
            logger.info("every source begins with %s", " ".join(prefix))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Use the prefix and truncation of a checkpoint's training.

        A given prefix has priority, with a warning if it differs.

        Raises:
            ConfigError: the models of an ensemble were trained with different prefixes.
        """
        before, saved = self.state.state_dict.get(STATE), state_dict.get(STATE)
        super().load_state_dict(state_dict)
        if saved is None:
            return
        text, given = saved["source_prefix"], self.cfg.source_prefix
        if before and given is None and before["source_prefix"] != text:
            raise ConfigError(
                f"the models were trained with different prefixes, {before['source_prefix']!r} "
                f"and {text!r}; give --source-prefix to generate with one"
            )
        if given in (None, text):
            self.prefix = list(saved["prefix_symbols"])
            logger.info("source prefix of the checkpoint: %r", text)
        else:
            logger.warning("--source-prefix %r, but the model was trained with %r", given, text)
        if saved["truncate_source"] and not self.truncate_source:
            self.truncate_source = True
            logger.info("long sources are truncated, as in training")

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> torch.nn.Module:
        """Build the model, whose positions also limit the texts."""
        model: Any = super().build_model(cfg, from_checkpoint)
        if not self.training:
            self._use_length_limit_of(model)
        # Of all models of an ensemble: a later one for longer texts raises the task's own limit.
        self.of_models.append(model.max_positions())
        self.limits = utils.resolve_max_positions(self.max_positions(), *self.of_models)
        if self.prefix is None:
            self._encode_given_prefix()
        if self.cfg.eval_rouge and self.training:
            self.evaluation = RougeEvaluation(self, model)
        return model

    def _use_length_limit_of(self, model: Any) -> None:
        """Raise the default length of sources, 1024, to that of a model for longer ones."""
        default = SummarizationConfig.__dataclass_fields__["max_source_positions"].default
        longest = model.max_positions()[0]
        if self.cfg.max_source_positions == default < longest:
            self.cfg.max_source_positions = longest
            logger.info("sources may have up to %d tokens, as in training", longest)

    def build_criterion(self, cfg: Any, *args: Any, **kwargs: Any) -> torch.nn.Module:
        """Build the criterion: from here on the model reads summaries."""
        self.reads_target = True
        return super().build_criterion(cfg, *args, **kwargs)

    def load_dataset(
        self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any
    ) -> None:
        """Load a split, and log how many of its texts are truncated or too long."""
        cfg = self.cfg
        folders = utils.split_paths(cfg.data)
        if split != cfg.train_subset:
            folders = folders[:1]
        padding = {
            "left_pad_source": cfg.left_pad_source,
            "left_pad_target": cfg.left_pad_target,
            "shuffle": split != "test",
            "pad_to_multiple": cfg.required_seq_len_multiple,
        }
        pairs = load_langpair_dataset(
            folders[(epoch - 1) % len(folders)], split, cfg.source_lang, self.src_dict,
            cfg.target_lang, self.tgt_dict, combine=combine, dataset_impl=cfg.dataset_impl,
            upsample_primary=cfg.upsample_primary, max_source_positions=cfg.max_source_positions,
            max_target_positions=cfg.max_target_positions, **padding,
        )  # fmt: skip
        source, target, references = self._frame_source(pairs.src, split), pairs.tgt, None
        target_sizes = None
        if target is not None:
            target, target_sizes = self._frame_target(target, split)
            if target is not pairs.tgt and cfg.eval_rouge and split != cfg.train_subset:
                references = pairs.tgt
        self.datasets[split] = SummarizationDataset(
            source, source.sizes, self.src_dict, target, target_sizes, self.tgt_dict,
            num_buckets=cfg.num_batch_buckets, references=references, **padding,
        )  # fmt: skip

    def _frame_source(self, source: Any, split: str | None = None) -> FramedDataset:
        """Put the prefix before texts and truncate them, if so configured."""
        limit = self.limits[0] if self.truncate_source else None
        ids = [self.src_dict.index(symbol) for symbol in self.prefix or []]
        if split is not None:
            self._log_long_texts(split, "sources", source.sizes + len(ids), 0, self.truncate_source)
        return FramedDataset(source, ids, limit)

    def _frame_target(self, target: Any, split: str) -> tuple[Any, Any]:
        """Return summaries, truncated if so configured and the model reads them, and their sizes.

        Mere references stay whole, however long.
        """
        if not self.reads_target:
            return target, target.sizes.clip(max=self.limits[1])
        self._log_long_texts(split, "summaries", target.sizes, 1, self.cfg.truncate_target)
        if self.cfg.truncate_target:
            target = FramedDataset(target, limit=self.limits[1])
        return target, target.sizes

    def _log_long_texts(self, split: str, texts: str, sizes: Any, side: int, cut: bool) -> None:
        """Log how many texts of a split exceed the model's limit."""
        limit, flag = self.limits[side], ("--truncate-source", "--truncate-target")[side]
        long = int((sizes > limit).sum())
        what = f"{split}: {long:,} of {len(sizes):,} {texts} are longer than {limit} tokens"
        if long and cut:
            logger.info("%s and are truncated", what)
        elif long:
            logger.warning("%s and cannot be read; %s would truncate them", what, flag)

    def build_dataset_for_inference(
        self, src_tokens: list[Tensor], src_lengths: list[int], constraints: Any = None
    ) -> SummarizationDataset:
        """Put the prefix before texts of fairseq-interactive, and truncate them as in training."""
        source = self._frame_source(ListDataset(src_tokens, src_lengths))
        return SummarizationDataset(
            source, source.sizes, self.src_dict, tgt_dict=self.tgt_dict,
            left_pad_source=self.cfg.left_pad_source, constraints=constraints,
        )  # fmt: skip

    def valid_step(
        self, sample: dict[str, Any], model: torch.nn.Module, criterion: torch.nn.Module
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        """Validate one batch; with --eval-rouge, generate and score summaries as well."""
        loss, sample_size, logged = super().valid_step(sample, model, criterion)
        if self.cfg.eval_rouge:
            self.evaluation = self.evaluation or RougeEvaluation(self, model)
            logged.update(self.evaluation.score_batch(sample, model))
        return loss, sample_size, logged

    def reduce_metrics(
        self, logging_outputs: list[dict[str, Any]], criterion: torch.nn.Module
    ) -> None:
        """Log the metrics of batches, summed over processes."""
        super().reduce_metrics(logging_outputs, criterion)
        log_rouge(logging_outputs)


@extend("fairseq.tasks:FairseqTask.load_state_dict", "summarization in other tasks")
def refuse_other_task(load: Function, self: FairseqTask, state_dict: dict[str, Any]) -> None:
    """Refuse to load a summarization model into another task, which would omit the prefix.

    Raises:
        ConfigError: the checkpoint's task is summarization, and this task is not
    """
    if STATE in state_dict and not isinstance(self, SummarizationTask):
        raise ConfigError(
            "this model was trained with --task summarization, which knows its source "
            "prefix and truncation; give --task summarization here, too"
        )
    load(self, state_dict)
