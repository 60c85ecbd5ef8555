"""Draw the figures of the documentation: python scripts/documentation/figures.py [FOLDER].

They go to docs/figures. Kernels, neurons, segments, masks and buckets are drawn by the code
that computes them in the models.
"""

import sys
from collections.abc import Callable
from math import pi
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from documentation.drawing import (  # noqa: E402
    BACK,
    HOST,
    RECURRENT,
    SLOT,
    arrow,
    bare_map,
    box,
    canvas,
    column,
    layers,
)
from fairseq_recur.ops.accumulate_fire import accumulate_fire  # noqa: E402
from fairseq_recur.ops.attention import directional_masks  # noqa: E402
from fairseq_recur.ops.rem import rem_kernel  # noqa: E402
from fairseq_recur.ops.segments import segment_of, step_of  # noqa: E402
from fairseq_recur.ops.t5_buckets import bucket_starts, relative_buckets  # noqa: E402
from fairseq_recur.ops.toeplitz import toeplitz_matrix  # noqa: E402

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "figures"


def overview() -> Figure:
    """The one model: what is exchangeable, and what is recurrent."""
    figure, ax = canvas(8.4, 4.5)
    words = [("the same words", HOST), ("BiRNN or BiARN", RECURRENT), ("feed-forward", HOST)]
    column(ax, 1.3, 0.6, words)
    column(ax, 4.1, 0.6, [("source words", HOST), ("self-attention", SLOT), ("feed-forward", HOST)])
    column(ax, 7.0, 0.6, [
        ("target words", HOST), ("self-attention", SLOT), ("cross-attention", SLOT),
        ("fusion", RECURRENT), ("feed-forward", HOST),
    ])  # fmt: skip
    layers(ax, 1.3, 1.0, 2.35, "n ×")
    layers(ax, 4.1, 1.0, 2.35, "N ×")
    layers(ax, 7.0, 1.0, 3.79, "N ×")
    arrow(ax, (3.25, 0.6), (2.15, 0.6))
    arrow(ax, (4.95, 2.04), (6.15, 2.04))
    arrow(ax, (1.3, 2.25), (1.3, 2.76), (6.15, 2.76))
    arrow(ax, (7.0, 3.69), (7.0, 4.0))
    for text, x in (("recurrence encoder", 1.3), ("encoder", 4.1), ("decoder", 7.0)):
        ax.text(x, 0.16, text, ha="center", weight="bold")
    ax.text(7.0, 4.1, "next word", ha="center")
    notes = [
        (3.95, "self-attention: dot, relative, xl, directional; mixed with rsa, ..."),
        (3.7, "cross-attention: dot, srformer, segmented, xl, global"),
        (3.45, "fusion: stack or gated sum, in the top layer or in all"),
    ]
    for y, text in notes:
        ax.text(0.3, y, text)
    return figure


def recurrence_encoder() -> Figure:
    """BiARN's steps, and the two ways in which a decoder layer reads them."""
    figure, ax = canvas(8.4, 4.3)
    for i in range(4):
        box(ax, 0.75 + 0.85 * i, 0.5, f"$x_{i + 1}$", w=0.6)
        box(ax, 0.75 + 0.85 * i, 2.75, f"$h_{i + 1}$" if i < 3 else "$h_R$", RECURRENT, w=0.6)
        arrow(ax, (0.75 + 0.85 * i, 1.81), (0.75 + 0.85 * i, 2.54))
        arrow(ax, (0.75 + 0.85 * i, 0.71), (0.75 + 0.85 * i, 1.39))
        if i:
            arrow(ax, (0.2 + 0.85 * i, 2.75), (0.45 + 0.85 * i, 2.75))
            arrow(ax, (-0.02 + 0.85 * i, 2.54), (-0.02 + 0.85 * i, 1.81), colour=BACK)
    box(ax, 2.02, 1.6, "attention over all words, at each step", SLOT, w=3.2)
    ax.text(0.88, 2.15, "$h_1$", color=BACK)
    ax.text(0.5, 2.15, "$c_1$")
    ax.text(2.02, 3.2, "and a second chain, numbered from the end", ha="center")
    ax.text(
        2.02,
        3.85,
        "BiARN: $c_t = ATT(h_{t-1}, H)$, $h_t = GRU(c_t, h_{t-1})$",
        ha="center",
        weight="bold",
    )
    stack = [
        ("self-attention", HOST),
        ("cross-attention  D", HOST),
        ("attention over $H_r$", RECURRENT),
    ]
    column(ax, 5.0, 0.5, [*stack, ("feed-forward", HOST)])
    ax.text(5.0, 3.85, "stack", ha="center", weight="bold")
    box(ax, 7.2, 0.5, "self-attention")
    box(ax, 6.65, 1.22, "D", w=0.95)
    box(ax, 7.75, 1.22, "over $H_r$", RECURRENT, w=0.95)
    box(ax, 7.2, 1.94, "$\\lambda D + (1-\\lambda) R$", RECURRENT)
    box(ax, 7.2, 2.66, "feed-forward")
    for x in (6.65, 7.75):
        arrow(ax, (x, 0.71), (x, 1.01))
        arrow(ax, (x, 1.43), (x, 1.73))
    arrow(ax, (7.2, 2.15), (7.2, 2.45))
    ax.text(7.2, 3.85, "gated sum", ha="center", weight="bold")
    return figure


