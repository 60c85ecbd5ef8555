"""T5 and mT5: their options and the names of their weights, in both formats."""

from pathlib import Path
from typing import Any

import torch
from fairseq.models import BaseFairseqModel, build_model
from torch import Tensor

from fairseq_recur.conversion.options import (
    ACTIVATIONS,
    flags,
    refuse,
    table_of,
    their_activation,
    value_of,
)
from fairseq_recur.conversion.vocabulary import Vocabulary, default_t5_rows, t5_vocabulary
from fairseq_recur.errors import ConfigError

NAME = "T5"

# Weights that Hugging Face stores a second time, or that its T5 ignores as well.
REPEATED = {
    "encoder.embed_tokens.weight": "shared.weight",
    "decoder.embed_tokens.weight": "shared.weight",
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": None,
}


def vocabulary(folder: Path, config: dict[str, Any]) -> Vocabulary:
    """What the tokenizer's pieces are called in fairseq, and where they are."""
    return t5_vocabulary(folder, config["vocab_size"], pad_row(config), config["eos_token_id"])


def pad_row(config: dict[str, Any]) -> int:
    """The row of the padding, with which T5's outputs start."""
    return config.get("pad_token_id", 0)


def tokenizer_files(folder: Path, target: Path) -> list[str]:
    """Write what fairseq's ``--bpe`` reads into *target*; the flags to give."""
    if not (folder / "spiece.model").is_file():
        return []
    (target / "spiece.model").write_bytes((folder / "spiece.model").read_bytes())
    return ["--bpe", "sentencepiece", "--sentencepiece-model", "spiece.model"]


def build(cfg: Any, task: Any) -> BaseFairseqModel:
    """Fairseq's model for its configuration and a task with dictionaries."""
    return build_model(cfg, task)


def feed_forward(config: dict[str, Any]) -> dict[str, Any]:
    """Fairseq's options for ``feed_forward_proj``."""
    usual = "gated-gelu" if config["model_type"] == "mt5" else "relu"
    kind = config.get("feed_forward_proj", usual)
    gated, name = kind.startswith("gated-"), kind.removeprefix("gated-")
    if kind == "gated-gelu":
        name = "gelu_new"  # that "gelu" was T5 v1.1's name for the approximation
    if name not in ACTIVATIONS:
        raise ConfigError(
            f"feed_forward_proj {kind!r} is not supported; supported are {', '.join(ACTIVATIONS)}, "
            "each also as gated-..."
        )
    return {"activation_fn": ACTIVATIONS[name], "t5_gated": gated}


def check(config: dict[str, Any]) -> None:
    """Raise ConfigError, naming all of it, if a T5's configuration has what fairseq's lacks."""
    pad = pad_row(config)
    refuse(
        config,
        {
            "is_encoder_decoder": True,
            "layer_norm_epsilon": 1e-6,
            "decoder_start_token_id": pad,
        },
        NAME,
    )
    if not isinstance(config.get("eos_token_id"), int):
        raise ConfigError(f"eos_token_id {config.get('eos_token_id')}: expected one number")


def scales_logits(config: dict[str, Any]) -> bool:
    """Whether logits are multiplied by d_model^-1/2: T5 v1.0 does so, v1.1 and mT5 do not."""
    if config["model_type"] == "mt5":
        return False
    tied = config.get("tie_word_embeddings") is not False
    return bool(config.get("scale_decoder_outputs", tied))


def arguments(config: dict[str, Any]) -> list[str]:
    """The flags of fairseq-train that build the model of a configuration."""
    check(config)
    width, heads = value_of(config, "d_model"), value_of(config, "num_heads")
    layers = value_of(config, "num_layers")
    head = config.get("d_kv", 64)
    dropout = config.get("dropout_rate", 0.1)
    options = {
        "encoder_embed_dim": width,
        "encoder_ffn_embed_dim": value_of(config, "d_ff"),
        "encoder_layers": layers,
        "decoder_layers": config.get("num_decoder_layers") or layers,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "t5_head_dim": 0 if head * heads == width else head,
        "t5_relative_buckets": config.get("relative_attention_num_buckets", 32),
        "t5_relative_max_distance": config.get("relative_attention_max_distance", 128),
        "t5_untied_output": not scales_logits(config),
        "dropout": dropout,
        "attention_dropout": dropout,
        "activation_dropout": dropout,
        **feed_forward(config),
    }
    return ["--arch", "t5_small", *flags(options)]


def names(layers: int, decoder_layers: int, gated: bool) -> dict[str, str]:
    """Hugging Face's name of each weight but the embeddings, and fairseq's."""
    first = {"wi_0": "fc1.gate", "wi_1": "fc1.value"} if gated else {"wi": "fc1"}
    network = {**first, "wo": "fc2"}
    found = {}
    for side, count in (("encoder", layers), ("decoder", decoder_layers)):
        attentions = [("SelfAttention", "self_attn")]
        if side == "decoder":
            attentions.append(("EncDecAttention", "encoder_attn"))
        for i in range(count):
            block, layer = f"{side}.block.{i}.layer", f"{side}.layers.{i}"
            for n, (theirs, ours) in enumerate(attentions):
                for a, b in zip("qkvo", ("q_proj", "k_proj", "v_proj", "out_proj")):
                    found[f"{block}.{n}.{theirs}.{a}"] = f"{layer}.{ours}.{b}"
                found[f"{block}.{n}.layer_norm"] = f"{layer}.{ours}_layer_norm"
            n = len(attentions)
            for a, b in network.items():
                found[f"{block}.{n}.DenseReluDense.{a}"] = f"{layer}.{b}"
            found[f"{block}.{n}.layer_norm"] = f"{layer}.final_layer_norm"
        found[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias"] = (
            f"{side}.position_bias"
        )
        found[f"{side}.final_layer_norm"] = f"{side}.layer_norm"
    return {f"{a}.weight": f"{b}.weight" for a, b in found.items()}


