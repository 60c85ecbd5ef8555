"""What fairseq wraps around every layer it builds."""

from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch import nn


def wrap_layer(layer: nn.Module, cfg: TransformerConfig) -> nn.Module:
    """*layer* with activation checkpointing and sharding as the configuration asks."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    # A checkpointed layer is sharded whatever its size.
    smallest = 0 if cfg.checkpoint_activations else cfg.min_params_to_wrap
    return fsdp_wrap(layer, min_num_params=smallest)
