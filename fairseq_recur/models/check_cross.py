"""What is wrong with the options of the parts for the cross-attention."""

from argparse import Namespace
from collections.abc import Iterator

from fairseq_recur.models.flags import flag

SEGMENTED = {"srformer", "segmented", "xl", "global"}
SRFORMER = {"srformer"}

# The parts that read an option; all others would ignore it.
READ_BY: dict[str, set[str]] = {
    "segment_size": SEGMENTED,
    "target_length": SEGMENTED,
    "target_length_mode": SEGMENTED,
    "target_ratio": SEGMENTED,
    "srformer_leak_init": SRFORMER,
    "srformer_threshold_init": SRFORMER,
    "srformer_norm": SRFORMER,
    "srformer_clamp": SRFORMER,
    "srformer_sigma": SRFORMER,
    "srformer_surrogate": SRFORMER,
    "srformer_no_segmented_term": SRFORMER,
    "srformer_no_neuron": SRFORMER,
    "srformer_current_segment": SRFORMER,
    "srformer_form": SRFORMER,
    "xl_memory": {"xl"},
    "global_tokens": {"global"},
}

# Options of the neuron, which --srformer-no-neuron removes.
NEURON = ("srformer_leak_init", "srformer_threshold_init", "srformer_surrogate", "srformer_form")


def cross_attention(cfg: Namespace, given: set[str]) -> Iterator[str]:
    """Everything that is wrong, one line each.

    Args:
        cfg: the model's options, flat
        given: names of those that were set
    """
    part = cfg.cross_attention
    for name, readers in READ_BY.items():
        if name in given and part not in readers:
            yield (
                f"{flag(name)} {getattr(cfg, name)} has no effect: it needs --cross-attention "
                f"{' or '.join(sorted(readers))}"
            )
    if "target_ratio" in given and cfg.target_length_mode != "ratio":
        yield (
            f"--target-ratio {cfg.target_ratio} has no effect without --target-length-mode ratio; "
            "give both or none"
        )
    if cfg.target_length_mode == "ratio" and "target_length" in given:
        yield (
            f"--target-length {cfg.target_length} has no effect with --target-length-mode ratio; "
            "leave one out"
        )
    if part == "srformer":
        yield from srformer(cfg, given)
    if part != "dot":
        for name in ("no_cross_attention", "cross_self_attention"):
            if getattr(cfg, name):
                yield f"{flag(name)} leaves no place for --cross-attention {part}; leave one out"


def srformer(cfg: Namespace, given: set[str]) -> Iterator[str]:
    """Options that exclude each other."""
    if cfg.srformer_sigma and cfg.srformer_no_segmented_term:
        yield (
            "--srformer-sigma weighs a term that --srformer-no-segmented-term leaves out; "
            "leave one out"
        )
    if cfg.srformer_no_neuron:
        for name in NEURON:
            if name in given:
                yield (
                    f"{flag(name)} {getattr(cfg, name)} has no effect with --srformer-no-neuron; "
                    "leave one out"
                )
    elif cfg.srformer_form == "recomputed":
        for name in ("srformer_clamp", "srformer_surrogate"):
            if name in given:
                yield (
                    f"--srformer-form recomputed does not know {flag(name)} {getattr(cfg, name)}; "
                    "use stored"
                )
