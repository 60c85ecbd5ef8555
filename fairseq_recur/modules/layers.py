"""How a stack of layers is built and run: activation checkpointing and sharding."""

from contextlib import nullcontext
from typing import Any

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint


def sharded(layer: nn.Module, cfg: TransformerConfig) -> nn.Module:
    """*layer*, sharded as the configuration asks (``--ddp-backend fully_sharded``)."""
    # A checkpointed layer is sharded whatever its size.
    smallest = 0 if cfg.checkpoint_activations else cfg.min_params_to_wrap
    return fsdp_wrap(layer, min_num_params=smallest)


class LayerRunner:
    """Calls the layers of a stack, with activation checkpointing as the configuration asks.

    fairseq's own wrapper only knows tensors that are arguments, and a layer's `Context` holds
    others. torch's non-reentrant form finds them, also where a module is called twice.

    Args:
        cfg: the host's configuration
    """

    def __init__(self, cfg: TransformerConfig) -> None:
        self.checkpointed = cfg.checkpoint_activations
        self.offloaded = cfg.offload_activations

    def __call__(self, layer: nn.Module, *args: Any) -> Any:
        """The result of ``layer(*args)``."""
        if not (self.checkpointed and torch.is_grad_enabled()):
            return layer(*args)
        with save_on_cpu() if self.offloaded else nullcontext():
            return checkpoint(layer, *args, use_reentrant=False)
