"""Drawing the recurrence encoding matrices of checkpoints."""

import argparse
import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq.models.transformer import TransformerConfig
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_recur import compat
from fairseq_recur.cli.figures import COLOURS, new_figure, plain_axes
from fairseq_recur.errors import ConfigError
from fairseq_recur.modules.mixture import LagMixture
from fairseq_recur.modules.parts import SELF_ATTENTION
from fairseq_recur.modules.rem import RecurrenceEncodingMatrices

SHOWN = ("gates", "memory", "kernels", "matrices")
LAYER = re.compile(
    r"^(?P<prefix>(?P<side>encoder|decoder)\.layers\.(?P<index>\d+)\.self_attn\.mixture\.)mu$"
)
SHARE = 0.95
"""Share of a kernel's absolute values that its effective memory holds."""
LONGEST = 4096
"""Lags over which an unlimited kernel's memory is measured."""

Layers = dict[str, LagMixture]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options for checkpoints."""
    group = parser.add_argument_group("checkpoints")
    group.add_argument(
        "--show",
        nargs="+",
        choices=SHOWN,
        default=list(SHOWN[:3]),
        help="gates: the matrix's share in each layer; memory: lags that hold 95%% of each "
        "head's kernel; kernels: each head over the lags; matrices: P itself",
    )
    group.add_argument(
        "--layer",
        metavar="NAME",
        help="kernels and matrices of one layer, such as encoder.0 (otherwise the kernels of "
        "all, the matrices of the first)",
    )
    group.add_argument("--lags", type=int, default=50, metavar="N", help="lags to draw")


def read_layers(path: str) -> Layers:
    """Read the matrices of a checkpoint: {"encoder.0": mixture, ...}, in the order of the layers.

    Raises:
        CheckpointError: not a checkpoint that can be used
        ConfigError: a checkpoint without such matrices
    """
    if not Path(path).is_file():
        raise ConfigError(f"no such checkpoint: {path}; give a file that is there")
    state = compat.read_checkpoint(path)
    cfg = OmegaConf.to_container(OmegaConf.create(state["cfg"]), resolve=True)["model"]
    options = cfg if isinstance(cfg, dict) else vars(cfg)
    host = TransformerConfig.from_namespace(Namespace(**options))
    layers: Layers = {}
    for name in state["model"]:
        match = LAYER.match(name)
        if match:
            side, prefix = match["side"], match["prefix"]
            part = SELF_ATTENTION[options[f"{side}_self_attention"]]
            mixture = part(host, side, torch.nn.Identity).mixture
            weights = state["model"].items()
            mixture.load_state_dict(
                {k[len(prefix) :]: v for k, v in weights if k.startswith(prefix)}
            )
            if isinstance(mixture, LagMixture):
                layers[f"{side}.{match['index']}"] = mixture.float()
    if not layers:
        raise ConfigError(
            f"{path} has no recurrence encoding matrices; expected a model with "
            "--encoder-self-attention or --decoder-self-attention rsa or toeplitz"
        )
    return layers


@torch.no_grad()
def gate_value(layer: LagMixture) -> list[float]:
    """Return g = sigma(mu) alone."""
    return [float(torch.sigmoid(layer.mu))]


@torch.no_grad()
def memory_lengths(layer: LagMixture) -> list[int]:
    """Say for each head how many lags hold 95% of the absolute values of its kernel.

    A row of the kernel without values gives 0.
    """
    kernel = layer.kernels(LONGEST)[0].abs()
    held = kernel.cumsum(1) >= SHARE * kernel.sum(1, keepdim=True)
    return held.int().argmax(dim=1).tolist()


def draw(runs: Sequence[tuple[str, str]], show: Sequence[str], layer: str | None, lags: int) -> Any:
    """Draw what is asked for, a row each, of every checkpoint.

    Args:
        runs: (label, path)
        show: some of SHOWN
        layer: name of the layer for kernels and matrices, or None
        lags: number of lags, or of positions of a matrix

    Returns a matplotlib Figure.
    Raises ConfigError for a layer that a checkpoint does not have.
    """
    if lags < 2:
        raise ConfigError(f"--lags {lags}: at least 2 are needed")
    models = [(label, read_layers(path)) for label, path in runs]
    for label, layers in models:
        if layer and layer not in layers:
            raise ConfigError(
                f"--layer {layer}: {label} has {', '.join(layers)}; choose one of them"
            )
    rows: list[tuple[str, str, Layers]] = []
    for name in show:
        if name in ("gates", "memory"):
            rows.append((name, "", {}))
        else:
            rows += [(name, label, layers) for label, layers in models]
    figure = new_figure(12.0, 3.4 * len(rows))
    parts = figure.subfigures(len(rows), 1, squeeze=False)[:, 0]
    for part, (name, label, layers) in zip(parts, rows):
        if name == "gates":
            draw_by_layer(part, models, "gate", gate_value)
        elif name == "memory":
            draw_by_layer(part, models, f"lags with {SHARE:.0%} of the kernel", memory_lengths)
        elif name == "kernels":
            draw_kernels(part, label, {layer: layers[layer]} if layer else layers, lags)
        else:
            chosen = layer or next(iter(layers))
            draw_matrices(part, f"{label}, {chosen}", layers[chosen], lags)
    return figure


def draw_by_layer(part: Any, models: Sequence[tuple[str, Layers]], title: str, values: Any) -> None:
    """Draw a few values of each layer as points over the layers, a colour for each checkpoint."""
    axes = part.subplots()
    names = sorted({name for _, layers in models for name in layers}, key=_order)
    for index, (label, layers) in enumerate(models):
        points = [(names.index(n), v) for n, m in layers.items() for v in values(m)]
        xs, ys = zip(*points)
        colour = COLOURS[index % len(COLOURS)]
        shifted = [x + 0.08 * (index - (len(models) - 1) / 2) for x in xs]
        axes.plot(shifted, ys, "o", color=colour, alpha=0.7, label=label)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel(title)
    axes.set_ylim(0, 1.1 * max(axes.get_ylim()[1], 1e-3))
    axes.legend(frameon=False, fontsize=9)
    plain_axes(axes)


def draw_kernels(part: Any, label: str, layers: Layers, lags: int) -> None:
    """Draw f over the lags, a panel for each layer and a line for each head."""
    row = part.subplots(1, len(layers), squeeze=False, sharey=True)[0]
    for axes, (name, mixture) in zip(row, layers.items()):
        with torch.no_grad():
            kernel = mixture.kernels(lags + 1)[0]
        for head, values in enumerate(kernel):
            axes.plot(
                range(1, len(values)),
                values[1:].tolist(),
                color=COLOURS[head % len(COLOURS)],
                linewidth=1.2,
                label=f"{head}: {head_label(mixture, head)}",
            )
        axes.set_title(f"{label}, {name}", fontsize=9)
        axes.set_xlabel("lag")
        axes.legend(frameon=False, fontsize=6)
        plain_axes(axes)
    row[0].set_ylabel("kernel")


def draw_matrices(part: Any, title: str, mixture: LagMixture, size: int) -> None:
    """Draw P of each head as an image, red above zero and blue below."""
    with torch.no_grad():
        matrices: Tensor = mixture.matrix(size, size)
    row = part.subplots(1, len(matrices), squeeze=False)[0]
    largest = max(float(matrices.abs().max()), 1e-12)
    for head, (axes, matrix) in enumerate(zip(row, matrices)):
        image = axes.imshow(matrix, cmap="RdBu_r", vmin=-largest, vmax=largest)
        axes.set_title(f"{head}: {head_label(mixture, head)}", fontsize=7)
        axes.tick_params(labelsize=6)
    part.colorbar(image, ax=row.tolist(), shrink=0.8)
    part.suptitle(title, fontsize=9)


@torch.no_grad()
def head_label(mixture: LagMixture, head: int) -> str:
    """Write a head's parameters in short."""
    if not isinstance(mixture, RecurrenceEncodingMatrices):
        return "learned"
    decay, angle = (float(x[head]) for x in mixture.heads_parameters())
    dilation = int(mixture.dilation[head])
    every = f", d={dilation}" if dilation > 1 else ""
    if angle == 0 and not bool(mixture.sine[head]):
        return f"\u03bb={decay:.2f}{every}"
    kind = "sin" if bool(mixture.sine[head]) else "cos"
    return f"{kind} \u03b3={decay:.2f} \u03b8={angle:.2f}{every}"


def _order(name: str) -> tuple[bool, int]:
    """Sort the encoder's layers before the decoder's, each by number."""
    side, index = name.split(".")
    return side == "decoder", int(index)
