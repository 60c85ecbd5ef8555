"""Numbers out of range, and sizes that do not fit into this machine's memory."""

import os
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import Field
from typing import Any

import torch
from fairseq.data import Dictionary

from fairseq_recur.models.flags import flag

LARGEST = 2**31 - 1
WIDEST, DEEPEST = 2**17, 1000

# Both ends are allowed. An option that is in no table is from 0 to LARGEST.
WHOLE: dict[str, tuple[int, int]] = {
    # fairseq's sinusoids divide by half the width less one.
    "encoder_embed_dim": (4, WIDEST),
    "decoder_embed_dim": (4, WIDEST),
    "decoder_input_dim": (4, WIDEST),
    "decoder_output_dim": (1, WIDEST),
    "encoder_ffn_embed_dim": (1, 8 * WIDEST),
    "decoder_ffn_embed_dim": (1, 8 * WIDEST),
    "encoder_attention_heads": (1, WIDEST),
    "decoder_attention_heads": (1, WIDEST),
    "encoder_layers": (1, DEEPEST),
    "decoder_layers": (1, DEEPEST),
    "recurrence_layers": (1, DEEPEST),
    "recurrence_steps": (-1, 10_000),
    "max_source_positions": (1, LARGEST),
    "max_target_positions": (1, LARGEST),
    "quant_noise_pq_block_size": (1, WIDEST),
    # A segment is filled up to its size, and decoding counts up to the target's length.
    "segment_size": (1, 2**16),
    "target_length": (1, 2**20),
    "learned_matrix_length": (1, LARGEST),
    "relative_clip": (1, LARGEST),
    "t5_head_dim": (0, WIDEST),
    # The bounds of the buckets are found in whole numbers, distance by distance.
    "t5_relative_buckets": (0, 1024),
    "t5_relative_max_distance": (0, 2**16),
    "tokens_per_sample": (1, LARGEST),
}
# Initial values beyond these would overflow in the first products.
REAL: dict[str, tuple[float, float]] = {
    "encoder_layerdrop": (0, 0.99),
    "decoder_layerdrop": (0, 0.99),
    "quant_noise_pq": (0, 0.99),
    "quant_noise_scalar": (0, 1),
    "srformer_leak_init": (-1e4, 1e4),
    "srformer_threshold_init": (1e-6, 1e6),
    "srformer_clamp": (0, 1e30),
    "target_ratio": (1e-6, 1e3),
    "rsa_theta_init": (-1e4, 1e4),
}


def numbers(cfg: Namespace, options: dict[str, "Field[Any]"]) -> Iterator[str]:
    """Numbers that are none, such as nan, and numbers out of range.

    Args:
        cfg: the model's options, flat
        options: the dataclass's fields
    """
    for name in options:
        value = getattr(cfg, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if isinstance(value, float):
            low, high = REAL.get(name, (-1e30, 1e30))
        else:
            low, high = WHOLE.get(name, REAL.get(name, (0, LARGEST)))
        if not low <= value <= high:  # also where it is nan
            yield f"{flag(name)} {value}: at {_side(value, low, high)} is needed"


def _side(value: float, low: float, high: float) -> str:
    """ "least LOW" or "most HIGH", by which end a value is beyond."""
    return f"least {low:g}" if value < low else f"most {high:g}"


def memory(cfg: Namespace, source: Dictionary, target: Dictionary) -> Iterator[str]:
    """Sizes whose weights and tables this machine cannot hold.

    On torch's meta device, on which a training is planned, only the tables of positions are
    made.

    Args:
        cfg: the model's options, flat, each in range
        source, target: the dictionaries
    """
    parts = tables(cfg)
    if torch.empty(0).device.type != "meta":
        parts.update(weights(cfg, len(source), len(target)))
    needed, there = 4 * sum(parts.values()), installed_memory()
    if there is not None and needed > there:
        largest = max(parts, key=lambda names: parts[names])
        sizes = " ".join(f"{flag(name)} {getattr(cfg, name)}" for name in largest)
        yield (
            f"{sizes}: the model needs at least {needed / 1e9:,.0f} GB, and this machine has "
            f"{there / 1e9:,.0f} GB of memory; give smaller sizes"
        )


def installed_memory() -> int | None:
    """The bytes of this machine's memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


Sizes = dict[tuple[str, ...], int]
"""How many numbers come of which options."""


def tables(cfg: Namespace) -> Sizes:
    """The tables of positions."""
    found: Sizes = {}
    for side, language in (("encoder", "source"), ("decoder", "target")):
        width, length = f"{side}_embed_dim", f"max_{language}_positions"
        if hasattr(cfg, width) and not cfg.no_token_positional_embeddings:
            if getattr(cfg, length) is None:  # fairseq's language model has another option
                length = "tokens_per_sample"
            found[length, width] = getattr(cfg, length) * getattr(cfg, width)
    return found


def weights(cfg: Namespace, source: int, target: int) -> Sizes:
    """At least how many weights there are.

    Args:
        cfg: the model's options, flat
        source, target: entries of the dictionaries
    """
    found: Sizes = {}
    for side, words in (("encoder", source), ("decoder", target)):
        if not hasattr(cfg, f"{side}_embed_dim"):
            continue
        names = f"{side}_layers", f"{side}_embed_dim", f"{side}_ffn_embed_dim"
        layers, width, inner = (getattr(cfg, name) for name in names)
        found[names] = layers * width * (4 * width + 2 * inner) + words * width
        heads = getattr(cfg, f"{side}_attention_heads")
        found.update(_attention(cfg, side, layers, width, heads))
    if getattr(cfg, "recurrence", "none") != "none":
        width = cfg.encoder_embed_dim
        found["recurrence_layers", "encoder_embed_dim"] = cfg.recurrence_layers * 12 * width**2
    return found


def _attention(cfg: Namespace, side: str, layers: int, width: int, heads: int) -> Sizes:
    """What the part for the self-attention adds."""
    part = getattr(cfg, f"{side}_self_attention")
    length, name = cfg.learned_matrix_length, (f"{side}_layers", "learned_matrix_length")
    if part == "toeplitz":
        return {name: layers * heads * length}
    if part == "full_matrix":
        return {name: layers * heads * length**2}
    if part == "relative":
        return {(f"{side}_layers", "relative_clip"): layers * 2 * cfg.relative_clip * width}
    if getattr(cfg, "host", "") == "t5":
        return {
            (f"{side}_attention_heads", "t5_relative_buckets"): heads * cfg.t5_relative_buckets,
            (f"{side}_attention_heads", "t5_head_dim"): (
                layers * 4 * width * heads * cfg.t5_head_dim
            ),
        }
    return {}
