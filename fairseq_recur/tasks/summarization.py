"""``--task summarization``: fairseq's ``translation`` with what summaries need.

A prefix before every source, truncation of sources and summaries, and ROUGE in validation. What
the model was trained to read, its prefix and truncation, is saved with it and taken over where
summaries are generated.
"""

import logging
from typing import Any

import torch
from fairseq import utils
from fairseq.data import Dictionary, ListDataset, encoders
from fairseq.tasks import FairseqTask, register_task
from fairseq.tasks.translation import TranslationTask, load_langpair_dataset
from omegaconf import DictConfig
from torch import Tensor

from fairseq_recur.compat.registry import Function, extend
from fairseq_recur.errors import ConfigError
from fairseq_recur.tasks.eval_rouge import RougeEvaluation, log_rouge
from fairseq_recur.tasks.summarization_config import (
    SummarizationConfig,
    chosen,
    training_problems,
    whole_config,
)
from fairseq_recur.tasks.summarization_data import FramedDataset, SummarizationDataset

logger = logging.getLogger(__name__)

STATE = "summarization"
"""Where a checkpoint's ``task_state`` has what the model was trained to read."""


def encode_prefix(text: str, dictionary: Dictionary, whole: DictConfig | None) -> list[str]:
    """Return the dictionary's symbols of a source prefix.

    Args:
        text: as the user writes it.
        dictionary: of the sources.
        whole: the command's configuration, which says the tokenizer and the BPE, if any.

    Raises ConfigError if some are not in the dictionary.
    """
    text = text.strip()
    if not text:
        return []
    encoded = text
    for encoder in (
        encoders.build_tokenizer(chosen(whole, "tokenizer")),
        encoders.build_bpe(chosen(whole, "bpe")),
    ):
        encoded = encoded if encoder is None else encoder.encode(encoded)
    symbols = encoded.split()
    unknown = [symbol for symbol in symbols if dictionary.index(symbol) == dictionary.unk()]
    if unknown:
        given = chosen(whole, "bpe")
        how = (
            "choose another prefix, or learn subwords and dictionary from text that has it"
            if given is not None
            else "give the --bpe and --tokenizer with which the data were made and their options, "
            "or write the prefix as it would be in those data"
        )
        raise ConfigError(
            f"--source-prefix {text!r}: the dictionary does not have {', '.join(unknown)}; {how}"
        )
    return symbols


