"""The decoder-only language model: fairseq's, with the self-attention parts in its slot."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModel, TransformerLanguageModelConfig
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig

from fairseq_recur.compat import model_options
from fairseq_recur.errors import ConfigError
from fairseq_recur.models.attention_config import SelfAttentionConfig
from fairseq_recur.models.base import RecurrentModel
from fairseq_recur.models.check_attention import self_attention
from fairseq_recur.models.check_host import adaptive_softmax, host
from fairseq_recur.models.check_sizes import memory, numbers
from fairseq_recur.models.flags import given, unknown_choices
from fairseq_recur.models.monitoring import MonitoringConfig
from fairseq_recur.modules.parts import SELF_ATTENTION


@dataclass
class RsaLanguageModelConfig(SelfAttentionConfig, MonitoringConfig, TransformerLanguageModelConfig):
    """The options of fairseq's ``transformer_lm`` and of the self-attention parts."""

    decoder_self_attention: ChoiceEnum(list(SELF_ATTENTION)) = field(
        default="rsa",
        metadata=SelfAttentionConfig.__dataclass_fields__["decoder_self_attention"].metadata,
    )


class RsaLanguageModel(RecurrentModel, TransformerLanguageModel):
    """A Transformer language model whose self-attention is a part of one's choice."""

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the model's flags, without defaults: those are the dataclass's."""
        gen_parser_from_dataclass(parser, RsaLanguageModelConfig(), delete_default=True)

    @classmethod
    def build_model(cls, args: DictConfig, task: FairseqTask) -> "RsaLanguageModel":
        """Build fairseq's model and fill the slots of its layers.

        Raises:
            ConfigError: listing every option that cannot be used
        """
        options = model_options(args, task)
        words = task.source_dictionary, task.target_dictionary
        problems = list(check_language_model(options, words[1])) or list(memory(options, *words))
        if problems:
            raise ConfigError("the model's options cannot be used:\n- " + "\n- ".join(problems))
        model = super().build_model(options, task)
        cfg = TransformerConfig.from_namespace(options)
        build = SELF_ATTENTION[options.decoder_self_attention]
        for index in range(len(model.decoder.layers)):  # iterating would drop layers (LayerDrop)
            layer = model.decoder.layers[index]
            if not isinstance(layer, TransformerDecoderLayerBase):
                raise ConfigError(
                    f"--decoder-self-attention {options.decoder_self_attention} does not go with "
                    "--ddp-backend fully_sharded; choose another one"
                )
            layer.self_attn = build(cfg, "decoder", lambda: layer.self_attn)
        model.show_parts(options.monitor_interval)
        return model


def check_language_model(cfg: Namespace, target: Dictionary) -> Iterator[str]:
    """Everything that is wrong with the options, one line each."""
    options = {f.name: f for f in fields(RsaLanguageModelConfig) if f.name != "_name"}
    problems = [*unknown_choices(cfg, options), *numbers(cfg, options)]
    if not problems and cfg.decoder_embed_dim % cfg.decoder_attention_heads:
        problems.append(
            f"--decoder-embed-dim {cfg.decoder_embed_dim} cannot be split evenly among "
            f"--decoder-attention-heads {cfg.decoder_attention_heads}; "
            "choose a multiple of the heads"
        )
    chosen = given(cfg, SelfAttentionConfig())
    if problems:
        yield from problems
        return
    yield from self_attention(cfg, ("decoder",), chosen)
    yield from host(cfg, ("decoder",), target)
    yield from adaptive_input(cfg, target)


def adaptive_input(cfg: Namespace, target: Dictionary) -> Iterator[str]:
    """What fairseq's language model asserts of its adaptive and its character embeddings."""
    if cfg.adaptive_input and not cfg.character_embeddings:
        cuts = Namespace(
            adaptive_softmax_cutoff=cfg.adaptive_input_cutoff or "",
            adaptive_softmax_factor=cfg.adaptive_input_factor,
        )
        for problem in adaptive_softmax(cuts, target):
            yield "--adaptive-input: " + problem.replace("-softmax-", "-input-")
    if cfg.tie_adaptive_weights:
        same = all(
            getattr(cfg, one) == getattr(cfg, other)
            for one, other in (
                ("adaptive_softmax_factor", "adaptive_input_factor"),
                ("adaptive_softmax_cutoff", "adaptive_input_cutoff"),
                ("decoder_output_dim", "decoder_input_dim"),
            )
        )
        if not (cfg.adaptive_input and same):
            yield (
                "--tie-adaptive-weights needs --adaptive-input, with the same cutoff and factor "
                "as the adaptive softmax, and the same --decoder-input-dim and --decoder-output-dim"
            )


def register_language_model() -> None:
    """Register ``rsa_transformer_lm`` with fairseq."""
    register_model("rsa_transformer_lm", dataclass=RsaLanguageModelConfig)(RsaLanguageModel)
