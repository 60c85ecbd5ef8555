"""T5, mT5 and CodeT5: options and names of the weights in both formats."""

from pathlib import Path
from typing import Any

import torch
from fairseq.models import build_model
from torch import Tensor

from fairseq_recur.conversion.byte_bpe import byte_pieces, gpt2_files, has_byte_bpe
from fairseq_recur.conversion.settings import (
    ACTIVATIONS,
    MOST_WORDS,
    Settings,
    Value,
    huggingface_activation,
)
from fairseq_recur.conversion.vocabulary import Vocabulary, t5_pieces, t5_vocabulary
from fairseq_recur.errors import ConfigError

NAME = "T5"
ARCH = "t5_small"

# Weights that Hugging Face stores a second time, or that its T5 ignores as well.
REPEATED = {
    "encoder.embed_tokens.weight": "shared.weight",
    "decoder.embed_tokens.weight": "shared.weight",
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": None,
}
# Hugging Face's names of feed-forward networks: activation in fairseq, and whether it is gated.
NETWORKS = {
    **{name: (ours, False) for name, ours in ACTIVATIONS.items()},
    **{f"gated-{name}": (ours, True) for name, ours in ACTIVATIONS.items()},
    "gated-gelu": ("gelu_accurate", True),  # T5 v1.1's name for the approximation
}


def vocabulary(folder: Path, config: Settings) -> Vocabulary:
    """Return fairseq's names for the tokenizer's pieces, and their rows."""
    size = config.integer("vocab_size", high=MOST_WORDS)
    eos = config.integer("eos_token_id", low=0, high=size - 1)
    pieces, unk = byte_pieces(folder) if has_byte_bpe(folder) else t5_pieces(folder, size)
    return t5_vocabulary(pieces, unk, size, pad_row(config), eos, folder)


def pad_row(config: Settings) -> int:
    """Return the row of the padding symbol, with which T5's outputs start."""
    size = config.integer("vocab_size", high=MOST_WORDS)
    return config.integer("pad_token_id", 0, low=0, high=size - 1)


def tokenizer_files(folder: Path, target: Path) -> list[str]:
    """Write the files of fairseq's ``--bpe`` into ``target``; return the flags to give."""
    if has_byte_bpe(folder):
        return gpt2_files(folder, target)
    if not (folder / "spiece.model").is_file():
        return []
    (target / "spiece.model").write_bytes((folder / "spiece.model").read_bytes())
    return ["--bpe", "sentencepiece", "--sentencepiece-model", "spiece.model"]


build = build_model
"""Builds fairseq's model for its configuration and a task with dictionaries."""


def feed_forward(config: Settings) -> dict[str, Value]:
    """Return fairseq's options for ``feed_forward_proj``."""
    usual = "gated-gelu" if is_mt5(config) else "relu"
    activation, gated = NETWORKS[config.choice("feed_forward_proj", NETWORKS, usual)]
    return {"activation_fn": activation, "t5_gated": gated}


def is_mt5(config: Settings) -> bool:
    """Whether a configuration is mT5's, which has other defaults."""
    return config.values.get("model_type") == "mt5"


def scales_logits(config: Settings) -> bool:
    """Whether logits are multiplied by d_model^-1/2: in T5 v1.0, but not in v1.1 and mT5."""
    if is_mt5(config):
        return False
    return config.boolean("scale_decoder_outputs", config.boolean("tie_word_embeddings", True))


def model_options(config: Settings) -> dict[str, Value]:
    """Return fairseq's options for a configuration.

    Raises:
        ConfigError: a setting that fairseq's T5 does not have, or that is invalid.
    """
    expected = {
        "is_encoder_decoder": True,
        "layer_norm_epsilon": 1e-6,
        "decoder_start_token_id": pad_row(config),
    }
    config.refuse_other_than(expected, NAME)
    width, heads = config.integer("d_model"), config.integer("num_heads")
    layers, decoder_layers = stack_heights(config)
    head = config.integer("d_kv", 64)
    dropout = config.probability("dropout_rate", 0.1)
    return {
        "encoder_embed_dim": width,
        "encoder_ffn_embed_dim": config.integer("d_ff"),
        "encoder_layers": layers,
        "decoder_layers": decoder_layers,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "t5_head_dim": 0 if head * heads == width else head,
        # The bounds of the buckets are found one distance after the other: no large numbers.
        "t5_relative_buckets": config.integer("relative_attention_num_buckets", 32, 4, 1024),
        "t5_relative_max_distance": config.integer(
            "relative_attention_max_distance", 128, 1, 2**16
        ),
        "t5_untied_output": not scales_logits(config),
        "dropout": dropout,
        "attention_dropout": dropout,
        "activation_dropout": dropout,
        **feed_forward(config),
    }


def stack_heights(config: Settings) -> tuple[int, int]:
    """Return the number of layers of the encoder and of the decoder."""
    layers = config.integer("num_layers")
    return layers, config.integer("num_decoder_layers", layers)


def names(layers: int, decoder_layers: int, gated: bool) -> dict[str, str]:
    """Return fairseq's name for each weight of Hugging Face's but the embeddings."""
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
                for a, b in zip("qkvo", ("q", "k", "v", "out")):
                    found[f"{block}.{n}.{theirs}.{a}"] = f"{layer}.{ours}.{b}_proj"
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