@register_task("summarization", dataclass=SummarizationConfig)
class SummarizationTask(TranslationTask):
    """Summaries of texts, from data made by ``fairseq-preprocess``.

    Raises:
        ConfigError: options that do not go together; one error lists all.
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
        self.evaluation: RougeEvaluation | None = None
        # Only a criterion makes a model read summaries; else they are only compared with.
        self.reads_target = False

    @classmethod
    def setup_task(cls, cfg: SummarizationConfig, **kwargs: Any) -> "SummarizationTask":
        """Make the task from the command line or, as fairseq says in kwargs, a checkpoint.

        Raises ConfigError for options that cannot be used, and dictionaries that are not there.
        """
        try:
            task = super().setup_task(cfg, **kwargs)
        except OSError as error:
            raise ConfigError(
                f"no dictionary {error.filename} ({error.strerror}): DATA must have dict.LANG.txt of "
                f"--source-lang {cfg.source_lang} and --target-lang {cfg.target_lang}"
            ) from error
        task.training = task.training and not kwargs.get("from_checkpoint", False)
        if task.training:
            task.check_training()
        return task

    def check_training(self) -> None:
        """Encode the prefix for training; raises ConfigError with all that is wrong."""
        wrong = training_problems(self.cfg)
        try:
            self._encode_given_prefix()
        except ConfigError as error:
            wrong.append(str(error))
        if wrong:
            raise ConfigError("task summarization:\n- " + "\n- ".join(wrong))
        self._save_input()

    def _encode_given_prefix(self) -> None:
        """Set the prefix from --source-prefix; raises ConfigError if it cannot be one."""
        text = self.cfg.source_prefix or ""
        prefix = encode_prefix(text, self.src_dict, whole_config(self.cfg))
        # A prefix, one token of the text, and the end of the sentence.
        if len(prefix) + 2 > self.cfg.max_source_positions:
            raise ConfigError(
                f"--source-prefix {text!r} has {len(prefix)} tokens, which with a text do not fit "
                f"in --max-source-positions {self.cfg.max_source_positions}; give a shorter one"
            )
        self.prefix = prefix
        if prefix:
            logger.info("every source begins with %s", " ".join(prefix))

    def _save_input(self) -> None:
        """Put into the task's state, which checkpoints hold, what the model reads."""
        self.state.merge_state_dict(
            {
                STATE: {
                    "source_prefix": self.cfg.source_prefix or "",
                    "prefix_symbols": self.prefix,
                    "truncate_source": self.truncate_source,
                }
            }
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what the model of a checkpoint was trained to read.

        A prefix that was given counts, with a warning where it is another.

        Raises ConfigError if two models of an ensemble were trained with different prefixes.
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
            logger.info("long sources are cut, as in training")

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> torch.nn.Module:
        """Build the model, whose positions limit the texts as well."""
        model = super().build_model(cfg, from_checkpoint)
        if not self.training:
            self._read_all_that_is_read_by(model)
        self.limits = utils.resolve_max_positions(self.limits, model.max_positions())
        if self.prefix is None:
            self._encode_given_prefix()
        if self.cfg.eval_rouge and self.training:
            self.evaluation = RougeEvaluation(self, model)
        return model

    def _read_all_that_is_read_by(self, model: torch.nn.Module) -> None:
        """Raise the default length of sources, 1024, to that of a model for longer ones."""
        default = SummarizationConfig.__dataclass_fields__["max_source_positions"].default
        longest = model.max_positions()[0]
        if self.cfg.max_source_positions == default < longest:
            self.cfg.max_source_positions = longest
            self.limits = self.max_positions()
            logger.info("sources of up to %d tokens are read, as in training", longest)

    def build_criterion(self, cfg: Any, *args: Any, **kwargs: Any) -> torch.nn.Module:
        """Build the criterion: from here on the model reads summaries."""
        self.reads_target = True
        return super().build_criterion(cfg, *args, **kwargs)

    def load_dataset(
        self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any
    ) -> None:
        """Load a split; the log says how many of its texts are cut or too long."""
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
        """Put the prefix before texts and cut them, if they are to be cut."""
        limit = self.limits[0] if self.truncate_source else None
        ids = [self.src_dict.index(symbol) for symbol in self.prefix or []]
        if split is not None:
            self._tell(split, "sources", source.sizes + len(ids), 0, self.truncate_source)
        return FramedDataset(source, self.src_dict.eos(), ids, limit)

    def _frame_target(self, target: Any, split: str) -> tuple[Any, Any]:
        """Cut summaries that a model reads, if they are to be cut; return them and their sizes.

        Those that are only compared with stay whole, however long.
        """
        if not self.reads_target:
            return target, target.sizes.clip(max=self.limits[1])
        self._tell(split, "summaries", target.sizes, 1, self.cfg.truncate_target)
        if self.cfg.truncate_target:
            target = FramedDataset(target, self.tgt_dict.eos(), limit=self.limits[1])
        return target, target.sizes

    def _tell(self, split: str, texts: str, sizes: Any, side: int, cut: bool) -> None:
        """Log how many texts of a split are longer than the model reads."""
        limit, flag = self.limits[side], ("--truncate-source", "--truncate-target")[side]
        long = int((sizes > limit).sum())
        what = f"{split}: {long:,} of {len(sizes):,} {texts} are longer than {limit} tokens"
        if long and cut:
            logger.info("%s and are cut", what)
        elif long:
            logger.warning("%s and cannot be read; %s would cut them", what, flag)

    def build_dataset_for_inference(
        self, src_tokens: list[Tensor], src_lengths: list[int], constraints: Any = None
    ) -> SummarizationDataset:
        """Put the prefix before what a user typed, and cut it as in training."""
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
        """Log the figures of batches, summed over processes."""
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
