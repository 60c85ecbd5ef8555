"""Options of fairseq's Transformer that it takes, and then stops at far within."""

import importlib.util
import os
from argparse import Namespace
from collections.abc import Iterator, Sequence

import torch
from fairseq.data import Dictionary
from fairseq.dataclass.utils import eval_str_list

from fairseq_recur import compat
from fairseq_recur.errors import ConfigError
from fairseq_recur.models.flags import flag


def host(cfg: Namespace, sides: Sequence[str], target: Dictionary) -> Iterator[str]:
    """Everything that is wrong, one line each.

    Args:
        cfg: the model's options, flat
        sides: "encoder", "decoder": the sides that the model has
        target: the target's dictionary
    """
    for side in sides:
        if hasattr(cfg, f"{side}_embed_path"):
            yield from embeddings(cfg, side)
        yield from kept_layers(cfg, side)
        yield from xformers(cfg, side)
        yield from quantization(cfg, side)
    yield from adaptive_softmax(cfg, target)
    width, output = cfg.decoder_embed_dim, cfg.decoder_output_dim
    if cfg.share_decoder_input_output_embed and width != output:
        yield (
            f"--decoder-output-dim {output} is not the --decoder-embed-dim {width} of the "
            "embeddings that --share-decoder-input-output-embed or --share-all-embeddings share; "
            "give both one number"
        )
    if cfg.base_layers and not torch.distributed.is_initialized():
        yield (
            f"--base-layers {cfg.base_layers} needs a training of several processes (torchrun); "
            "use torchrun, or leave it out"
        )


def embeddings(cfg: Namespace, side: str) -> Iterator[str]:
    """The file of pre-trained embeddings: a header, then a word and its numbers in each line."""
    path, width = getattr(cfg, f"{side}_embed_path"), getattr(cfg, f"{side}_embed_dim")
    if path is None:
        return
    name = f"--{side}-embed-path {path}"
    if not os.path.isfile(path):
        yield f"{name}: no such file; give a text file of word vectors"
        return
    try:
        with open(path, encoding="utf-8") as lines:
            next(lines)
            numbers = [float(word) for word in next(lines).rstrip().split(" ")[1:]]
    except (StopIteration, ValueError, OSError):
        yield f"{name}: expected a header, then lines of a word and its numbers"
        return
    if len(numbers) != width:
        yield (
            f"{name}: {len(numbers)} numbers a word, but --{side}-embed-dim is {width}; "
            "give both one number"
        )


def kept_layers(cfg: Namespace, side: str) -> Iterator[str]:
    """Numbers of the layers that are kept."""
    kept, layers = getattr(cfg, f"{side}_layers_to_keep"), getattr(cfg, f"{side}_layers")
    if not kept:
        return
    words = kept.split(",")
    if not all(word in map(str, range(layers)) for word in words):
        yield (
            f"--{side}-layers-to-keep {kept}: expected numbers of layers from 0 to {layers - 1} "
            f"(--{side}-layers), with commas between"
        )


def xformers(cfg: Namespace, side: str) -> Iterator[str]:
    """A configuration of xFormers, and whether there is an xFormers."""
    name = f"{side}_xformers_att_config"
    given = getattr(cfg, name)
    if given is None:
        return
    try:
        found = compat.evaluate(given)
    except ConfigError as error:
        yield f"{flag(name)}: {error}"
        return
    if not isinstance(found, dict):
        yield f"{flag(name)} {given}: expected a dictionary such as {{'name': 'linformer'}}"
    elif importlib.util.find_spec("xformers") is None:
        yield (
            f"{flag(name)} {given}: needs the package xformers, which is not installed; "
            "pip install xformers, or leave it out"
        )


def adaptive_softmax(cfg: Namespace, target: Dictionary) -> Iterator[str]:
    """Where the dictionary is cut into clusters."""
    cuts = cfg.adaptive_softmax_cutoff
    if isinstance(cuts, str):  # as fairseq's language model has it
        try:
            cuts = eval_str_list(cuts, int)
        except ValueError:
            yield f"--adaptive-softmax-cutoff {cuts}: expected numbers with commas between"
            return
    if cuts is None:
        return
    ends = [0, *cuts, len(target)]
    if not cuts or any(low >= high for low, high in zip(ends, ends[1:])):
        yield (
            f"--adaptive-softmax-cutoff {','.join(map(str, cuts))}: expected rising numbers between "
            f"0 and the dictionary's {len(target)} entries"
        )
    elif cfg.adaptive_softmax_factor < 1:
        yield f"--adaptive-softmax-factor {cfg.adaptive_softmax_factor}: at least 1 is needed"


def quantization(cfg: Namespace, side: str) -> Iterator[str]:
    """Blocks that do not divide the width of what they quantize."""
    block = cfg.quant_noise_pq_block_size
    if not cfg.quant_noise_pq or block < 1:
        return
    for name in (f"{side}_embed_dim", f"{side}_ffn_embed_dim"):
        if getattr(cfg, name) % block:
            yield (
                f"{flag(name)} {getattr(cfg, name)} is no multiple of "
                f"--quant-noise-pq-block-size {block}; choose one that is"
            )
    if side == "decoder" and getattr(cfg, "decoder_input_dim", cfg.decoder_embed_dim) != (
        cfg.decoder_embed_dim
    ):
        yield (
            f"--quant-noise-pq needs --decoder-input-dim {cfg.decoder_input_dim} to equal "
            f"--decoder-embed-dim {cfg.decoder_embed_dim}"
        )
