"""Layers that ``--encoder-layers-to-keep`` and ``--decoder-layers-to-keep`` leave of a model.

fairseq's own function for this drops all layers of the side that has no such flag, also renumbers
the layers of a recurrence encoder, prunes a pruned checkpoint once more, and leaves a configuration
that does not say how many layers are left.
"""

import logging
import re
from argparse import Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf, open_dict
from torch import Tensor

from fairseq_recur.modules.layers import kept_layers
from fairseq_recur.modules.parts import MEMORY, NONE, layer_fusion

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pruning:
    """What is left of a model.

    Attributes:
        kept: {side: numbers of the layers that are left}, of the sides that lose layers
        options: {name: value} that build a model of these layers, where they differ from the
            given ones
    """

    kept: dict[str, list[int]]
    options: dict[str, Any]

    def prune(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return a checkpoint's weights without the layers that are not kept.

        A checkpoint with as many layers as are kept is a pruned one, and stays as it is.
        """
        for side, layers in self.kept.items():
            pattern = re.compile(rf"{side}\.layers\.(\d+)\.")
            found = {name: int(match[1]) for name in weights if (match := pattern.match(name))}
            if len(set(found.values())) == len(layers):
                continue
            logger.info(f"of the checkpoint's {side}, layers {layers} are kept")
            pruned = {}
            for name, weight in weights.items():
                if name not in found:
                    pruned[name] = weight
                elif found[name] in layers:
                    number = layers.index(found[name])
                    pruned[pattern.sub(f"{side}.layers.{number}.", name)] = weight
            weights = pruned
        return weights

    def write(self, cfg: Any) -> None:
        """Put the options that build the pruned model into a configuration, which is saved.

        Args:
            cfg: part of fairseq's configuration, a Namespace, or None
        """
        if cfg is None:
            return
        with open_dict(cfg) if OmegaConf.is_config(cfg) else nullcontext():
            for name, value in self.options.items():
                setattr(cfg, name, value)


def prune_options(options: Namespace) -> Pruning:
    """Change a model's options, flat and checked, to those of the layers that are kept."""
    before = dict(vars(options))
    kept = {
        side: layers
        for side in ("encoder", "decoder")
        if before.get(f"{side}_layers_to_keep") and (layers := kept_layers(options, side))
    }
    if "decoder" in kept:
        # The parts count layers of the whole model, from the top.
        if hasattr(options, "recurrence"):
            fusion = layer_fusion(options)
            if fusion is not None:
                options.recurrence_fused_layers = str(
                    fusion.kept_fused_layers(options, kept["decoder"])
                )
        elif options.decoder_memory != NONE:
            MEMORY[options.decoder_memory].prune(options)
    for side, layers in kept.items():
        setattr(options, f"{side}_layers", len(layers))
        setattr(options, f"{side}_layers_to_keep", None)
    return Pruning(kept, {n: v for n, v in vars(options).items() if v != before[n]})


def pruning_problems(cfg: Namespace) -> Iterator[str]:
    """Layers to keep that the model does not have.

    Args:
        cfg: the model's options, flat
    """
    for side in ("encoder", "decoder"):
        given = getattr(cfg, f"{side}_layers_to_keep", None)
        if not given:
            continue
        count = getattr(cfg, f"{side}_layers")
        layers = kept_layers(cfg, side)
        if layers is None:
            yield (
                f"--{side}-layers-to-keep {given}: expected comma-separated numbers of layers, the "
                "lowest of which is 0"
            )
            continue
        if len(set(layers)) < len(layers) or not set(layers) <= set(range(count)):
            yield (
                f"--{side}-layers-to-keep {given}: the {side} has {count} layers "
                f"(--{side}-layers); give numbers from 0 to {count - 1}, each of them once"
            )
