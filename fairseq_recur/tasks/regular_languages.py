"""``--task regular_languages``: predict after each letter what a regular language allows.

Section 4.2 and appendix E.2 of Huang et al. (ICLR 2023). The strings are drawn when a split is
first loaded: there is no data folder, and the same ``--language-seed`` gives the same strings.
"""

import logging
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from fairseq.criterions import FairseqCriterion
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import MODEL_DATACLASS_REGISTRY, FairseqLanguageModel
from fairseq.tasks import FairseqTask, register_task
from omegaconf import II

from fairseq_recur.errors import ConfigError, refuse
from fairseq_recur.modules.options import flag, option
from fairseq_recur.tasks.fitting import fitting, model_class
from fairseq_recur.tasks.languages import NAMES, TARGETS, Language, language
from fairseq_recur.tasks.rows import RowDataset, Sizes
from fairseq_recur.tasks.strings import SAMPLING, SHORTEST, draw_splits

logger = logging.getLogger(__name__)

SPLITS = ("train", "bin0", "bin1")

Sampling = ChoiceEnum(list(SAMPLING))
Targets = ChoiceEnum(["language", *TARGETS])


@dataclass
class RegularLanguagesConfig(FairseqDataclass):
    """The flags of ``--task regular_languages``."""

    language: str = option("parity", NAMES)
    language_seed: int = option(1, "seed of the strings; --seed is the seed of the training")
    language_sampling: Sampling = option(  # type: ignore[valid-type]  # made at run time
        "published",
        "how strings are drawn: published, like Bhattamishra et al.; or uniform over "
        "lengths, and over the strings of a length",
    )
    language_targets: Targets = option(  # type: ignore[valid-type]  # made at run time
        "language",
        "what the two outputs predict for a prefix: that it is not a member, or that "
        "it is (member); for each next letter, whether the result is a member (next_member), "
        "or can become one (next_legal). Default: the usual target of the language",
    )
    train_size: int = option(0, "training strings (default: 10000; 5000 for d_N)")
    bin_size: int = option(0, "test strings in each bin (default: 2000; 1000 for d_N)")
    longest_string: int = option(
        0,
        "letters of the longest string in the training set and bin 0; strings in bin "
        "1 are longer, up to twice this length (default: 50; 100 for d_N)",
    )
    max_target_positions: int = option(1024, "number of positions of the model")
    add_bos_token: bool = option(
        False, "put a start symbol before each string; it classifies the empty prefix"
    )
    # fairseq's language models read this from their task. A field without help has no flag.
    tokens_per_sample: int = II("task.max_target_positions")


class OutputUnits:
    """Stands in for a target dictionary, with as many entries as the model has outputs."""

    def __len__(self) -> int:
        return 2

    def pad(self) -> int:
        """Return an index that no target has; the criterion masks positions without a target."""
        return -100


class StringDataset(RowDataset):
    """Strings as one table of tokens; a batch consists of rows of it.

    Args:
        strings: members of ``language``.
        language: the automaton that reads them.
        dictionary: the letters' indices.
        targets: a key of `TARGETS`.
        training: draw new batches in each epoch instead of sorting strings by length.
        start: begin with the start symbol and the target of the empty prefix.
    """

    def __init__(
        self,
        strings: list[str],
        language: Language,
        dictionary: Dictionary,
        targets: str,
        training: bool,
        start: bool = False,
    ) -> None:
        super().__init__(numpy.array([len(string) + start for string in strings]), training)
        shape = (len(strings), int(self.sizes.max()))
        self.tokens = torch.full(shape, dictionary.pad())
        outputs = torch.tensor(
            [TARGETS[targets](language, state) for state in range(len(language.moves))]
        )
        self.targets = torch.zeros(*shape, outputs.size(1))
        first = [dictionary.bos()] if start else []
        of_letter = {letter: dictionary.index(letter) for letter in language.letters}
        for row, string in enumerate(strings):
            tokens = first + [of_letter[letter] for letter in string]
            states = [0] * start + language.states(string)
            self.tokens[row, : len(tokens)] = torch.tensor(tokens)
            self.targets[row, : len(states)] = outputs[states].float()

    def collater(self, samples: list[int]) -> dict[str, Any]:
        """Build a batch.

        Returns:
            fairseq's usual entries, with ``net_input.src_tokens`` (B, T), padded on the right,
            and ``target`` (B, T, 2), zeros at the padding.
        """
        if not samples:
            return {}
        lengths = self.sizes[samples]
        longest = int(lengths.max())
        return {
            "id": torch.tensor(samples),
            "nsentences": len(samples),
            "ntokens": int(lengths.sum()),
            "net_input": {
                "src_tokens": self.tokens[samples, :longest],
                "src_lengths": torch.from_numpy(lengths),
            },
            "target": self.targets[samples, :longest],
        }

    def ordered_indices(self) -> Sizes:
        """Return all indices in the order of the batches; fairseq seeds numpy before the call."""
        if self.shuffled:
            return self.drawn()
        return numpy.argsort(self.sizes, kind="stable")