def names_of(config: Settings) -> dict[str, str]:
    """Return the `names` for a configuration."""
    return names(*stack_heights(config), bool(feed_forward(config)["t5_gated"]))


def to_fairseq(config: Settings, weights: dict[str, Tensor], rows: list[int]) -> dict[str, Tensor]:
    """Return the state of fairseq's model.

    Args:
        config: Hugging Face's configuration.
        weights: Hugging Face's. Used ones are removed, so what remains has no place in the
            model.
        rows: row in Hugging Face's matrices for each of fairseq's indices.

    Raises:
        ConfigError: the output matrix is separate and yet scaled.
        KeyError: naming a weight that is missing.
    """
    shared = weights.pop("shared.weight")
    for name, original in REPEATED.items():
        repeated = weights.pop(name, None)
        if repeated is not None and original and not torch.equal(repeated, shared):
            raise ConfigError(
                f"{name} differs from {original}: fairseq's T5 has one matrix for both; "
                "expected equal weights"
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
    options: Settings, state: dict[str, Tensor], like: dict[str, Any], rows: list[int] | None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the configuration and the weights of a fairseq model.

    Args:
        options: of fairseq's model, flat.
        state: of fairseq's model; used weights are removed.
        like: configuration with the settings that fairseq does not know; may be empty.
        rows: row in Hugging Face's matrices for each of fairseq's indices; None for T5's order.

    Raises:
        ConfigError: Hugging Face's T5 cannot represent the model.
        KeyError: naming a weight that is missing.
    """
    check_shared_sizes(options)
    table = state.pop("encoder.embed_tokens.weight")
    output = state.pop("decoder.output_projection.weight", table)
    state.pop("decoder.embed_tokens.weight", None)
    # T5's own order, without a tokenizer: pad, eos and unk first, <s> last.
    rows = rows or [len(table) - 1, *range(len(table) - 1)]
    size = max(rows) + 1
    # From the end, because the first index, <s>, may be a copy of another row.
    order = torch.empty(size, dtype=torch.long)
    for index in reversed(range(len(rows))):
        if index or rows.count(rows[0]) == 1:
            order[rows[index]] = index
    tied = not options.boolean("t5_untied_output", False)
    _, pad, eos = rows[:3]  # fairseq's first symbols; T5's outputs start with padding
    symbols = {"pad_token_id": pad, "eos_token_id": eos, "decoder_start_token_id": pad}
    config = {**symbols, **like, **configuration(options, size, tied)}
    for name in ("architectures", "model_type"):  # these may be mT5's
        config[name] = like.get(name, config[name])
    converted = Settings(config)
    if scales_logits(converted) is not tied:
        raise ConfigError(
            f"the checkpoint's model scales its logits, but {config['model_type']} does not; "
            "leave out --like"
        )
    weights = {theirs: state.pop(ours) for theirs, ours in names_of(converted).items()}
    weights["shared.weight"] = table[order]
    if not tied:
        weights["lm_head.weight"] = output[order]
    return config, weights


def check_shared_sizes(options: Settings) -> None:
    """Raise ConfigError if the two stacks differ, or do not share their embeddings."""
    for name in ("embed_dim", "ffn_embed_dim", "attention_heads"):
        encoder, decoder = (options.integer(f"{side}_{name}") for side in ("encoder", "decoder"))
        if encoder != decoder:
            raise ConfigError(
                f"encoder_{name} {encoder} differs from decoder_{name} {decoder}: Hugging Face's "
                "T5 has one size for both; expected equal sizes"
            )
    if not options.boolean("share_all_embeddings", False):
        raise ConfigError(
            "Hugging Face's T5 has one embedding matrix; expected --share-all-embeddings"
        )


def configuration(options: Settings, size: int, tied: bool) -> dict[str, Any]:
    """Return Hugging Face's configuration for fairseq's options."""
    activation = huggingface_activation(options.values)
    if options.boolean("t5_gated", False):
        if activation == "gelu":
            raise ConfigError(
                "found --t5-gated with --activation-fn gelu, but Hugging Face's gated-gelu is "
                "gelu_accurate; expected that function"
            )
        activation = "gated-" + activation.removesuffix("_new")
    heads, width = (options.integer(f"encoder_{n}") for n in ("attention_heads", "embed_dim"))
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "is_encoder_decoder": True,
        "vocab_size": size,
        "d_model": width,
        "d_kv": options.integer("t5_head_dim", 0, low=0) or width // heads,
        "d_ff": options.integer("encoder_ffn_embed_dim"),
        "num_layers": options.integer("encoder_layers"),
        "num_decoder_layers": options.integer("decoder_layers"),
        "num_heads": heads,
        "relative_attention_num_buckets": options.integer("t5_relative_buckets"),
        "relative_attention_max_distance": options.integer("t5_relative_max_distance"),
        "dropout_rate": options.probability("dropout", 0.1),
        "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": activation,
        "tie_word_embeddings": tied,
        "scale_decoder_outputs": tied,
    }
