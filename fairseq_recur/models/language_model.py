"""The decoder without an encoder as a language model."""

import ast
import logging
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import eval_str_list
from fairseq.models.transformer import DEFAULT_MAX_TARGET_POSITIONS, TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModel
from fairseq.modules import AdaptiveInput, CharacterTokenEmbedder
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import TranslationTask
from omegaconf import DictConfig
from torch import nn

from fairseq_recur.compat import model_options
from fairseq_recur.errors import ConfigError
from fairseq_recur.integration import from_checkpoint
from fairseq_recur.models import config
from fairseq_recur.models.base import RecurrentModel
from fairseq_recur.models.decoder import RecurrentTransformerDecoder
from fairseq_recur.models.memories import leave_to_each_process
from fairseq_recur.models.memory_decoder import MemoryDecoder
from fairseq_recur.models.pruning import prune_options
from fairseq_recur.modules.options import flag
from fairseq_recur.modules.parts import NONE
from fairseq_recur.modules.transformer_xl import UnprojectedAdaptiveInput

logger = logging.getLogger(__name__)

ENCODER_SLOTS: dict[str, Any] = {"cross_attention": "dot", "recurrence": NONE}
"""The choices in the slots that a language model does not have."""

SHARING = ("share_decoder_input_output_embed", "tie_adaptive_weights")
"""Options with which the output has the embeddings' weights."""

LONGEST = 2**20
"""Positions of a model with a memory, which has no table of them, unless an option says less."""


class RecurrentLanguageModel(RecurrentModel, TransformerLanguageModel):
    """A Transformer language model with recurrence in its self-attention, its memory, or both."""

    slots = staticmethod(config.language_model_slots)
    assemble = staticmethod(config.language_model_config)

    @classmethod
    def build_model(cls, args: DictConfig, task: FairseqTask) -> "RecurrentLanguageModel":
        """Build the decoder with fairseq's embeddings.

        Raises:
            ConfigError: listing every option that cannot be used, or the task has a source
        """
        if isinstance(task, TranslationTask):
            name = getattr(task.cfg, "_name", None) or "translation"
            raise ConfigError(
                f"{cls.__name__} is a language model, and --task {name} needs an encoder-decoder; "
                "give --task language_modeling_with_memory, --task language_modeling, or the "
                "--arch or --path of another model"
            )
        options = model_options(args, task)
        if options.max_target_positions is None:
            length = getattr(options, "tokens_per_sample", DEFAULT_MAX_TARGET_POSITIONS)
            options.max_target_positions = length if options.decoder_memory == NONE else LONGEST
        problems = embedding_problems(options, cls.config_class(), len(task.source_dictionary))
        cls.check_options(options, problems)
        warn_without_streams(options, task)
        pruning = prune_options(options)
        embedding = cls.build_token_embedding(options, task.source_dictionary)
        host = options.language_model_host
        cfg = TransformerConfig.from_namespace(
            Namespace(**vars(options), **ENCODER_SLOTS, host=host)
        )
        if options.decoder_memory == NONE and host == "transformer":
            decoder = RecurrentTransformerDecoder(
                cfg, task.target_dictionary, embedding, no_encoder_attn=True
            )
        else:
            decoder = MemoryDecoder(cfg, task.target_dictionary, embedding)
        model = cls(decoder)
        model.pruning = pruning
        leave_to_each_process(model)
        model.observe_parts(options.monitor_interval)
        return model

    @classmethod
    def build_token_embedding(cls, options: Namespace, words: Dictionary) -> nn.Module:
        """Word embeddings, or adaptive or character ones, as fairseq's language model has them.

        With character embeddings, what a preset shares with the output is not shared in *options*:
        they have no vector for each word.
        """
        if options.character_embeddings:
            for name in SHARING:
                setattr(options, name, False)
            return CharacterTokenEmbedder(
                words,
                ast.literal_eval(options.character_filters),
                options.character_embedding_dim,
                options.decoder_embed_dim,
                options.char_embedder_highway_layers,
            )
        if options.adaptive_input:
            widths = options.decoder_input_dim, options.decoder_embed_dim
            even = widths[0] == widths[1] and options.adaptive_input_factor == 1
            bare = even and options.language_model_host == "transformer_xl"
            return (UnprojectedAdaptiveInput if bare else AdaptiveInput)(
                len(words),
                words.pad(),
                options.decoder_input_dim,
                options.adaptive_input_factor,
                options.decoder_embed_dim,
                eval_str_list(options.adaptive_input_cutoff, int),
                options.quant_noise_pq,
                options.quant_noise_pq_block_size,
            )
        return cls.build_embedding(options, words, options.decoder_input_dim)


def embedding_problems(options: Namespace, preset: FairseqDataclass, words: int) -> Iterator[str]:
    """Word embeddings and outputs that fairseq cannot build, one message each.

    Args:
        options: of the model, flat
        preset: the model's defaults
        words: size of the dictionary
    """
    asked = [name for name in SHARING if getattr(options, name)]
    if options.character_embeddings:
        given = [flag(name) for name in asked if not getattr(preset, name)]
        if given:
            yield (
                f"--character-embeddings with {' and '.join(given)}: expected a matrix of words, "
                "which characters do not have; leave one out"
            )
        asked = []
    yield from band_problems(options, words)
    pairs = (
        ("adaptive_softmax_factor", "adaptive_input_factor"),
        ("adaptive_softmax_cutoff", "adaptive_input_cutoff"),
        ("decoder_output_dim", "decoder_input_dim"),
    )
    same = all(getattr(options, a) == getattr(options, b) for a, b in pairs)
    if "tie_adaptive_weights" in asked and not (options.adaptive_input and same):
        yield (
            "--tie-adaptive-weights needs --adaptive-input with the cutoff and the factor of "
            "the adaptive softmax, and equal --decoder-input-dim and --decoder-output-dim"
        )
    if "share_decoder_input_output_embed" in asked and not options.adaptive_softmax_cutoff:
        if options.adaptive_input:
            yield (
                "--adaptive-input: bands of words have no single matrix that the output could "
                "share; give --adaptive-softmax-cutoff"
            )
        if options.decoder_input_dim != options.decoder_output_dim:
            yield (
                f"--decoder-output-dim {options.decoder_output_dim}: the output has the matrix of "
                f"the embeddings, whose width is --decoder-input-dim {options.decoder_input_dim}; "
                "give the same number for both"
            )


def band_problems(options: Namespace, words: int) -> Iterator[str]:
    """Bands of words that do not fit the dictionary; arguments as of `embedding_problems`."""
    adaptive = options.adaptive_input and not options.character_embeddings
    names = ["adaptive_input_cutoff"] if adaptive else []
    for name in [*names, "adaptive_softmax_cutoff"]:
        value = getattr(options, name)
        ends = eval_str_list(value, int) if value else [words]
        if ends != sorted({*ends}) or not 0 < ends[0] <= ends[-1] <= words:
            yield (
                f"{flag(name)} {value}: expected rising numbers, up to {words}, the size of the "
                "dictionary"
            )


def warn_without_streams(options: Namespace, task: FairseqTask) -> None:
    """Say in the log of a training that fairseq's own task does not use the memory."""
    name = getattr(getattr(task, "args", None), "_name", None)
    if options.decoder_memory != NONE and name == "language_modeling" and not from_checkpoint():
        logger.warning(
            f"--decoder-memory {options.decoder_memory}: nothing is kept from batch to batch with "
            "--task language_modeling, whose batches do not continue a text; for a memory, give "
            "--task language_modeling_with_memory"
        )
