"""Capturing attention weights and gates during a forward pass, without changing the model.

Hooks request each attention's weights per head and keep them; the modules compute the same
results. The hooks are removed at the end.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from fairseq.modules import MultiheadAttention
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fairseq_recur.modules.biarn import BiARN
from fairseq_recur.modules.fusion import GatedSumFusion, LayerFusion
from fairseq_recur.modules.multihead import MultiheadBase

KINDS = ("encoder", "decoder", "cross", "steps", "fusion", "gate")
"""Self-attention of the encoder and of the decoder, cross-attention, the steps of an attentive
recurrence encoder, attention over the recurrence encoder, and lambda of the gated sum."""

Place = tuple[str, int]
"""One of KINDS, and the layer."""

Maps = dict[Place, Tensor]
"""Attention: (H, T, S). Steps: (2, H, R, S). Gate: (T, C), or (T, 1) for a scalar gate."""


def places(model: nn.Module) -> dict[Place, nn.Module]:
    """Find the modules of an encoder-decoder that have weights or gates, in the order of KINDS."""
    found: dict[Place, nn.Module] = {}
    attentions = (
        ("encoder", model.encoder, "self_attn"),
        ("decoder", model.decoder, "self_attn"),
        ("cross", model.decoder, "encoder_attn"),
    )
    for kind, side, name in attentions:
        for index, layer in enumerate(layers_of(side)):
            module = getattr(layer, name, None)
            if isinstance(module, MultiheadAttention) and getattr(module, "has_weights", True):
                found[kind, index] = module
    for index, layer in enumerate(layers_of(getattr(model.encoder, "recurrence_encoder", None))):
        if isinstance(layer.recurrence, BiARN):
            found["steps", index] = layer.recurrence
    fusions = [getattr(layer, "fusion", None) for layer in layers_of(model.decoder)]
    for index, fusion in enumerate(fusions):
        if isinstance(fusion, LayerFusion):
            found["fusion", index] = fusion.attention
    for index, fusion in enumerate(fusions):
        if isinstance(fusion, GatedSumFusion):
            found["gate", index] = fusion
    return found


def layers_of(stack: Any) -> list[nn.Module]:
    """The layers of an encoder or a decoder, from the bottom; an empty list for anything else."""
    layers = getattr(stack, "layers", [])
    return [layers[index] for index in range(len(layers))]  # iteration may skip some (LayerDrop)


@contextmanager
def captured(model: nn.Module) -> Iterator[Maps]:
    """Within this context, keep the maps of the last forward pass.

    Args:
        model: an encoder-decoder in evaluation mode, which gets one sentence without padding

    Yields:
        the maps, which each forward pass replaces
    """
    maps: Maps = {}
    handles: list[RemovableHandle] = []
    for place, module in places(model).items():
        keep = {"steps": keep_steps, "gate": keep_gate}.get(place[0], keep_weights)
        if keep is keep_weights:
            handles.append(module.register_forward_pre_hook(want_weights, with_kwargs=True))
        hook = partial(keep, maps, place)
        handles.append(module.register_forward_hook(hook, with_kwargs=True))
    try:
        yield maps
    finally:
        for handle in handles:
            handle.remove()


def want_weights(
    module: nn.Module, args: Any, kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Request an attention's weights per head."""
    wanted = {"need_weights": True, "need_head_weights": True}
    if not isinstance(module, MultiheadBase) and kwargs.get("incremental_state") is None:
        # Otherwise fairseq calls torch's attention, which averages over the heads.
        wanted["static_kv"] = True
    return args, {**kwargs, **wanted}


def keep_weights(maps: Maps, place: Place, module: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Keep an attention's weights."""
    if out[1] is not None:
        maps[place] = out[1][:, 0].detach().float()


def keep_steps(maps: Maps, place: Place, module: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Keep the attention weights of an attentive recurrent network's steps."""
    maps[place] = module.weights(*args, **kwargs, out=out)[0].detach().float()


def keep_gate(maps: Maps, place: Place, module: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Keep lambda of a gated sum."""
    maps[place] = module.gate(*args, **kwargs)[:, 0].detach().float()
