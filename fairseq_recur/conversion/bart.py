"""BART: its options and the names of its weights, in both formats, which are nearly the same."""

from pathlib import Path
from typing import Any

import torch
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from torch import Tensor

from fairseq_recur.conversion.byte_bpe import bart_vocabulary, read_byte_bpe
from fairseq_recur.conversion.options import (
    ACTIVATIONS,
    flags,
    refuse,
    table_of,
    their_activation,
    value_of,
)
from fairseq_recur.conversion.vocabulary import Vocabulary
from fairseq_recur.errors import ConfigError

NAME = "BART"

# Settings, some of old configurations, that say what fairseq's BART is.
EXPECTED = {
    "is_encoder_decoder": True,
    "normalize_before": False,
    "normalize_embedding": True,
    "add_final_layer_norm": False,
    "add_bias_logits": False,
    "static_position_embeddings": False,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
# The same in fairseq's options, which Hugging Face's BART cannot do without.
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


def vocabulary(folder: Path, config: dict[str, Any]) -> Vocabulary:
    """What the tokenizer's tokens are called in fairseq; each is where it was."""
    return bart_vocabulary(read_byte_bpe(folder), config["vocab_size"], folder)


def tokenizer_files(folder: Path, target: Path) -> list[str]:
    """Write what fairseq's ``--bpe`` reads into *target*; the flags to give."""
    read_byte_bpe(folder).write(target)
    return [
        "--bpe", "gpt2", "--gpt2-encoder-json", "encoder.json", "--gpt2-vocab-bpe", "vocab.bpe",
    ]  # fmt: skip


def build(cfg: Any, task: Any) -> BaseFairseqModel:
    """A model with the weights of fairseq's, which cannot be built without memory for them."""
    return TransformerModelBase.build_model(TransformerConfig.from_namespace(cfg), task)


def arguments(config: dict[str, Any]) -> list[str]:
    """The flags of fairseq-train that build the model of a configuration.

    Raises:
        ConfigError: naming everything that fairseq's BART is not
    """
    refuse(config, EXPECTED, NAME)
    activation = config.get("activation_function", "gelu")
    if activation not in ACTIVATIONS:
        raise ConfigError(
            f"activation_function {activation!r} is not supported; supported are "
            f"{', '.join(ACTIVATIONS)}"
        )
    options: dict[str, Any] = {
        "activation_fn": ACTIVATIONS[activation],
        "dropout": config.get("dropout", 0.1),
        "attention_dropout": config.get("attention_dropout", 0.0),
        "activation_dropout": config.get("activation_dropout", 0.0),
    }
    for side in ("encoder", "decoder"):
        options[f"{side}_embed_dim"] = value_of(config, "d_model")
        options[f"{side}_ffn_embed_dim"] = value_of(config, f"{side}_ffn_dim")
        options[f"{side}_layers"] = value_of(config, f"{side}_layers")
        options[f"{side}_attention_heads"] = value_of(config, f"{side}_attention_heads")
    for side in ("source", "target"):
        options[f"max_{side}_positions"] = value_of(config, "max_position_embeddings")
    if config.get("scale_embedding"):
        raise ConfigError(
            "scale_embedding is true: fairseq's BART does not scale embeddings; expected false"
        )
    return ["--arch", "bart_large", *flags(options)]


def names(encoder_layers: int, decoder_layers: int) -> list[str]:
    """The weights but the embeddings; Hugging Face puts "model." before them."""
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


def to_fairseq(
    config: dict[str, Any], weights: dict[str, Tensor], rows: list[int]
) -> dict[str, Tensor]:
    """The state of fairseq's model; arguments as in `t5.to_fairseq`.

    Raises:
        ConfigError: if the logits have a bias, or the output matrix is not the embeddings'
        KeyError: naming a weight that is missing
    """
    bias = weights.pop("final_logits_bias", None)
    if bias is not None and bias.any():
        raise ConfigError(
            "final_logits_bias is not zero: fairseq's BART has no such bias; expected zeros"
        )
    for name in [name for name in weights if name.startswith("model.")]:
        weights[name.removeprefix("model.")] = weights.pop(name)
    shared = table_of(weights, config)
    for name in (*SHARED, "lm_head.weight"):
        if not torch.equal(weights.pop(name, shared), shared):
            raise ConfigError(
                f"{name} differs from shared.weight: fairseq's BART has one for both; "
                "expected the same"
            )
    table = shared[rows]
    state = dict.fromkeys((*SHARED, "decoder.output_projection.weight"), table)
    for side in ("encoder", "decoder"):
        weights.pop(f"{side}.version", None)  # which old files have
        state[f"{side}.version"] = torch.tensor([3.0])
    own = names(config["encoder_layers"], config["decoder_layers"])
    return {**state, **{name: weights.pop(name) for name in own}}


def to_huggingface(
    options: dict[str, Any],
    state: dict[str, Tensor],
    like: dict[str, Any] | None,
    rows: list[int] | None,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration and the weights of a fairseq model; arguments as in `t5.to_huggingface`.

    Raises:
        ConfigError: if Hugging Face's BART cannot be such a model
        KeyError: naming a weight that is missing
    """
    wrong = [
        f"{name} is {options.get(name)}, it has to be {value}"
        for name, value in NEEDED.items()
        if bool(options.get(name)) is not value
    ]
    if options["encoder_embed_dim"] != options["decoder_embed_dim"]:
        wrong.append("encoder_embed_dim and decoder_embed_dim differ, they have to be equal")
    if wrong:
        raise ConfigError("this is no BART:\n- " + "\n- ".join(wrong))
    table = state.pop("encoder.embed_tokens.weight")
    for name in ("decoder.embed_tokens.weight", "decoder.output_projection.weight"):
        state.pop(name, None)
    if rows is not None and len(rows) != len(table):
        raise ConfigError(
            f"the checkpoint has {len(table)} words and the tokenizer to go with it {len(rows)}: "
            "it was not converted from that folder; "
            "give the folder with --like that it was converted from"
        )
    positions = state["encoder.embed_positions.weight"].size(0) - 2
    config = {**(like or {}), **configuration(options, len(table), positions)}
    own = names(options["encoder_layers"], options["decoder_layers"])
    weights = {f"model.{name}": state.pop(name) for name in own}
    weights["model.shared.weight"] = table
    weights["final_logits_bias"] = torch.zeros(1, len(table))
    return config, weights


def configuration(options: dict[str, Any], size: int, positions: int) -> dict[str, Any]:
    """Hugging Face's configuration for fairseq's options."""
    config: dict[str, Any] = {
        "architectures": ["BartForConditionalGeneration"],
        "model_type": "bart",
        "is_encoder_decoder": True,
        "vocab_size": size,
        "d_model": options["encoder_embed_dim"],
        "max_position_embeddings": positions,
        "activation_function": their_activation(options),
        "scale_embedding": not options.get("no_scale_embedding"),
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
    }
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        config[name] = options.get(name, 0.0)
    for side in ("encoder", "decoder"):
        config[f"{side}_ffn_dim"] = options[f"{side}_ffn_embed_dim"]
        config[f"{side}_layers"] = options[f"{side}_layers"]
        config[f"{side}_attention_heads"] = options[f"{side}_attention_heads"]
    return config
