"""The decoder without an encoder as a language model."""

import ast
from argparse import Namespace
from typing import Any

from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import eval_str_list
from fairseq.models.transformer import DEFAULT_MAX_TARGET_POSITIONS, TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModel
from fairseq.modules import AdaptiveInput, CharacterTokenEmbedder
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig
from torch import nn

from fairseq_recur.compat import model_options
from fairseq_recur.errors import ConfigError, refuse
from fairseq_recur.models import config
from fairseq_recur.models.base import RecurrentModel
from fairseq_recur.models.decoder import RecurrentTransformerDecoder
from fairseq_recur.models.memories import leave_to_each_process
from fairseq_recur.models.memory_decoder import MemoryDecoder
from fairseq_recur.models.pruning import prune_options
from fairseq_recur.modules.options import flag
from fairseq_recur.modules.parts import NONE
from fairseq_recur.modules.transformer_xl import UnprojectedAdaptiveInput

ENCODER_SLOTS: dict[str, Any] = {"cross_attention": "dot", "recurrence": NONE}
"""The choices in the slots that a language model does not have."""

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
            ConfigError: listing every option that cannot be used
        """
        options = model_options(args, task)
        if options.max_target_positions is None:
            length = getattr(options, "tokens_per_sample", DEFAULT_MAX_TARGET_POSITIONS)
            options.max_target_positions = length if options.decoder_memory == NONE else LONGEST
        cls.check_options(options)
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

        With character embeddings, what a preset shares with the output is not shared in *options*.

        Raises:
            ConfigError: the output is to share weights that do not fit
        """
        if options.character_embeddings:
            unshare_output(options, cls.config_class())
        check_bands(options, len(words))
        pairs = (
            ("adaptive_softmax_factor", "adaptive_input_factor"),
            ("adaptive_softmax_cutoff", "adaptive_input_cutoff"),
            ("decoder_output_dim", "decoder_input_dim"),
        )
        same = all(getattr(options, a) == getattr(options, b) for a, b in pairs)
        if options.tie_adaptive_weights and not (options.adaptive_input and same):
            raise ConfigError(
                "--tie-adaptive-weights needs --adaptive-input with the cutoff and the factor of "
                "the adaptive softmax, and equal --decoder-input-dim and --decoder-output-dim"
            )
        if options.character_embeddings:
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


def check_bands(options: Namespace, words: int) -> None:
    """Refuse bands of words that fairseq cannot build.

    Args:
        options: of the model, flat
        words: size of the dictionary

    Raises:
        ConfigError: they do not fit the dictionary, or have no output that fits them
    """
    problems = []
    adaptive = options.adaptive_input and not options.character_embeddings
    names = ["adaptive_input_cutoff"] if adaptive else []
    for name in [*names, "adaptive_softmax_cutoff"]:
        value = getattr(options, name)
        ends = eval_str_list(value, int) if value else [words]
        if ends != sorted({*ends}) or not 0 < ends[0] <= ends[-1] <= words:
            problems.append(
                f"{flag(name)} {value}: expected rising numbers, up to {words}, the size of the "
                "dictionary"
            )
    shared = options.share_decoder_input_output_embed and not options.adaptive_softmax_cutoff
    if adaptive and shared:
        problems.append(
            "--adaptive-input: bands of words have no single matrix that the output could share; "
            "give --adaptive-softmax-cutoff"
        )
    refuse("these options of the language model cannot be used", problems)


def unshare_output(options: Namespace, preset: FairseqDataclass) -> None:
    """Give the output a matrix of its own: character embeddings have no vector for each word.

    Args:
        options: of the model, flat; changed in place
        preset: the model's defaults

    Raises:
        ConfigError: options that the preset does not set ask for sharing
    """
    sharing = ("share_decoder_input_output_embed", "tie_adaptive_weights")
    asked = [name for name in sharing if getattr(options, name)]
    given = [flag(name) for name in asked if not getattr(preset, name)]
    if given:
        raise ConfigError(
            f"--character-embeddings with {' and '.join(given)}: expected a matrix of words, which "
            "characters do not have; leave one out"
        )
    for name in asked:
        setattr(options, name, False)
