"""``--task language_modeling_with_memory``: text in streams that continue from batch to batch."""

import logging
import os
import zlib
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from fairseq import utils
from fairseq.data import FairseqDataset, data_utils
from fairseq.models import FairseqLanguageModel
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from torch import Tensor

from fairseq_recur.compat.registry import Function, extend
from fairseq_recur.errors import ConfigError, refuse
from fairseq_recur.modules.options import flag
from fairseq_recur.tasks.fitting import model_class
from fairseq_recur.tasks.rows import RowDataset

logger = logging.getLogger(__name__)

Array = numpy.ndarray[Any, Any]

STREAM, SET = 2**36, 2**52
"""Distances between the numbers of the first positions of two streams, and of two sets."""

EVAL_LM_TOKENS = 36_000
"""Tokens of a batch that fairseq's eval-lm asks for if it is given none."""

FIXED = (
    "sample_break_mode", "shorten_method", "self_target", "future_target", "past_target",
    "add_bos_token", "pad_to_fixed_length", "pad_to_fixed_bsz", "output_dictionary_size",
    "shorten_data_split_list",
)  # fmt: skip
"""Options of fairseq's task that mean nothing for a stream."""


@dataclass(frozen=True)
class Text:
    """A set of text.

    Attributes:
        tokens: (N,) int32
        first: what stands before the first token
        number: of its first position
        whole: whether every token is read; else all segments are full
    """

    tokens: Tensor
    first: int
    number: int
    whole: bool


