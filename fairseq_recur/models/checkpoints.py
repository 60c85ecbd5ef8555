"""Adapting checkpoints of other fairseq versions, of the stock Transformer and of BART."""

import logging
from argparse import Namespace
from collections import defaultdict
from contextlib import nullcontext
from typing import Any

from fairseq.models import BaseFairseqModel, FairseqEncoderDecoderModel
from omegaconf import OmegaConf, open_dict
from torch import Tensor, nn

from fairseq_recur import compat
from fairseq_recur.compat.registry import Function, extend
from fairseq_recur.errors import first_lines
from fairseq_recur.integration import from_checkpoint
from fairseq_recur.modules.fusion import Replacement
from fairseq_recur.modules.learned_matrices import FullMatrix
from fairseq_recur.modules.part import FreshWeights
from fairseq_recur.modules.stream_memory import StreamMemory, is_memory

logger = logging.getLogger(__name__)

TABLES = (
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "decoder.output_projection.weight",
)

Weights = dict[str, Tensor]

OLD_OPTIONS: dict[str, tuple[str, dict[Any, Any]]] = {
    "rsa_share": ("rsa_untie_conjugates", {"pairs": False, "none": True}),
    "srformer_sigma": ("srformer_learned_mix", {}),
}
"""Former names of options: the present name, and present values of former ones."""

NEW_OPTIONS = {"latent_state_norm": ("latent_every", "none")}
"""Options whose preset is not what earlier versions did: an older option beside them, and what they
did."""

OLD_MODULES = {".encoder_attn.sigma.": ".encoder_attn.learned_mix."}
"""Former names of modules in the names of weights."""


@extend("fairseq.checkpoint_utils:_upgrade_state_dict", "former names of options")
def upgrade_state_dict(upgrade: Function, state: dict[str, Any]) -> Any:
    """Give the model's options of an old checkpoint their present names and values."""
    state = upgrade(state)
    cfg = state.get("cfg")
    # omegaconf 2.0 has no .get() for a missing key.
    options = cfg["model"] if cfg is not None and "model" in cfg else None
    if options is None:
        return state
    with open_dict(options) if OmegaConf.is_config(options) else nullcontext():
        rename_old_options(vars(options) if isinstance(options, Namespace) else options)
    return state


def rename_old_options(options: Any) -> None:
    """Give a mapping of the model's options their present names and values, in place."""
    for old, (new, values) in OLD_OPTIONS.items():
        if old in options:
            value = options.pop(old)
            options[new] = values.get(value, value)
    for new, (older, value) in NEW_OPTIONS.items():
        if older in options:
            options.setdefault(new, value)


def upgrade_weights(model: BaseFairseqModel, weights: Weights) -> None:
    """Make the weights of a checkpoint fit a model, in place.

    Parts in a slot for which the checkpoint has no weight at all keep their fresh weights,
    and are named in the log; so a stock Transformer's checkpoint starts any preset. Only a
    training that is resumed needs a memory, and only a model that has one.
    """
    kept: tuple[str, ...] = ()
    if not from_checkpoint():
        modules = model.named_modules()
        kept = tuple(f"{name}." for name, module in modules if isinstance(module, StreamMemory))
    for name in [name for name in weights if is_memory(name) and not name.startswith(kept)]:
        del weights[name]
    if from_checkpoint():
        fit_matrices(model, weights)
    for name in list(weights):
        for old, new in OLD_MODULES.items():
            if old in name:
                weights[name.replace(old, new)] = weights.pop(name)
    for side in ("encoder", "decoder"):
        if getattr(getattr(model, side, None), "embed_positions", None) is None:
            # fairseq 0.12.2 saves this buffer of positions that the model lacks.
            weights.pop(f"{side}.embed_positions._float_tensor", None)
    if isinstance(model, FairseqEncoderDecoderModel):
        drop_what_only_bart_has(weights, model)
        for i in range(model.encoder.num_layers):
            compat.drop_stale_encoder_keys(weights, f"encoder.layers.{i}.")
        drop_what_parts_replace(weights, model)
    for parts in part_weights(model).values():
        if any(own.keys() & weights.keys() for own in parts.values()):
            continue
        for part, own in parts.items():
            weights.update(own)
            size = sum(w.numel() for w in own.values())
            logger.warning(
                f"initialised fresh, as the checkpoint does not have it: {part} "
                f"({len(own)} tensors, {size:,} values)"
            )


