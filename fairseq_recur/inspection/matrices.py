"""The matrices that a checkpoint mixes with its attention, and what can be read off them."""

import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from fairseq.models.transformer import TransformerConfig
from torch import Tensor

from fairseq_recur.errors import CheckpointError, ConfigError
from fairseq_recur.loading.states import read_state, saved_options
from fairseq_recur.models.config import encoder_decoder_slots, part_fields
from fairseq_recur.modules.mixture import LagMixture, Mixture
from fairseq_recur.modules.parts import CROSS_MIXTURE, MIXTURE, map_and_mixture
from fairseq_recur.modules.rem import RecurrenceEncodingMatrices

LAYER = re.compile(
    r"^(?P<prefix>(?P<side>encoder|decoder)\.layers\.(?P<index>\d+)\."
    r"(?P<attention>self|encoder)_attn\.mixture\.)mu$"
)
SHARE = 0.95
"""Share of a kernel's absolute values within its effective memory."""
LONGEST = 4096
"""Number of lags over which the memory of an unlimited kernel is measured."""

Layers = dict[str, Mixture]
"""Matrices and gates by the names of their layers, such as encoder.0."""
LagLayers = dict[str, LagMixture]
"""Those that have kernels."""


def read_layers(path: str) -> Layers:
    """Read the matrices of a checkpoint: {"encoder.0": mixture, ...}, in the order of the layers.

    Raises:
        CheckpointError: the file is not a usable checkpoint, or its options and weights do not fit
        ConfigError: the file does not exist, or its model has no such matrices
    """
    if not Path(path).is_file():
        raise ConfigError(f"no such checkpoint: {path}; give an existing file")
    state = read_state(path)
    defaults = {name: made.default for name, _, made in part_fields(encoder_decoder_slots())}
    options = {**defaults, **saved_options(state)}
    host = TransformerConfig.from_namespace(Namespace(**options))
    layers: Layers = {}
    for name in state["model"]:
        match = LAYER.match(name)
        if match:
            side = "cross" if match["attention"] == "encoder" else match["side"]
            try:
                mixture = build_mixture(host, side)
                mixture.load_state_dict(below(match["prefix"], state["model"]))
            except (KeyError, RuntimeError) as error:
                raise CheckpointError(
                    f"{path}: its options do not fit its weights {match['prefix']}*; give the "
                    "checkpoint that fairseq-train saved, or import the plug-in that has its parts "
                    "(--user-dir)"
                ) from error
            layers[f"{side}.{match['index']}"] = mixture.float().requires_grad_(False)
    if not layers:
        raise ConfigError(
            f"{path} has no recurrence encoding matrices; expected a model with "
            "--encoder-self-attention or --decoder-self-attention rsa, toeplitz or full_matrix, or "
            "with --cross-attention-mixture rsa; `plot attention` draws other models"
        )
    return layers


def build_mixture(host: TransformerConfig, side: str) -> Any:
    """Build the mixture of the "encoder", the "decoder" or the "cross" attention.

    Raises:
        KeyError: no part of this name is known
    """
    if side == "cross":
        return CROSS_MIXTURE[host.cross_attention_mixture](host)
    return MIXTURE[map_and_mixture(host, side)[1]](host, side)


def below(prefix: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights whose names begin with a prefix, by the rest of their names."""
    return {name[len(prefix) :]: x for name, x in weights.items() if name.startswith(prefix)}


def with_kernels(layers: Layers) -> LagLayers:
    """The layers whose matrices depend on the lag only, and so have kernels."""
    return {name: mixture for name, mixture in layers.items() if isinstance(mixture, LagMixture)}


def sides(layer: LagMixture, length: int) -> list[Tensor]:
    """The kernel (H', L) of earlier keys and, where it is another one, that of later keys."""
    past, future = layer.kernels(length)
    return [past] if future is None or future is past else [past, future]


def memory_lengths(layer: LagMixture) -> list[int]:
    """Per head, the number of lags that hold 95% of the absolute values of its kernel.

    Where later keys have values of their own, the lags of both sides count together. An all-zero
    kernel gives 0.
    """
    kernel = torch.stack([side.abs() for side in sides(layer, LONGEST)]).sum(dim=0)
    held = kernel.cumsum(1) >= SHARE * kernel.sum(1, keepdim=True)
    return held.int().argmax(dim=1).tolist()


def head_label(mixture: Mixture, head: int) -> str:
    """A short text with a head's parameters."""
    if not isinstance(mixture, RecurrenceEncodingMatrices):
        return "learned"
    decay, angle = (float(x[head]) for x in mixture.heads_parameters())
    dilation = int(mixture.dilation[head])
    every = f", d={dilation}" if dilation > 1 else ""
    if angle == 0 and not mixture.sine[head]:
        return f"\u03bb={decay:.2f}{every}"
    kind = "sin" if mixture.sine[head] else "cos"
    return f"{kind} \u03b3={decay:.2f} \u03b8={angle:.2f}{every}"
