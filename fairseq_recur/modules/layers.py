"""What all layers share: how they are built and run, and the feed-forward network."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from fairseq_recur import compat
from fairseq_recur.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")


def rnn_problems(cfg: Any, part: str) -> Iterator[str]:
    """What fairseq cannot do with a part that has torch's RNNs.

    Its quantization expects each weight to belong to a submodule of its own.

    Args:
        cfg: the model's options, flat
        part: the flag that asks for the part
    """
    if cfg.quant_noise_scalar:
        yield f"--quant-noise-scalar cannot quantize torch's RNN of {part}; leave one out"


def kept_layers(cfg: Any, side: str) -> list[int] | None:
    """The layers that ``--encoder-layers-to-keep`` or ``--decoder-layers-to-keep`` keeps.

    Args:
        cfg: the model's options, flat
        side: "encoder" or "decoder"

    Returns:
        numbers from the bottom, from 0, in their order: all layers without the flag, and None if
        the flag does not name layers, of which `pruning_problems` informs
    """
    given = getattr(cfg, f"{side}_layers_to_keep", None)
    if not given:
        return list(range(getattr(cfg, f"{side}_layers")))
    try:
        return sorted(map(int, given.split(",")))
    except ValueError:
        return None


def checkpointed(cfg: TransformerConfig) -> bool:
    """Whether layers keep only their inputs, which ``--offload-activations`` implies in fairseq."""
    return bool(cfg.checkpoint_activations or cfg.offload_activations)


def sharded(layer: nn.Module, cfg: TransformerConfig) -> nn.Module:
    """*layer*, sharded as the configuration asks (``--ddp-backend fully_sharded``)."""
    # A checkpointed layer is sharded whatever its size.
    smallest = 0 if checkpointed(cfg) else cfg.min_params_to_wrap
    return fsdp_wrap(layer, min_num_params=smallest)


class LayerRunner:
    """Calls the layers of a stack, with activation checkpointing as the configuration asks.

    fairseq's own wrapper only knows tensors that are arguments, and a layer's `Context` holds
    others. torch's non-reentrant form finds them, also where a module is called twice.
    """

    def __init__(self, cfg: TransformerConfig) -> None:
        self.checkpointed = checkpointed(cfg)
        self.offloaded = cfg.offload_activations

    def __call__(self, layer: Callable[..., Any], *args: Any) -> Any:
        """The result of ``layer(*args)``, of a layer or of a block among the layers."""
        if not (self.checkpointed and torch.is_grad_enabled()):
            return layer(*args)
        with save_on_cpu() if self.offloaded else nullcontext():
            return checkpoint(layer, *args, use_reentrant=False)


def between_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """Have torch.compile run *function* between two graphs, as its shapes depend on values.

    Raises:
        ConfigError: torch.export, whose graph has no breaks, comes to the function
    """
    outside: Callable[P, R] = compat.outside_graphs(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.compiler.is_compiling():
            return function(*args, **kwargs)
        if compat.is_exporting():
            raise ConfigError(
                f"torch.export cannot export {function.__qualname__}, whose shapes depend on the "
                "values of a batch, such as its lengths; use torch.compile, or the model as it is"
            )
        return outside(*args, **kwargs)

    return call


def feed_forward(layer: Any, x: Tensor) -> Tensor:
    """A layer's position-wise network with norm and residual connection: (..., C), as *x*."""
    residual = x
    if layer.normalize_before:
        x = layer.final_layer_norm(x)
    x = layer.activation_dropout_module(layer.activation_fn(layer.fc1(x)))
    if layer.ffn_layernorm is not None:
        x = layer.ffn_layernorm(x)
    x = layer.dropout_module(layer.fc2(x))
    if layer.w_resid is not None:
        residual = torch.mul(layer.w_resid, residual)
    x = layer.residual_connection(x, residual)
    return x if layer.normalize_before else layer.final_layer_norm(x)
