"""BART: options and names of the weights in both formats, which hardly differ."""

from pathlib import Path
from typing import Any

import torch
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from torch import Tensor

from fairseq_recur.conversion.byte_bpe import bart_vocabulary, gpt2_files, read_byte_bpe
from fairseq_recur.conversion.settings import (
    ACTIVATIONS,
    MOST_WORDS,
    Settings,
    Value,
    huggingface_activation,
)
from fairseq_recur.conversion.vocabulary import Vocabulary
from fairseq_recur.errors import ConfigError, refuse

NAME = "BART"
ARCH = "bart_large"

# Settings, some of them from old configurations, with the values that fairseq's BART has.
EXPECTED = {
    "is_encoder_decoder": True,
    "normalize_before": False,
    "normalize_embedding": True,
    "add_final_layer_norm": False,
    "add_bias_logits": False,
    "static_position_embeddings": False,
    "scale_embedding": False,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
# The same as options of fairseq, which Hugging Face's BART cannot do without.
NEEDED = {
    "encoder_normalize_before": False,
    "decoder_normalize_before": False,
    "encoder_learned_pos": True,
    "decoder_learned_pos": True,
    "layernorm_embedding": True,
    "share_all_embeddings": True,
    "no_token_positional_embeddings": False,
}
SHARED = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def vocabulary(folder: Path, config: Settings) -> Vocabulary:
    """Return fairseq's names for the tokenizer's tokens; each keeps its row."""
    size = config.integer("vocab_size", high=MOST_WORDS)
    return bart_vocabulary(read_byte_bpe(folder), size, folder)


tokenizer_files = gpt2_files
"""Writes the files of fairseq's ``--bpe``."""


def build(cfg: Any, task: Any) -> BaseFairseqModel:
    """Build a model with the weights of fairseq's BART, which torch's meta device cannot hold."""
    return TransformerModelBase.build_model(TransformerConfig.from_namespace(cfg), task)


def model_options(config: Settings) -> dict[str, Value]:
    """Return fairseq's options for a configuration.

    Raises:
        ConfigError: a setting that fairseq's BART does not have, or that is invalid.
    """
    config.refuse_other_than(EXPECTED, NAME)
    width = config.integer("d_model")
    activation = config.choice("activation_function", ACTIVATIONS, "gelu")
    options: dict[str, Value] = {
        "activation_fn": ACTIVATIONS[activation],
        "dropout": config.probability("dropout", 0.1),
        "attention_dropout": config.probability("attention_dropout", 0.0),
        "activation_dropout": config.probability("activation_dropout", 0.0),
    }
    for side in ("encoder", "decoder"):
        heads = config.integer(f"{side}_attention_heads")
        if width % heads:
            raise ConfigError(
                f"config.json: d_model is {width}, expected a multiple of the {heads} "
                f"{side}_attention_heads"
            )
        options[f"{side}_embed_dim"] = width
        options[f"{side}_ffn_embed_dim"] = config.integer(f"{side}_ffn_dim")
        options[f"{side}_layers"] = config.integer(f"{side}_layers")
        options[f"{side}_attention_heads"] = heads
    for side in ("source", "target"):
        options[f"max_{side}_positions"] = config.integer("max_position_embeddings")
    return options


def names(encoder_layers: int, decoder_layers: int) -> list[str]:
    """Return the names of all weights but the embeddings, in both formats."""
    found = []
    for side, layers in (("encoder", encoder_layers), ("decoder", decoder_layers)):
        attentions = ["self_attn"] if side == "encoder" else ["self_attn", "encoder_attn"]
        modules = [f"{side}.layernorm_embedding"]
        for i in range(layers):
            inner = ["fc1", "fc2", "final_layer_norm"]
            for attention in attentions:
                inner.append(f"{attention}_layer_norm")
                inner += [f"{attention}.{matrix}_proj" for matrix in ("q", "k", "v", "out")]
            modules += [f"{side}.layers.{i}.{module}" for module in inner]
        found.append(f"{side}.embed_positions.weight")
        found += [f"{module}.{kind}" for module in modules for kind in ("weight", "bias")]
    return found


def stack_heights(config: Settings) -> tuple[int, int]:
    """Return the number of layers of the encoder and of the decoder."""
    return config.integer("encoder_layers"), config.integer("decoder_layers")


def to_fairseq(config: Settings, weights: dict[str, Tensor], rows: list[int]) -> dict[str, Tensor]:
    """Return the state of fairseq's model; arguments as in `t5.to_fairseq`.

    Raises:
        ConfigError: the logits have a bias, or the output matrix is not the embeddings'.
        KeyError: naming a weight that is missing.
    """
    bias = weights.pop("final_logits_bias", None)
    if bias is not None and bias.any():
        raise ConfigError(
            "final_logits_bias is not zero: fairseq's BART has no such bias; expected zeros"
        )
    shared = weights.pop("shared.weight")
    for name in (*SHARED, "lm_head.weight"):
        if not torch.equal(weights.pop(name, shared), shared):
            raise ConfigError(
                f"{name} differs from shared.weight: fairseq's BART has one matrix for both; "
                "expected equal weights"
            )
    table = shared[rows]
    state = dict.fromkeys((*SHARED, "decoder.output_projection.weight"), table)
    for side in ("encoder", "decoder"):
        weights.pop(f"{side}.version", None)  # only in old files
        state[f"{side}.version"] = torch.tensor([3.0])
    return {**state, **{name: weights.pop(name) for name in names(*stack_heights(config))}}


def to_huggingface(
    options: Settings, state: dict[str, Tensor], like: dict[str, Any], rows: list[int] | None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return configuration and weights of a fairseq model; arguments as in `t5.to_huggingface`.

    Raises:
        ConfigError: Hugging Face's BART cannot represent the model.
        KeyError: naming a weight that is missing.
    """
    wrong = [
        f"{name} is {options.values.get(name)}, expected {value}"
        for name, value in NEEDED.items()
        if bool(options.values.get(name)) is not value
    ]
    if options.integer("encoder_embed_dim") != options.integer("decoder_embed_dim"):
        wrong.append("encoder_embed_dim and decoder_embed_dim differ, expected equal widths")
    refuse("this checkpoint is not a BART", wrong)
    read, written = (
        state[f"{side}.embed_positions.weight"].size(0) - 2 for side in ("encoder", "decoder")
    )
    if read != written:
        raise ConfigError(
            f"this model has {read} positions in the encoder and {written} in the decoder; "
            "expected equally many, for Hugging Face's BART has one number"
        )
    table = state.pop("encoder.embed_tokens.weight")
    for name in ("decoder.embed_tokens.weight", "decoder.output_projection.weight"):
        state.pop(name, None)
    config = {**like, **configuration(options, len(table), read)}
    own = names(options.integer("encoder_layers"), options.integer("decoder_layers"))
    weights = {f"model.{name}": state.pop(name) for name in own}
    weights["model.shared.weight"] = table
    weights["final_logits_bias"] = torch.zeros(1, len(table))
    return config, weights


def configuration(options: Settings, size: int, positions: int) -> dict[str, Any]:
    """Return Hugging Face's configuration for fairseq's options."""
    config: dict[str, Any] = {
        "architectures": ["BartForConditionalGeneration"],
        "model_type": "bart",
        "is_encoder_decoder": True,
        "vocab_size": size,
        "d_model": options.integer("encoder_embed_dim"),
        "max_position_embeddings": positions,
        "activation_function": huggingface_activation(options.values),
        "scale_embedding": not options.values.get("no_scale_embedding"),
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
    }
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        config[name] = options.probability(name, 0.0)
    for side in ("encoder", "decoder"):
        config[f"{side}_ffn_dim"] = options.integer(f"{side}_ffn_embed_dim")
        config[f"{side}_layers"] = options.integer(f"{side}_layers")
        config[f"{side}_attention_heads"] = options.integer(f"{side}_attention_heads")
    return config