@register_task("regular_languages", dataclass=RegularLanguagesConfig)
class RegularLanguagesTask(FairseqTask):
    """Reads a member of a regular language and predicts two bits after each letter.

    The splits are ``train``, ``bin0`` (with the lengths of training) and ``bin1`` (longer).

    Raises:
        ConfigError: an unknown language, or invalid sizes or lengths.
    """

    def __init__(self, cfg: RegularLanguagesConfig) -> None:
        super().__init__(cfg)
        self.language = language(cfg.language)
        self.longest = cfg.longest_string or self.language.longest
        wrong = [
            f"{flag(name)} {getattr(cfg, name)}: expected a positive number, or 0 "
            "for the default of the language"
            for name in ("train_size", "bin_size", "longest_string")
            if getattr(cfg, name) < 0
        ]
        if self.longest < SHORTEST:
            wrong.append(f"--longest-string {cfg.longest_string}: expected at least {SHORTEST}")
        if self.max_positions() > cfg.max_target_positions:
            wrong.append(
                f"--max-target-positions {cfg.max_target_positions}: bin 1 has strings of up to "
                f"{self.max_positions()} symbols, twice --longest-string {self.longest}. "
                f"Give at least {self.max_positions()}"
            )
        refuse("task regular_languages", wrong)
        self.letters = Dictionary()
        for letter in self.language.letters:
            self.letters.add_symbol(letter)
        self.strings: dict[str, list[str]] = {}

    @classmethod
    def setup_task(cls, cfg: RegularLanguagesConfig, **kwargs: Any) -> "RegularLanguagesTask":
        """Create the task from the command line or a checkpoint."""
        return cls(cfg)

    @property
    def source_dictionary(self) -> Dictionary:
        """The letters; they determine the model's embeddings."""
        return self.letters

    @property
    def target_dictionary(self) -> OutputUnits:
        """Two outputs; they determine the model's output projection."""
        return OutputUnits()

    def max_positions(self) -> int:
        """Return the number of symbols of the longest string."""
        return 2 * self.longest + self.cfg.add_bos_token

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model. Its output has a matrix of its own, also where a preset shares it.

        Raises:
            ConfigError: it is no language model, or an option asks for outputs that are letters
        """
        name, kind = model_class(cfg)
        if kind is not None and not issubclass(kind, FairseqLanguageModel):
            raise ConfigError(
                f"--arch {name} has an encoder, and --task regular_languages no sources; choose a "
                "language model, such as rsa_transformer_lm or transformer_lm"
            )
        sharing = "share_decoder_input_output_embed"
        if getattr(cfg, sharing, False):
            if not getattr(MODEL_DATACLASS_REGISTRY.get(name), sharing, False):
                raise ConfigError(
                    f"{flag(sharing)}: the task regular_languages has {len(self.letters)} input "
                    f"symbols and {len(self.target_dictionary)} outputs, which cannot share a "
                    "matrix; leave it out"
                )
            setattr(cfg, sharing, False)
        return super().build_model(cfg, from_checkpoint)

    def build_criterion(self, cfg: Any, *args: Any, **kwargs: Any) -> FairseqCriterion:
        """Build the criterion.

        Raises:
            ConfigError: it measures no strings
        """
        criterion = super().build_criterion(cfg, *args, **kwargs)
        return fitting(criterion, "regular_languages", "string_accuracy")

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> None:
        """Build the dataset of a split; the first call draws the strings of all splits.

        Raises:
            ConfigError: the split is not in `SPLITS`.
        """
        if split not in SPLITS:
            raise ConfigError(
                f"the task regular_languages has the splits {', '.join(SPLITS)}, not {split!r}: "
                "use --valid-subset bin0,bin1"
            )
        if not self.strings:
            self.strings = draw_splits(
                self.language,
                self.cfg.train_size or self.language.train_size,
                self.cfg.bin_size or self.language.bin_size,
                self.longest,
                str(self.cfg.language_sampling),
                self.cfg.language_seed,
            )
        kind = str(self.cfg.language_targets)
        self.datasets[split] = StringDataset(
            self.strings[split],
            self.language,
            self.letters,
            self.language.targets if kind == "language" else kind,
            training=split == "train",
            start=self.cfg.add_bos_token,
        )
        sizes = self.datasets[split].sizes
        logger.info(
            "%s, %s: %d strings of %d to %d symbols",
            self.language.name, split, len(sizes), sizes.min(), sizes.max(),
        )  # fmt: skip
