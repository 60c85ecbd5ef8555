"""What is wrong with the options of a T5, or with those of fairseq's Transformer in one."""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import fields

from fairseq_recur.models.flags import flag
from fairseq_recur.models.t5_config import T5Config

# Options of fairseq's Transformer that say of a T5 what is true of it.
TRUE_OF_T5 = (
    "encoder_normalize_before",
    "decoder_normalize_before",
    "no_scale_embedding",
    "no_token_positional_embeddings",
)
# Options that ask for what a T5 does not have.
NOT_IN_T5 = (
    "adaptive_softmax_cutoff",
    "base_layers",
    "cross_self_attention",
    "decoder_learned_pos",
    "decoder_xformers_att_config",
    "encoder_learned_pos",
    "encoder_xformers_att_config",
    "layernorm_embedding",
    "no_decoder_final_norm",
)
OPTIONS = [f.name for f in fields(T5Config) if f.name not in ("_name", "host")]


def t5(cfg: Namespace, given: set[str]) -> Iterator[str]:
    """Everything that is wrong, one line each.

    Args:
        cfg: the model's options, flat
        given: names of those that were set
    """
    if cfg.host != "t5":
        for name in OPTIONS:
            if name in given:
                yield f"{flag(name)} {getattr(cfg, name)} has no effect: it needs --host t5"
        return
    lacking = [flag(name) for name in TRUE_OF_T5 if not getattr(cfg, name)]
    if lacking:
        yield f"--host t5 needs {' '.join(lacking)}; start from --arch t5_small, which has them"
    for name in NOT_IN_T5:
        if getattr(cfg, name):
            yield f"{flag(name)} asks for what --host t5 does not have; leave it out"
    yield from numbers(cfg)
    if cfg.recurrence_positions:
        yield (
            "--recurrence-positions needs position embeddings, which --host t5 does not have; "
            "leave it out"
        )
    if cfg.t5_untied_output and not cfg.share_all_embeddings:
        yield (
            "--t5-untied-output has no effect without --share-all-embeddings, where "
            "--share-decoder-input-output-embed says whether the output is tied; leave it out"
        )


def numbers(cfg: Namespace) -> Iterator[str]:
    """Buckets and distances that do not go together."""
    buckets, distance = cfg.t5_relative_buckets, cfg.t5_relative_max_distance
    if buckets < 4 or buckets % 2:
        yield f"--t5-relative-buckets {buckets}: an even number, at least 4, is needed"
    elif distance <= buckets // 2:
        yield (
            f"--t5-relative-max-distance {distance}: more than half of "
            f"--t5-relative-buckets {buckets} is needed"
        )