def fit_matrices(model: BaseFairseqModel, weights: Weights) -> None:
    """Give learned matrices the shape of a checkpoint's: evaluation may have another memory."""
    for name, module in model.named_modules():
        if isinstance(module, FullMatrix) and f"{name}.weight" in weights:
            module.fit(weights[f"{name}.weight"])


def part_weights(model: BaseFairseqModel) -> dict[str, dict[str, Weights]]:
    """The weights that a stock Transformer lacks: {slot: {part's name: {key: weight}}}."""
    weights: dict[str, dict[str, Weights]] = defaultdict(dict)
    for name, module in model.named_modules():
        if isinstance(module, FreshWeights) and isinstance(module, nn.Module):
            weights[module.slot][name] = module.state_dict(prefix=name + ".")
    return weights


def drop_what_only_bart_has(weights: Weights, model: BaseFairseqModel) -> None:
    """Remove classification heads and the row of <mask>, in place, as fairseq's own BART does.

    The row is removed if the model has BART's embeddings, learned positions with a norm, and one
    word less than the checkpoint: it was the last word, used in pretraining only. What is
    removed is named in the log.
    """
    heads = [name for name in weights if name.startswith("classification_heads.")]
    for name in heads:
        del weights[name]
    if heads:
        logger.warning(f"left out, as the model has no such part: {', '.join(heads)}")
    cfg, words = model.encoder.cfg, model.encoder.dictionary
    table = weights.get(TABLES[0])
    if not (cfg.layernorm_embedding and cfg.encoder.learned_pos) or table is None:
        return
    if len(table) == len(words) + 1 and "<mask>" not in words:
        for name in TABLES:
            if name in weights:
                weights[name] = weights[name][:-1]
        logger.warning("left out: the embedding of <mask>, which the dictionary does not have")


def drop_what_parts_replace(weights: Weights, model: BaseFairseqModel) -> None:
    """Remove, in place, a stock checkpoint's cross-attention of layers that have a `Replacement`.

    What is removed is named in the log.
    """
    for index, layer in enumerate(model.decoder.all_layers()):
        if isinstance(getattr(layer, "fusion", None), Replacement):
            attention = f"decoder.layers.{index}.encoder_attn"
            names = [name for name in weights if name.startswith(attention)]
            for name in names:
                del weights[name]
            if names:
                logger.warning(f"left out, as the layer reads the recurrence encoder: {attention}")


def misfits(model: BaseFairseqModel, weights: Weights) -> str:
    """How a checkpoint's weights differ from the model's, one line each; empty if they do not."""
    own = model.state_dict()
    weights = {name: weight for name, weight in weights.items() if not is_memory(name)}
    shapes = [
        f"{key} is {tuple(weights[key].shape)} in the checkpoint and "
        f"{tuple(own[key].shape)} in the model"
        for key in own
        if key in weights and weights[key].shape != own[key].shape
    ]
    groups = {
        "the checkpoint lacks": sorted(own.keys() - weights.keys()),
        "the model does not have": sorted(weights.keys() - own.keys()),
    }
    lines = shapes + [f"{what} {', '.join(keys)}" for what, keys in groups.items() if keys]
    if not lines:
        return ""
    if lines == shapes and all("embed_tokens" in s or "output_projection" in s for s in shapes):
        remedy = (
            "its vocabulary has another size: use the dict.*.txt that it was trained "
            "with (fairseq-preprocess --srcdict and --tgtdict)"
        )
    elif lines == shapes and all("embed_positions" in s for s in shapes):
        remedy = (
            "its table of positions has another size: give the checkpoint's, without its two "
            "further rows, as --max-source-positions and --max-target-positions; longer texts "
            "need another model, such as T5"
        )
    elif lines == shapes and all("mixture.weight" in s for s in shapes):
        remedy = (
            "its learned matrices have another size: give the --memory-length and the "
            "--learned-matrix-length of its training; with a memory, square ones are of an earlier "
            "version, which had rows for the memory, too: train again, or use that version"
        )
    else:
        remedy = (
            "it belongs to another architecture: give the --arch and the sizes that it was "
            "trained with; only a stock transformer's checkpoint of the same sizes starts "
            "a model with further parts (--finetune-from-model)"
        )
    short = [line if len(line) < 300 else line[:300] + " ..." for line in lines]
    headline = f"the checkpoint does not fit the model; {remedy}"
    return "\n- ".join([headline, *first_lines(short, 8)])
