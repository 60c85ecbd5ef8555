"""Draw what RSA's heads contribute for a string: the paper's figure 11.

    python patterns.py CHECKPOINT STRING --output FIGURE.png [--layer N]

At the top is the matrix P of each head, and below its output P V for the string, averaged over the
channels of the head.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_recur.errors import CheckpointError, ConfigError
from fairseq_recur.inspection.matrices import head_label
from fairseq_recur.loading.models import load
from fairseq_recur.modules.mixture import Mixture
from fairseq_recur.ops.precision import at_least_float32
from fairseq_recur.plotting.figures import check_output, new_figure, plain_axes, save
from fairseq_recur.tasks.regular_languages import RegularLanguagesTask


def tokens_of(task: RegularLanguagesTask, string: str) -> Tensor:
    """Return a string's tokens (1, T), with the start symbol if the training had it.

    Raises:
        ConfigError: the string is empty or too long, or has letters that the language has not
    """
    letters = task.language.letters
    if not string or set(string) - set(letters):
        raise ConfigError(
            f"STRING {string!r}: expected letters of {task.cfg.language}, {' '.join(letters)}"
        )
    if len(string) > 2 * task.longest:
        raise ConfigError(
            f"STRING has {len(string)} letters; expected at most {2 * task.longest}, as the "
            "longest of bin 1"
        )
    words = task.source_dictionary
    first = [words.bos()] if task.cfg.add_bos_token else []
    return torch.tensor([first + [words.index(letter) for letter in string]])


def attention_of(model: nn.Module, layer: int) -> Any:
    """Return the self-attention of a layer.

    Raises:
        ConfigError: there is no such layer, or it has no matrices
    """
    layers: Any = model.decoder.layers  # type: ignore[union-attr]
    if not 0 <= layer < len(layers):
        raise ConfigError(f"--layer {layer}: expected 0 to {len(layers) - 1}")
    attention = layers[layer].self_attn
    if not isinstance(getattr(attention, "mixture", None), Mixture):
        raise ConfigError(
            f"layer {layer} has no recurrence encoding matrices; give a checkpoint of RSA"
        )
    return attention


def outputs(model: nn.Module, attention: Any, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return P (H', T, T) of the heads that have a matrix, and P V averaged over channels (H', T).

    Args:
        model: in evaluation mode
        attention: one of its self-attentions
        tokens: (1, T)
    """
    kept: list[Tensor] = []
    handle = attention.v_proj.register_forward_hook(lambda _, __, values: kept.append(values))
    try:
        model(tokens)
    finally:
        handle.remove()
    mixture, length = attention.mixture, tokens.size(1)
    matrix = mixture.applied(mixture.matrix(length, length), None)[: mixture.mixing]
    values = at_least_float32(attention.split(kept[0]))[0, : mixture.mixing]
    return matrix, torch.matmul(matrix, values).mean(-1)


def draw(matrix: Tensor, out: Tensor, labels: Sequence[str], letters: Sequence[str]) -> Any:
    """Draw a column for each head: its matrix, and its output over the string."""
    heads = len(matrix)
    figure = new_figure(max(5.0, 2.6 * heads), 5.0)
    axes = figure.subplots(2, heads, squeeze=False, height_ratios=[2, 1])
    largest = max(float(matrix.abs().max()), 1e-12)
    for head, (top, bottom) in enumerate(zip(*axes)):
        image = top.imshow(matrix[head], cmap="RdBu_r", vmin=-largest, vmax=largest)
        for axis in (top.xaxis, top.yaxis):
            axis.get_major_locator().set_params(integer=True)
        top.set_title(f"{head}: {labels[head]}", fontsize=9)
        bottom.plot(range(len(letters)), out[head].tolist(), marker=".")
        bottom.set_xticks(range(len(letters)), letters, fontsize=8)
        plain_axes(bottom)
    axes[1][0].set_ylabel("P V, mean of channels")
    figure.colorbar(image, ax=axes[0].tolist(), shrink=0.8)
    return figure


@torch.no_grad()
def main(arguments: Sequence[str]) -> int:
    """Load the model and draw; return 0, or 2 for wrong input."""
    parser = argparse.ArgumentParser(
        description=str(__doc__).split("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path, help="of run.sh")
    parser.add_argument("string", metavar="STRING", help="letters of the language")
    parser.add_argument("--output", required=True, metavar="FIGURE", help=".png, .pdf or .svg")
    parser.add_argument("--layer", type=int, default=0, metavar="N", help="layer number from 0")
    args = parser.parse_args(arguments)
    try:
        output = check_output(args.output)
        loaded = load(args.checkpoint, kinds=(RegularLanguagesTask,))
        task: Any = loaded.task
        tokens, model = tokens_of(task, args.string), loaded.models[0].eval()
        attention = attention_of(model, args.layer)
        matrix, out = outputs(model, attention, tokens)
        labels = [head_label(attention.mixture, head) for head in range(len(matrix))]
        letters = ["<s>"] * bool(task.cfg.add_bos_token) + [*args.string]
        save(draw(matrix, out, labels, letters), output)
    except (ConfigError, CheckpointError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
