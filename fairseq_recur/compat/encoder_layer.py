"""The fused encoder layer of fairseq 0.12.2, and the copies of weights that it saves."""

from typing import Any

import torch

from fairseq_recur.compat.registry import Function, mend

LAYER = "fairseq.modules.transformer_layer:TransformerEncoderLayerBase"

STALE_ENCODER_KEYS: dict[str, tuple[str, ...]] = {
    **{
        f"in_proj_{kind}": tuple(f"self_attn.{x}_proj.{kind}" for x in "qkv")
        for kind in ("weight", "bias")
    },
    **{
        f"{stale}_{kind}": (f"{real}.{kind}",)
        for stale, real in (("out_proj", "self_attn.out_proj"), ("fc1", "fc1"), ("fc2", "fc2"))
        for kind in ("weight", "bias")
    },
}
"""The copies, each with the weights that it is a copy of."""


def drop_stale_encoder_keys(state_dict: dict[str, Any], prefix: str) -> None:
    """Remove, in place, the copies of weights that fairseq 0.12.2 saved with its encoder layers.

    The prefix is the name of an encoder or of one of its layers ("encoder.layers.0").
    """
    prefix = prefix.rstrip(".") + "."
    for key in [k for k in state_dict if k.startswith(prefix)]:
        layer, _, name = key.rpartition(".")
        real = STALE_ENCODER_KEYS.get(name)
        if real and all(f"{layer}.{r}" in state_dict for r in real):
            del state_dict[key]


def disable_encoder_fastpath(layer: torch.nn.Module) -> None:
    """Turn off the fused inference path of fairseq 0.12.2's encoder layer, and its copies.

    The path fails on torch >= 2; its parameters are copies without a gradient, which
    DistributedDataParallel does not accept. Does nothing to a layer without such a path.
    """
    if hasattr(layer, "can_use_fastpath"):
        setattr(layer, "can_use_fastpath", False)  # noqa: B010 (a plain attribute, no submodule)
        for name in STALE_ENCODER_KEYS:
            layer._parameters.pop(name, None)


def _has_fast_path() -> bool:
    from fairseq.modules.transformer_layer import TransformerEncoderLayerBase

    return "_load_from_state_dict" in vars(TransformerEncoderLayerBase)


old_copies = mend(
    "copies of encoder weights",
    reason="checkpoints of fairseq 0.12.2 hold copies of weights that other releases refuse",
    until="permanent: the checkpoints remain",
)


@old_copies.patch(f"{LAYER}.upgrade_state_dict_named")
def upgrade_state_dict_named(
    upgrade: Function, self: Any, state_dict: dict[str, Any], name: str
) -> None:
    """Drop the copies, unless this layer has parameters for them."""
    if not hasattr(self, "in_proj_weight"):
        drop_stale_encoder_keys(state_dict, name)
    upgrade(self, state_dict, name)


fast_path = mend(
    "encoder fast path",
    reason="the fused encoder layer of fairseq 0.12.2 ends with 'Mask Type should be defined' on "
    "torch >= 2",
    until="a fairseq newer than 0.12.2",
    needed=_has_fast_path,
)


@fast_path.patch(f"{LAYER}.__init__")
def init_layer(construct: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    """Turn the fused path off; its copies need biases, which T5's attention does not have."""
    build, without = self.build_self_attention, []

    def with_biases(*args: Any, **kwargs: Any) -> torch.nn.Module:
        attention = build(*args, **kwargs)
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            projection = getattr(attention, name)
            if projection.bias is None:
                projection.bias = torch.nn.Parameter(torch.zeros(len(projection.weight)))
                without.append(projection)
        return attention

    vars(self)["build_self_attention"] = with_biases
    construct(self, *args, **kwargs)
    del self.build_self_attention
    for projection in without:
        projection.bias = None
    self.can_use_fastpath = False


@fast_path.patch(f"{LAYER}._load_from_state_dict")
def load_from_state_dict(load: Function, self: Any, *args: Any) -> None:
    """Load as torch does where the copies are removed."""
    plain = torch.nn.Module._load_from_state_dict
    (load if hasattr(self, "in_proj_weight") else plain)(self, *args)
