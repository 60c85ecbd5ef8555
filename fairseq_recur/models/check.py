"""What is wrong with a configuration, all of it at once, before anything is built."""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import fields

from fairseq.data import Dictionary

from fairseq_recur.errors import ConfigError
from fairseq_recur.models.check_attention import self_attention
from fairseq_recur.models.check_cross import cross_attention
from fairseq_recur.models.check_host import host
from fairseq_recur.models.check_sizes import memory, numbers
from fairseq_recur.models.check_t5 import t5
from fairseq_recur.models.config import RecurrentTransformerConfig, fused_layers
from fairseq_recur.models.flags import flag, given, unknown_choices
from fairseq_recur.modules.parts import FUSION, MULTICOLUMN, RECURRENCE

OPTIONS = {f.name: f for f in fields(RecurrentTransformerConfig) if f.name != "_name"}

# Options that act only under another one, with the values of the other that need them.
RECURRENT, FUSED = RECURRENCE, FUSION
ONLY_WITH = (
    ("recurrence_steps", "recurrence", {"biarn"}),
    ("recurrence_attention", "recurrence", {"biarn"}),
    ("recurrence_layers", "recurrence", RECURRENT),
    ("recurrence_fusion", "recurrence", RECURRENT),
    ("recurrence_fused_layers", "recurrence", RECURRENT),
    ("recurrence_fused_layers", "recurrence_fusion", FUSED),
    ("recurrence_positions", "recurrence", RECURRENT),
    ("recurrence_gate", "recurrence_fusion", {"gated_sum"}),
)


def check_config(
    cfg: Namespace,
    preset: RecurrentTransformerConfig,
    source: Dictionary,
    target: Dictionary,
) -> None:
    """Refuse a configuration that cannot be built or would be obeyed only in part.

    Args:
        cfg: the model's options, flat
        preset: the defaults of the architecture
        source, target: the task's dictionaries

    Raises:
        ConfigError: with everything that is wrong, one line each
    """
    problems: list[str] = list(unknown_values(cfg))
    if not problems:
        chosen = given(cfg, RecurrentTransformerConfig(), preset)
        problems = [
            *numbers(cfg, OPTIONS),
            *sizes(cfg),
            *self_attention(cfg, ("encoder", "decoder"), chosen),
            *cross_attention(cfg, chosen),
            *recurrence(cfg),
            *t5(cfg, chosen),
            *without_effect(cfg, chosen),
            *sharing(cfg, source, target),
            *host(cfg, ("encoder", "decoder"), target),
        ]
    problems = problems or list(memory(cfg, source, target))
    if problems:
        raise ConfigError("the model's options cannot be used:\n- " + "\n- ".join(problems))


def unknown_values(cfg: Namespace) -> Iterator[str]:
    """Values that are none of an option's choices, and no number of layers."""
    yield from unknown_choices(cfg, OPTIONS)
    try:
        fused_layers(cfg)
    except ValueError:
        yield f"--recurrence-fused-layers {cfg.recurrence_fused_layers}: choose top, all or a number"


def sizes(cfg: Namespace) -> Iterator[str]:
    """Steps and heads; T5's heads need not add up to the width, fairseq's must."""
    if cfg.recurrence_steps == 0:
        yield (
            f"--recurrence-steps {cfg.recurrence_steps}: at least 1 is needed, or -1 for one step "
            "for each token of the source"
        )
    for side in ("encoder", "decoder"):
        width, heads = getattr(cfg, f"{side}_embed_dim"), getattr(cfg, f"{side}_attention_heads")
        own_width = cfg.host == "t5" and cfg.t5_head_dim > 0 and cfg.recurrence == "none"
        if heads > 0 and width % heads and not own_width:
            yield (
                f"--{side}-embed-dim {width} cannot be split evenly among "
                f"--{side}-attention-heads {heads}; choose a multiple of the heads"
            )


def recurrence(cfg: Namespace) -> Iterator[str]:
    """What the recurrence encoder does not go with."""
    if cfg.recurrence == "none":
        return
    if cfg.recurrence_fusion == MULTICOLUMN:
        if not RECURRENCE[cfg.recurrence].keeps_length:
            yield (
                f"--recurrence-fusion {MULTICOLUMN} puts the outputs of two encoders side by side, "
                f"token by token, and --recurrence {cfg.recurrence} has an output for each of its "
                "steps instead; use --recurrence birnn or another --recurrence-fusion"
            )
    elif not 1 <= fused_layers(cfg) <= cfg.decoder_layers:
        yield (
            f"--recurrence-fused-layers {cfg.recurrence_fused_layers}: the decoder has "
            f"{cfg.decoder_layers} layers (--decoder-layers); choose 1 to {cfg.decoder_layers}"
        )
    for name in ("no_cross_attention", "cross_self_attention"):
        if getattr(cfg, name):
            yield (
                f"{flag(name)} leaves out the sub-layer that --recurrence {cfg.recurrence} joins; "
                "leave one out"
            )
    if cfg.recurrence_positions and cfg.no_token_positional_embeddings and cfg.host != "t5":
        yield (
            "--recurrence-positions needs what --no-token-positional-embeddings removes; "
            "leave one out"
        )


def without_effect(cfg: Namespace, chosen: set[str]) -> Iterator[str]:
    """Options that were set but would change nothing."""
    for name, other, values in ONLY_WITH:
        if name in chosen and getattr(cfg, other) not in values:
            yield (
                f"{flag(name)} {getattr(cfg, name)} has no effect with {flag(other)} "
                f"{getattr(cfg, other)}; it needs {' or '.join(sorted(values))}"
            )


def sharing(cfg: Namespace, source: Dictionary, target: Dictionary) -> Iterator[str]:
    """What shared embeddings need."""
    if not cfg.share_all_embeddings:
        return
    if source != target:
        yield (
            f"--share-all-embeddings needs one dictionary for both languages, but they differ "
            f"({len(source)} and {len(target)} types); preprocess with --joined-dictionary"
        )
    if cfg.encoder_embed_dim != cfg.decoder_embed_dim:
        yield (
            f"--share-all-embeddings needs --encoder-embed-dim {cfg.encoder_embed_dim} to equal "
            f"--decoder-embed-dim {cfg.decoder_embed_dim}; give both one number"
        )
    if cfg.decoder_embed_path and cfg.decoder_embed_path != cfg.encoder_embed_path:
        yield (
            "--share-all-embeddings needs --decoder-embed-path to equal --encoder-embed-path; "
            "give both the same file"
        )