def rem(
    ax: Axes, title: str, decay: float, angle: float, sine: bool, dilation: int, causal: bool
) -> None:
    """One recurrence encoding matrix."""
    kernel = rem_kernel(
        torch.tensor([decay]), torch.tensor([angle]), torch.tensor([sine]),
        torch.tensor([dilation]), 16,
    )  # fmt: skip
    matrix = toeplitz_matrix(kernel, None if causal else kernel, 16, 16)[0]
    bare_map(ax, matrix, title, cmap="RdBu_r", vmin=-1, vmax=1)


def rsa() -> Figure:
    """The mixture of a head, and the matrices of six kinds of heads."""
    figure = plt.figure(figsize=(8.4, 4.3))
    ax = figure.add_axes((0, 0, 0.42, 1))
    ax.set(xlim=(0, 3.5), ylim=(0, 4.3))
    ax.axis("off")
    box(ax, 1.75, 0.4, "values V", w=2.6)
    box(ax, 0.95, 1.5, "softmax map\n$QK^\\top/\\sqrt{D}$", HOST, w=1.35, h=0.6)
    box(ax, 2.55, 1.5, "matrix P\n(no state)", RECURRENT, w=1.35, h=0.6)
    box(ax, 1.75, 2.75, "$(1-g)\\,softmax\\,V + g\\,P\\,V$", SLOT, w=2.6)
    for x in (0.95, 2.55):
        arrow(ax, (x, 0.61), (x, 1.2))
        arrow(ax, (x, 1.8), (x, 2.54))
    arrow(ax, (1.75, 2.96), (1.75, 3.4))
    ax.text(1.75, 3.5, "output of the head", ha="center")
    ax.text(1.75, 3.95, "$g = \\sigma(\\mu)$, one per layer", ha="center", weight="bold")
    kinds = [
        ("regular, $\\lambda=0.8$", 0.8, 0.0, False, 1, False),
        ("cosine, $\\gamma=0.9$", 0.9, pi / 4, False, 1, False),
        ("sine, $\\gamma=0.9$", 0.9, pi / 4, True, 1, False),
        ("masked", 0.8, 0.0, False, 1, True),
        ("negative $\\lambda=-0.8$", -0.8, 0.0, False, 1, True),
        ("dilated, d = 3", 0.8, 0.0, False, 3, True),
    ]
    for i, kind in enumerate(kinds):
        rem(figure.add_axes((0.45 + 0.185 * (i % 3), 0.53 - 0.47 * (i // 3), 0.165, 0.37)), *kind)
    return figure


def srformer() -> Figure:
    """Which segment a query reads, and a neuron's potential from segment to segment."""
    source, target, size = 40, 20, 8
    figure = plt.figure(figsize=(8.4, 3.2))
    ax = figure.add_axes((0.06, 0.16, 0.44, 0.68))
    segments, q = torch.tensor(source // size), torch.tensor(target)
    read = segment_of(step_of(torch.arange(target), segments, q), segments, q)
    reached = torch.arange(source)[None] // size == read[:, None]
    ax.imshow(reached, cmap="Blues", vmin=-0.15, vmax=1.4, aspect="auto")
    ax.set(xlabel="source positions", ylabel="target positions", xticks=[], yticks=[])
    ax.set_title("softmax attention to one segment;\nthe others through the neurons", fontsize=9)
    for border in range(size, source, size):
        ax.axvline(border - 0.5, color="#5f6368", linewidth=0.6)
    ax = figure.add_axes((0.58, 0.16, 0.4, 0.68))
    x = torch.tensor([0.04, 0.05, 0.06, 0.02, 0.05, 0.08, 0.01, 0.05])
    memory, leak, threshold = torch.zeros(()), torch.tensor(1.0), torch.tensor(0.1)
    before, fired = [], []
    for value in x:
        before.append(float(leak * memory + value))
        out, memory = accumulate_fire(value, memory, leak, threshold)
        fired.append(float(out))
    steps = range(1, len(before) + 1)
    ax.plot(steps, before, marker="o", label="mem before its reset")
    ax.axhline(0.1, color="#5f6368", linestyle="--", linewidth=0.8, label="threshold")
    ax.bar(steps, [0.05 * value for value in fired], color="#f0a04b", label="output (scaled)")
    ax.set(xlabel="segments, as they are read")
    ax.set_title("one accumulate-and-fire neuron", fontsize=9)
    ax.legend(frameon=False, fontsize=8, loc="upper left")
    ax.set_ylim(0, 0.24)
    return figure


def comparison_systems() -> Figure:
    """What Hao et al. compare with: lags, two directions, two columns."""
    figure = plt.figure(figsize=(8.4, 2.9))
    lags = (torch.arange(12)[None] - torch.arange(12)[:, None]).clamp(-4, 4)
    bare_map(
        figure.add_axes((0.02, 0.06, 0.175, 0.72)), lags,
        "relative positions:\na vector for each lag", cmap="RdBu_r",
    )  # fmt: skip
    backward, forward = directional_masks(torch.zeros(1, 2, 12, 4), None)
    for i, (mask, title) in enumerate(((backward, "earlier"), (forward, "later"))):
        seen = (mask.expand(12, 12) == 0) if mask.dim() == 2 else (mask == 0)
        bare_map(
            figure.add_axes((0.22 + 0.195 * i, 0.06, 0.175, 0.72)), seen.reshape(12, 12),
            f"directional:\nto {title} words", cmap="Blues", vmin=-0.15, vmax=1.4,
        )  # fmt: skip
    ax = figure.add_axes((0.6, 0, 0.4, 1))
    ax.set(xlim=(0, 3.36), ylim=(0, 2.9))
    ax.axis("off")
    box(ax, 0.85, 0.5, "Transformer encoder", w=1.5)
    box(ax, 2.5, 0.5, "BiRNN, 6 layers", RECURRENT, w=1.5)
    box(ax, 1.68, 1.3, "$H = W\\,[H_e; H_r] + b$", SLOT, w=2.2)
    box(ax, 1.68, 2.05, "all decoder layers", w=2.2)
    for start, end in (
        ((0.85, 0.71), (0.85, 1.09)),
        ((2.5, 0.71), (2.5, 1.09)),
        ((1.68, 1.51), (1.68, 1.84)),
    ):
        arrow(ax, start, end)
    ax.text(1.68, 2.5, "multi-column encoder", ha="center")
    return figure


def t5() -> Figure:
    """The buckets of T5's relative position bias."""
    figure = plt.figure(figsize=(8.4, 3.0))
    lags = torch.arange(48)[None] - torch.arange(48)[:, None]
    for i, (title, both) in enumerate((("encoder", True), ("decoder", False))):
        starts = torch.tensor(bucket_starts(8, 20))
        values = relative_buckets(lags, starts, both).float()
        if not both:
            values = values.masked_fill(lags > 0, float("nan"))
        ax = figure.add_axes((0.08 + 0.46 * i, 0.05, 0.4, 0.82))
        bare_map(ax, values, f"{title}: a bias for each bucket of distances", cmap="viridis")
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    f.__name__: f for f in (overview, recurrence_encoder, rsa, srformer, comparison_systems, t5)
}


def main(folder: Path) -> None:
    """Draw all figures into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        figure = draw()
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None}, facecolor="white")
        plt.close(figure)


if __name__ == "__main__":
    if {"-h", "--help"} & {*sys.argv}:
        print(__doc__)
        sys.exit()
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