def names_of(config: dict[str, Any]) -> dict[str, str]:
    """As `names`, for a configuration."""
    layers = config["num_layers"]
    decoder_layers = config.get("num_decoder_layers") or layers
    return names(layers, decoder_layers, feed_forward(config)["t5_gated"])


def to_fairseq(
    config: dict[str, Any], weights: dict[str, Tensor], rows: list[int]
) -> dict[str, Tensor]:
    """The state of fairseq's model.

    Args:
        config: Hugging Face's
        weights: Hugging Face's; those that are used are taken out, so that what is left over
            has no place in the model
        rows: of fairseq's indices in Hugging Face's matrices

    Raises:
        ConfigError: if the output matrix is of its own and yet scaled
        KeyError: naming a weight that is missing
    """
    shared = table_of(weights, config)
    for name, original in REPEATED.items():
        repeated = weights.pop(name, None)
        if repeated is not None and original and not torch.equal(repeated, shared):
            raise ConfigError(
                f"{name} differs from {original}: fairseq's T5 has one for both; expected the same"
            )
    output = weights.pop("lm_head.weight", shared)
    if scales_logits(config) and not torch.equal(output, shared):
        raise ConfigError(
            "lm_head.weight differs from shared.weight although the configuration scales the "
            "logits (tie_word_embeddings): neither T5 v1.0 nor v1.1 is like that; "
            "expected one weight, or tie_word_embeddings false"
        )
    state = {ours: weights.pop(theirs) for theirs, ours in names_of(config).items()}
    table = shared[rows]
    state["encoder.embed_tokens.weight"] = table
    state["decoder.embed_tokens.weight"] = table
    state["decoder.output_projection.weight"] = table if output is shared else output[rows]
    for side in ("encoder", "decoder"):
        state[f"{side}.version"] = torch.tensor([3.0])
    return state


def to_huggingface(
    options: dict[str, Any],
    state: dict[str, Tensor],
    like: dict[str, Any] | None,
    rows: list[int] | None,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration and the weights of a fairseq model.

    Args:
        options: of fairseq's model, flat
        state: of fairseq's model; what is used is taken out
        like: configuration with the settings that fairseq does not know; None for T5's
        rows: of fairseq's indices in the matrices; None for T5's order

    Raises:
        ConfigError: if Hugging Face's T5 cannot be such a model
        KeyError: naming a weight that is missing
    """
    one_size(options)
    table = state.pop("encoder.embed_tokens.weight")
    output = state.pop("decoder.output_projection.weight", table)
    state.pop("decoder.embed_tokens.weight", None)
    rows = rows or default_t5_rows(len(table))
    if len(rows) != len(table):
        raise ConfigError(
            f"the checkpoint has {len(table)} words, and the tokenizer to go with it needs "
            f"{len(rows)}: it was not converted from that folder; "
            "give the folder with --like that it was converted from"
        )
    size = max(rows) + 1
    # From the end, as the first index, <s>, may be a copy of another's row.
    order = torch.empty(size, dtype=torch.long)
    for index in reversed(range(len(rows))):
        if index or rows.count(rows[0]) == 1:
            order[rows[index]] = index
    tied = not options["t5_untied_output"]
    config = {**(like or {}), **configuration(options, size, tied)}
    for name in ("architectures", "model_type"):  # of an mT5 as well
        config[name] = (like or config)[name]
    if scales_logits(config) is not tied:
        raise ConfigError(
            f"the logits are scaled, and those of {config['model_type']} are not; leave --like out"
        )
    weights = {theirs: state.pop(ours) for theirs, ours in names_of(config).items()}
    weights["shared.weight"] = table[order]
    if not tied:
        weights["lm_head.weight"] = output[order]
    return config, weights


def one_size(options: dict[str, Any]) -> None:
    """Raise ConfigError if the two stacks differ, or do not share their embeddings."""
    for name in ("embed_dim", "ffn_embed_dim", "attention_heads"):
        ours, theirs = options[f"encoder_{name}"], options[f"decoder_{name}"]
        if ours != theirs:
            raise ConfigError(
                f"encoder_{name} {ours} differs from decoder_{name} {theirs}: Hugging Face's T5 "
                "has one for both; expected the same"
            )
    if not options["share_all_embeddings"]:
        raise ConfigError(
            "Hugging Face's T5 has one embedding matrix; expected --share-all-embeddings"
        )


def configuration(options: dict[str, Any], size: int, tied: bool) -> dict[str, Any]:
    """Hugging Face's configuration for fairseq's options."""
    activation = their_activation(options)
    if options["t5_gated"]:
        if activation == "gelu":
            raise ConfigError(
                "--t5-gated with --activation-fn gelu: what Hugging Face's T5 calls gated-gelu is "
                "gelu_accurate; expected that"
            )
        activation = "gated-" + activation.removesuffix("_new")
    heads, width = options["encoder_attention_heads"], options["encoder_embed_dim"]
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "is_encoder_decoder": True,
        "vocab_size": size,
        "d_model": width,
        "d_kv": options["t5_head_dim"] or width // heads,
        "d_ff": options["encoder_ffn_embed_dim"],
        "num_layers": options["encoder_layers"],
        "num_decoder_layers": options["decoder_layers"],
        "num_heads": heads,
        "relative_attention_num_buckets": options["t5_relative_buckets"],
        "relative_attention_max_distance": options["t5_relative_max_distance"],
        "dropout_rate": options["dropout"],
        "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": activation,
        "tie_word_embeddings": tied,
        "scale_decoder_outputs": tied,
    }