class StreamDataset(RowDataset):
    """Segments of streams: batch t has segment t of each stream, in a process its share of them.

    N tokens are cut into B streams of n = N // B tokens. The rest, fewer than B tokens, goes to the
    first streams, one token each, and makes a last batch of segments of one token. So the rows of a
    batch have equal lengths, and there is no padding. In training all batches have equal lengths:
    the end that does not fill a segment in all streams, fewer than B T tokens, is left out.

    Args:
        text: the set
        segment: T, tokens of a segment
        rows: of a batch
        processes: that share the streams
    """

    def __init__(self, text: Text, segment: int, rows: int = 1, processes: int = 1) -> None:
        self.text, self.segment, self.rows = text, segment, rows
        self.streams = rows * processes
        self.length, self.rest = divmod(len(text.tokens), self.streams)
        if not text.whole:
            self.rest = 0
            if self.length > segment:
                self.length -= self.length % segment
        ends = numpy.minimum(numpy.arange(segment, self.length + segment, segment), self.length)
        sizes = numpy.diff(ends, prepend=0).repeat(self.streams)
        ones = numpy.ones(self.rest, dtype=sizes.dtype)
        super().__init__(numpy.concatenate([sizes, ones]), shuffled=False)

    @property
    def arrangement(self) -> str:
        """How the text is cut, in words: positions in it count only where it is cut in this way."""
        return f"{self.streams} streams with segments of {self.segment} tokens"

    def arranged(self, rows: int, processes: int) -> "StreamDataset":
        """The same text in other streams; fewer of them than *rows* if there is too little text.

        Raises:
            ConfigError: there are fewer tokens than processes
        """
        count = len(self.text.tokens)
        if count < processes:
            raise ConfigError(
                f"a set has {count} tokens, fewer than the {processes} processes; give more text "
                "or fewer processes"
            )
        return StreamDataset(self.text, self.segment, min(rows, count // processes), processes)

    def __getitem__(self, index: int) -> Any:
        """Segment *index*: its input is one token behind its target, as in fairseq."""
        number, stream = divmod(int(index), self.streams)
        offset = min(number * self.segment, self.length)
        if int(index) >= len(self) - self.rest:
            stream, offset = int(index) - (len(self) - self.rest), self.length
        begin = stream * self.length + min(stream, self.rest) + offset
        end = begin + int(self.sizes[index])
        target = self.text.tokens[begin:end].long()
        before = self.text.tokens[begin - 1] if begin else torch.tensor(self.text.first)
        return {
            "id": int(index),
            "source": torch.cat([before.long().view(1), target[:-1]]),
            "target": target,
            "start": self.text.number + stream * STREAM + begin,
        }

    def collater(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """Build a batch.

        Returns:
            fairseq's usual entries, with ``net_input.starts`` (B,), the numbers of the rows' first
            positions
        """
        if not samples:
            return {}
        source = torch.stack([sample["source"] for sample in samples])
        return {
            "id": torch.tensor([sample["id"] for sample in samples]),
            "nsentences": len(samples),
            "ntokens": source.numel(),
            "net_input": {
                "src_tokens": source,
                "src_lengths": torch.full((len(samples),), source.size(1)),
                "starts": torch.tensor([sample["start"] for sample in samples]),
            },
            "target": torch.stack([sample["target"] for sample in samples]),
        }

    def ordered_indices(self) -> Array:
        """Return all indices in the order of the batches."""
        return numpy.arange(len(self))

    def batch_by_size(self, indices: Array, **_: Any) -> list[Array]:
        """Return the batches: the next segments of as many streams as a batch has rows."""
        return [indices[i : i + self.rows] for i in range(0, len(indices), self.rows)]

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """False: the streams depend on the size of the batches that are asked for."""
        return False


@extend("fairseq.tasks.language_modeling:LanguageModelingTask.build_model", "encoder-decoders")
def build_language_model(build: Function, self: Any, args: Any, *rest: Any, **named: Any) -> Any:
    """Refuse a model with a source, which fairseq builds, and then ends with an AttributeError.

    Raises:
        ConfigError: it is not a language model
    """
    name, kind = model_class(args)
    streams = isinstance(self, StreamLanguageModelingTask)
    # Without streams, fairseq asks for these targets only, which its RoBERTa has, too.
    fits = not streams and hasattr(kind, "supported_targets")
    if kind is not None and not (fits or issubclass(kind, FairseqLanguageModel)):
        task = "language_modeling_with_memory" if streams else "language_modeling"
        fitting = "xl_lm" if streams else "rsa_transformer_lm"
        raise ConfigError(
            f"--task {task} needs a language model, and {name} ({kind.__name__}) is not one; give "
            f"the --path of one, or an --arch such as {fitting}, or the --task of that model's "
            "training, such as translation"
        )
    return build(self, args, *rest, **named)


@register_task("language_modeling_with_memory", dataclass=LanguageModelingConfig)
class StreamLanguageModelingTask(LanguageModelingTask):
    """Language modeling with truncated back-propagation through time.

    Its flags are those of fairseq's task ``language_modeling``.

    Row r of a batch continues row r of the batch before, so that a model with a memory reads on.
    Nothing is shuffled.
    """

    logged: frozenset[str] = frozenset()
    """What the log says of the streams of its sets."""

    @classmethod
    def setup_task(cls, args: Any, **kwargs: Any) -> "StreamLanguageModelingTask":
        """Create the task from the command line or a checkpoint.

        Raises:
            ConfigError: an option cannot be used
        """
        usual = LanguageModelingConfig()
        wrong = [
            f"{flag(name)} {getattr(args, name)} has no effect with streams of text; leave it out"
            for name in FIXED
            if getattr(args, name) is not None
            and str(getattr(args, name)) != str(getattr(usual, name))
        ]
        if not 1 <= args.tokens_per_sample <= 2**20:
            wrong.append(
                f"--tokens-per-sample {args.tokens_per_sample}: expected 1 to {2**20}, the tokens "
                "of a segment; give another number"
            )
        refuse("task language_modeling_with_memory", wrong)
        return super().setup_task(args, **kwargs)

    def build_model(self, args: Any, from_checkpoint: bool = False) -> Any:
        """Build the model.

        Raises:
            ConfigError: it is not a language model (`build_language_model`), or has no memory
        """
        model = super().build_model(args, from_checkpoint)
        if getattr(model.decoder, "memory", None) is None:
            raise ConfigError(
                f"--task language_modeling_with_memory needs a model with a memory, and "
                f"{type(model).__name__} has none; give --task language_modeling, or an --arch "
                "such as xl_lm, or --decoder-memory xl"
            )
        return model

    def build_generator(
        self,
        models: Any,
        args: Any,
        seq_gen_cls: Any = None,
        extra_gen_cls_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Build a search for texts by themselves, which the segments of a stream are not.

        Raises:
            ConfigError: fairseq-generate asks, which alone names a further language model; it may
                score the stream (``--score-reference``)
        """
        searches = not getattr(args, "score_reference", False)
        if searches and "lm_model" in (extra_gen_cls_kwargs or {}):
            raise ConfigError(
                "generate: --task language_modeling_with_memory cuts a text into streams, which "
                "cannot be continued one by one; use eval-lm to score the text (with "
                "--output-word-probs for each word), and in Python "
                "fairseq_recur.from_pretrained(FOLDER).complete(TEXTS) to continue texts"
            )
        return super().build_generator(models, args, seq_gen_cls, extra_gen_cls_kwargs, **kwargs)

    def load_dataset(
        self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any
    ) -> None:
        """Read a set of text.

        Raises:
            ConfigError: there is no such set
        """
        paths = utils.split_paths(self.args.data)
        path = os.path.join(paths[(epoch - 1) % len(paths)], split)
        implementation = self.args.dataset_impl
        lines = data_utils.load_indexed_dataset(path, self.dictionary, implementation, combine)
        if lines is None:
            raise ConfigError(
                f"{path}: no preprocessed text; give the folder that fairseq-preprocess "
                "--only-source made, and one of its sets"
            )
        if getattr(lines, "supports_prefetch", False):
            lines.prefetch(range(len(lines)))
        tokens = torch.empty(int(numpy.sum(lines.sizes)), dtype=torch.int32)
        end = 0
        for index in range(len(lines)):
            line = lines[index]
            tokens[end : end + len(line)] = line
            end += len(line)
        # Sets that are read one after another have different numbers.
        number = zlib.crc32(split.encode()) % 2**10 * SET
        # The trainer passes a selector for the set that it trains on, whatever its name.
        text = Text(tokens, self.dictionary.eos(), number, whole="data_selector" not in kwargs)
        self.datasets[split] = StreamDataset(text, self.args.tokens_per_sample)
        logger.info("%s: %d tokens", split, len(tokens))

    def get_batch_iterator(
        self,
        dataset: FairseqDataset,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        *args: Any,
        num_shards: int = 1,
        **kwargs: Any,
    ) -> Any:
        """Build fairseq's iterator over as many streams as the batches of all processes have rows.

        Raises:
            ConfigError: neither ``--batch-size`` nor ``--max-tokens`` gives a row
        """
        if isinstance(dataset, StreamDataset):
            limits = [] if max_sentences is None else [max_sentences]
            limits += [] if max_tokens is None else [max_tokens // dataset.segment]
            if not limits or min(limits) < 1:
                raise ConfigError(
                    f"--batch-size {max_sentences} and --max-tokens {max_tokens} leave no stream "
                    f"of --tokens-per-sample {dataset.segment}; give --batch-size, the number of "
                    "streams in a process"
                )
            dataset = dataset.arranged(min(limits), num_shards)
            self.log_streams(dataset)
        iterator = super().get_batch_iterator(
            dataset, max_tokens, max_sentences, *args, num_shards=num_shards, **kwargs
        )
        if isinstance(dataset, StreamDataset):
            iterator.disable_shuffling = True
        return iterator

    def log_streams(self, dataset: StreamDataset) -> None:
        """Log how a set is cut, and whether the memory is of use; once for each way to cut one."""
        tokens = len(dataset.text.tokens)
        what = f"a set of {tokens} tokens is read"
        if not dataset.text.whole:
            what = f"training reads {dataset.sizes.sum()} of {tokens} tokens,"
        line = f"{what} in {dataset.arrangement}"
        if line in self.logged:
            return
        self.logged |= {line}
        logger.info("%s", line)
        if dataset.streams > 1 and dataset.length < dataset.segment:
            logger.warning(
                "these streams have %d tokens, less than a segment, so nothing is read from the "
                "memory: give fewer of them, by --batch-size or, in validation, --batch-size-valid",
                dataset.length,
            )

    def eval_lm_dataloader(
        self, dataset: FairseqDataset, max_tokens: int | None = EVAL_LM_TOKENS,
        batch_size: int | None = None, *args: Any, context_window: int = 0, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """As in fairseq, in streams: one, unless there is a ``--batch-size`` or ``--max-tokens``.

        In many streams, a short set has little or nothing in the memory.

        Raises:
            ConfigError: a context window is asked for
        """
        if context_window:
            raise ConfigError(
                f"--context-window {context_window} has no effect with a memory; leave it out, and "
                "set the memory with --model-overrides \"{'memory_length': N}\""
            )
        if batch_size is None and max_tokens == EVAL_LM_TOKENS:
            batch_size = 1
        return super().eval_lm_dataloader(dataset, max_tokens, batch_size, *args, **kwargs)
