"""A trained model or an ensemble that reads and writes text."""

import json
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import torch
from fairseq import utils
from fairseq.data import FairseqDataset
from fairseq.dataclass.configs import GenerationConfig
from fairseq.models import FairseqLanguageModel
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from fairseq_recur.errors import ConfigError
from fairseq_recur.inspection.capture import Maps
from fairseq_recur.inspection.panels import Labels
from fairseq_recur.inspection.passes import look, translate
from fairseq_recur.pretrained.batches import batches, fit, limits, pairs, whole_texts
from fairseq_recur.pretrained.hypothesis import Hypothesis, to_hypothesis
from fairseq_recur.search import OPTIONS, check_beginnings, search_options
from fairseq_recur.text import Text

logger = logging.getLogger(__name__)

SUMMARIES: dict[str, Any] = {"beam": 4, "no_repeat_ngram_size": 3}
"""Search options for summaries if the training had none for its validation."""

MANY = 0.3
"""Share of unknown tokens above which a warning asks about tokenization."""


class Turns:
    """One pass at a time through the models of this process: `look` records every pass."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        os.register_at_fork(after_in_child=self.forked)

    def forked(self) -> None:
        """Make a child process usable: the threads that may hold the lock, or compute, are gone."""
        self.lock = threading.Lock()
        torch.set_num_threads(1)


_turns = Turns()


class Pretrained:
    """The result of `fairseq_recur.from_pretrained`.

    Outputs and scores equal those of fairseq-generate and fairseq-interactive with the same
    options, in the order of the input.

    Attributes:
        models: in evaluation mode; several form an ensemble.
        task: fairseq's task.
        source, target: dictionary, tokenizer and subwords of each side; a language model has
            the same for both.
    """

    def __init__(
        self, models: list[nn.Module], task: FairseqTask, source: Text, target: Text
    ) -> None:
        self.models = models
        self.task = task
        self.source = source
        self.target = target
        self._limits = limits(task, models)

    @property
    def model(self) -> nn.Module:
        """The model, or the first of an ensemble."""
        return self.models[0]

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return next(self.model.parameters()).device

    @property
    def is_language_model(self) -> bool:
        """Whether the model has no source."""
        return isinstance(self.model, FairseqLanguageModel)

    def __repr__(self) -> str:
        size = sum(parameter.numel() for parameter in self.model.parameters())
        number = f"{len(self.models)} of " if len(self.models) > 1 else ""
        return f"<{number}{type(self.model).__name__}, {size:,} parameters, on {self.device}>"

    @overload
    def translate(self, texts: str, **options: Any) -> str: ...

    @overload
    def translate(self, texts: Sequence[str], **options: Any) -> list[str]: ...

    def translate(
        self,
        texts: str | Sequence[str],
        *,
        beam: int = 5,
        lenpen: float = 1.0,
        max_len_a: float = 0.0,
        max_len_b: int = 200,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        truncate: bool = False,
        progress: bool | None = None,
        **search: Any,
    ) -> str | list[str]:
        """Translate one text, or each of several.

        Args:
            texts: one sentence each, or what was one line in training; an empty text has an
                empty translation.
            beam: size of the beam; this and the next three are fairseq-generate's.
            lenpen: exponent of the length that divides the score.
            max_len_a: factor of the source's length for the longest output.
            max_len_b: summand for the longest output.
            batch_size: the most texts per batch.
            max_tokens: the most source tokens per batch, with padding, but at least those of the
                longest text; 4,000 by default if ``batch_size`` is not given either.
            truncate: truncate long sources; a model that was trained this way always does.
            progress: show a progress bar; None shows it for several batches.
            search: further search options of fairseq-generate, such as ``min_len``,
                ``no_repeat_ngram_size``, ``sampling``, ``sampling_topp``, ``temperature``.

        Raises:
            ConfigError: invalid options, texts that are too long, or a model without a source.
        """
        if self.is_language_model:
            raise ConfigError(
                "translate: expected a model with a source, found a language model; use complete()"
            )
        search.update(beam=beam, lenpen=lenpen, max_len_a=max_len_a, max_len_b=max_len_b)
        found = self.hypotheses(
            as_list("texts", texts), batch_size=batch_size, max_tokens=max_tokens,
            truncate=truncate, progress=progress, **search,
        )  # fmt: skip
        best = [of_one[0].text for of_one in found]
        return best[0] if isinstance(texts, str) else best

    @overload
    def summarize(self, texts: str, **options: Any) -> str: ...

    @overload
    def summarize(self, texts: Sequence[str], **options: Any) -> list[str]: ...

    def summarize(
        self, texts: str | Sequence[str], *, truncate: bool = True, **options: Any
    ) -> str | list[str]:
        """Summarize one text, or each of several, by a model of ``--task summarization``.

        Args:
            texts: whole documents; line breaks count as spaces.
            truncate: truncate long documents to the model's limit.
            options: as in `translate`. The default search is that of the training's validation
                (``--eval-rouge-args``), or ``beam=4, no_repeat_ngram_size=3``.

        Raises:
            ConfigError: a model of another task, or as `translate`.
        """
        saved = getattr(self.task.cfg, "eval_rouge_args", None)
        if saved is None:
            raise ConfigError(
                f"summarize: expected a model of --task summarization, found one of "
                f"{type(self.task).__name__}, which has no prefix and no length of summaries; "
                "use translate(texts, truncate=True, min_len=..., max_len_b=...) "
                "(fairseq-recur translate --min-len N --max-len-b N)"
            )
        validated = {k: v for k, v in json.loads(saved or "{}").items() if k in OPTIONS}
        return self.translate(texts, truncate=truncate, **{**(validated or SUMMARIES), **options})

    def complete(self, texts: str | Sequence[str], **options: Any) -> str | list[str]:
        """Continue texts with a language model.

        Args:
            texts: beginnings, which may be empty.
            options: as in `translate`, without ``truncate``; lengths apply to the whole text.

        Returns:
            The continued texts with their beginnings.

        Raises:
            ConfigError: another kind of model, a beginning as long as ``max_len_b``, or as
                `translate`.
        """
        if not self.is_language_model:
            raise ConfigError(
                "complete: expected a language model, found one with a source; use translate()"
            )
        best = [of_one[0].text for of_one in self.hypotheses(as_list("texts", texts), **options)]
        return best[0] if isinstance(texts, str) else best

    def hypotheses(
        self,
        texts: Sequence[str],
        *,
        nbest: int = 1,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        truncate: bool = False,
        progress: bool | None = None,
        **search: Any,
    ) -> list[list[Hypothesis]]:
        """Return the best outputs for each text with tokens, scores and attention, best first.

        Args:
            texts: sources, or beginnings for a language model.
            nbest: number of hypotheses per text, at most ``beam``.
            batch_size, max_tokens, truncate, progress: as in `translate`.
            search: as in `translate`, with beam and lengths.

        Raises:
            ConfigError: as `translate`.
        """
        if truncate and self.is_language_model:
            raise ConfigError(
                "truncate=True: a language model continues the end of a text, which would be cut; "
                "leave it out, and shorten the texts"
            )
        sources = self._encode(as_list("texts", texts), self.source)
        sources = fit("texts", sources, self._limits[0], truncate or self._truncates)
        # An empty source has an empty output, but a language model may start from nothing.
        searched = [s for s in sources if len(s) > 1 or self.is_language_model]
        shortest = min(map(len, searched), default=1)
        words = len(self.target.dictionary)
        options = search_options(search, nbest, shortest, self._limits[1], words)
        if self.is_language_model:
            check_beginnings([len(ids) - 1 for ids in sources], options, self._limits[1])
        empty = Hypothesis("", 0.0, [], [])
        found = [[] if len(s) > 1 or self.is_language_model else [empty] for s in sources]
        asked = [index for index, of_one in enumerate(found) if not of_one]
        if asked:
            data = pairs(self.task, [sources[index] for index in asked])
            how = {"batch_size": batch_size, "max_tokens": max_tokens, "progress": progress}
            for number, of_one in self._run(data, options, nbest, **how):
                found[asked[number]] = of_one
        return found

    def score(
        self,
        sources: str | Sequence[str],
        targets: str | Sequence[str] | None = None,
        *,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        truncate: bool = False,
        progress: bool | None = None,
    ) -> Hypothesis | list[Hypothesis]:
        """Score given targets, like fairseq-generate's ``--score-reference``.

        Args:
            sources: sources, or the texts to score by a language model, without targets.
            targets: one per source; they are never truncated.
            batch_size, max_tokens, progress: as in `translate`; the longer side counts.
            truncate: as in `translate`, for sources.

        Returns:
            One hypothesis for a text, a list for a list.

        Raises:
            ConfigError: targets are missing or differ in number from the sources, or as
                `translate`.
        """
        given = as_list("sources", sources)
        if self.is_language_model != (targets is None):
            found = "without targets" if targets is None else "with targets"
            wanted = "a language model" if targets is None else "a model with a source"
            raise ConfigError(f"score {found}: expected {wanted}, found {self!r}")
        encoded = self._encode(given, self.source)
        if targets is None:
            data = whole_texts(self.task, fit("texts", encoded, self._limits[1], None))
        else:
            references = as_list("targets", targets)
            one = [isinstance(texts, str) for texts in (sources, targets)]
            if len(references) != len(given) or one[0] != one[1]:
                raise ConfigError(
                    f"score: {len(given)} sources and {len(references)} targets; expected one text "
                    "each, or two lists of the same length"
                )
            aims = fit("targets", self._encode(references, self.target), self._limits[1], None)
            read = fit("sources", encoded, self._limits[0], truncate or self._truncates)
            data = pairs(self.task, read, aims)
        result: list[Any] = [None] * len(given)
        how = {"batch_size": batch_size, "max_tokens": max_tokens, "progress": progress}
        options = GenerationConfig(score_reference=True)
        for number, of_one in self._run(data, options, 1, **how) if given else ():
            result[number] = of_one[0]
        return result[0] if isinstance(sources, str) else result

    def look(self, source: str, target: str | None = None, **search: Any) -> tuple[Maps, Labels]:
        """Return the attention maps of the model, or of an ensemble's first, for one sentence.

        Args:
            source: the sentence.
            target: a translation; by default the model's own.
            search: options of the search for the model's own translation.

        Returns:
            All maps of all heads, and the tokens that label them; an unknown token is followed
            by its word.
            `fairseq_recur.inspection.panels.panels` turns them into labelled matrices.

        Raises:
            ConfigError: as `translate`.
        """
        if self.is_language_model:
            raise ConfigError(
                "look: expected a model with a source, found a language model; use another model"
            )
        if target is not None and search:
            raise ConfigError(
                f"look: {', '.join(search)} would be a search for the target, which is given; "
                "leave out one of them"
            )
        tokens = fit("texts", self._encode([source], self.source), self._limits[0], self._truncates)
        data = pairs(self.task, tokens)
        read = data.collater([data[0]])["net_input"]["src_tokens"][0].to(self.device)
        words = self.target.dictionary
        with _turns.lock:
            if target is None:
                search_options(search, 1, len(read), self._limits[1], len(words))
                aim = translate(self.task, self.model, read, **search)
            else:
                (aim,) = fit("targets", self._encode([target], self.target), self._limits[1], None)
                aim = aim.to(self.device)
            maps = look(self.model, read, aim, words.eos(), step_by_step=target is None)
        if target is None:
            logger.info("translation: %s", self.target.decode(aim))
        prefix = getattr(self.task, "prefix", None) or []
        predicted = self.target.labels(aim, self.target.pieces(target or "").split())
        labels = Labels(
            source=self.source.labels(read, [*prefix, *self.source.pieces(source).split()]),
            read=[words[words.eos()], *predicted[:-1]],
            target=predicted,
        )
        return {place: values.cpu() for place, values in maps.items()}, labels

    @property
    def _truncates(self) -> bool:
        """Whether the model was trained on truncated sources."""
        task = self.task
        return bool(getattr(task, "truncate_source", getattr(task.cfg, "truncate_source", False)))

    def _encode(self, texts: list[str], side: Text) -> list[Tensor]:
        """Return texts as ids; warn if many tokens are unknown."""
        found = [side.encode(text) for text in texts]
        tokens = sum(len(ids) - 1 for ids in found)
        unknown = sum(int(ids.eq(side.dictionary.unk()).sum()) for ids in found)
        if unknown > MANY * tokens:
            logger.warning(
                "%d of %d tokens are not in the dictionary: is the text tokenized as in training "
                "(tokenizer=, bpe=)? The first text: %s",
                unknown, tokens, side.pieces(texts[0]),
            )  # fmt: skip
        return found

    def _run(
        self, data: FairseqDataset, options: GenerationConfig, nbest: int, **how: Any
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Search or score batch by batch; yield each text's number and its hypotheses."""
        generator = self.task.build_generator(self.models, options)
        for batch in batches(self.task, data, **how):
            batch = utils.apply_to_sample(lambda tensor: tensor.to(self.device), batch)
            with _turns.lock:
                found = self.task.inference_step(generator, self.models, batch)
            sources = batch["net_input"]["src_tokens"]
            for number, source, of_one in zip(batch["id"].tolist(), sources, found):
                read = None if self.is_language_model else source
                yield (
                    number,
                    [
                        to_hypothesis(each, self.target, read, self.source, options.score_reference)
                        for each in of_one[:nbest]
                    ],
                )


def as_list(name: str, texts: str | Sequence[str]) -> list[str]:
    """Return one text as a list; ConfigError for anything but a text or texts."""
    if not isinstance(texts, Iterable):
        raise ConfigError(
            f"{name}: expected a str, or a list of them, found a {type(texts).__name__}"
        )
    found = [texts] if isinstance(texts, str) else list(texts)
    for number, text in enumerate(found):
        if not isinstance(text, str):
            raise ConfigError(
                f"{name}: expected a str, or a list of them; number {number} is a "
                f"{type(text).__name__}"
            )
    return found
