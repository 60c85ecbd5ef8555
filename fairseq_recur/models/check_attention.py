"""What is wrong with the options of the parts for self-attention."""

import math
from argparse import Namespace
from collections.abc import Iterator, Sequence

from fairseq_recur.models.flags import flag
from fairseq_recur.modules.rem_heads import parse_range, parse_rem_heads

# The parts that read an option; all others would ignore it.
MIXTURES = {"rsa", "toeplitz", "full_matrix"}
READ_BY: dict[str, set[str]] = {
    "rsa_heads": {"rsa"},
    "rsa_dilations": {"rsa"},
    "rsa_max_power": {"rsa"},
    "rsa_share": {"rsa"},
    "rsa_gate_init": MIXTURES,
    "rsa_eta_init": {"rsa"},
    "rsa_nu_init": {"rsa"},
    "rsa_theta_init": {"rsa"},
    "rsa_dropout": {"rsa", "toeplitz"},
    "rsa_normalize": MIXTURES,
    "rsa_form": MIXTURES,
    "learned_matrix_length": {"toeplitz", "full_matrix"},
    "relative_clip": {"relative"},
}


def self_attention(cfg: Namespace, sides: Sequence[str], given: set[str]) -> Iterator[str]:
    """Everything that is wrong, one line each.

    Args:
        cfg: the model's options, flat
        sides: "encoder", "decoder": the sides that the model has
        given: names of the options that were set
    """
    parts = {side: getattr(cfg, f"{side}_self_attention") for side in sides}
    for name, readers in READ_BY.items():
        if name in given and not readers & set(parts.values()):
            needed = " or ".join(f"{flag(side)}-self-attention" for side in sides)
            yield (
                f"{flag(name)} {getattr(cfg, name)} has no effect: it needs {needed} "
                f"{' or '.join(sorted(readers))}"
            )
    for side, part in parts.items():
        if part == "rsa":
            yield from rem_heads(cfg, side)
    if "rsa" in parts.values():
        yield from rem_values(cfg)
    if MIXTURES & set(parts.values()):
        yield from mixtures(cfg, set(parts.values()))
    yield from directional(cfg, parts)
    if parts["decoder"] != "dot" and getattr(cfg, "cross_self_attention", False):
        yield (
            f"--decoder-self-attention {parts['decoder']} needs a self-attention of its own, "
            "which --cross-self-attention joins with the cross-attention"
        )


def directional(cfg: Namespace, parts: dict[str, str]) -> Iterator[str]:
    """Where directional cannot be, and the heads that it cannot halve."""
    if parts["decoder"] == "directional":
        yield (
            "--decoder-self-attention directional: no position of a decoder sees later ones, so "
            "half of the heads would have nothing to look at; give --encoder-self-attention "
            "directional alone"
        )
    if parts.get("encoder") == "directional" and cfg.encoder_attention_heads % 2:
        yield (
            f"--encoder-self-attention directional needs an even number of heads, one half for "
            f"each direction: --encoder-attention-heads {cfg.encoder_attention_heads} is odd"
        )


def rem_heads(cfg: Namespace, side: str) -> Iterator[str]:
    """Numbers of heads and dilations that do not fit a side's layers."""
    try:
        parse_rem_heads(cfg.rsa_heads, cfg.rsa_dilations, getattr(cfg, f"{side}_attention_heads"))
    except ValueError as error:
        yield f"{error} ({side})"


def rem_values(cfg: Namespace) -> Iterator[str]:
    """Initial values."""
    for name in ("rsa_eta_init", "rsa_nu_init"):
        try:
            parse_range(getattr(cfg, name))
        except ValueError as error:
            yield f"{flag(name)} {error}"


def mixtures(cfg: Namespace, parts: set[str]) -> Iterator[str]:
    """The gate and the form of the mixture."""
    if cfg.rsa_gate_init != "random":
        try:
            wrong = math.isnan(float(cfg.rsa_gate_init))  # infinite ones close the gate
        except ValueError:
            wrong = True
        if wrong:
            yield f"--rsa-gate-init {cfg.rsa_gate_init}: expected a number, or random"
    if "full_matrix" in parts and cfg.rsa_form not in ("auto", "dense"):
        yield (
            f"--rsa-form {cfg.rsa_form}: full_matrix has the form dense alone; choose dense or auto"
        )
    if cfg.rsa_form == "chunked" and cfg.rsa_normalize:
        yield "--rsa-form chunked has no rows that --rsa-normalize could divide; use dense"
    if cfg.rsa_dropout == "mixed" and (
        cfg.rsa_form not in ("auto", "mixed") or "full_matrix" in parts
    ):
        yield "--rsa-dropout mixed needs a mixed map: --rsa-form mixed, and no full_matrix"
