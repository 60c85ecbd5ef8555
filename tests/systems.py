"""The systems that the tests build: presets, small sizes, and options of every part."""

import functools
import re
from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from itertools import product
from typing import Any

from fairseq.models import ARCH_MODEL_REGISTRY, FairseqLanguageModel
from torch import nn

import fairseq_recur  # noqa: F401  (registers the presets)
from fairseq_recur.models import ForecasterModel

REGISTERED: list[str] = sorted(
    name
    for name, model in ARCH_MODEL_REGISTRY.items()
    if model.__module__.split(".")[0] == "fairseq_recur"
)
"""Every architecture that the plug-in registers, so that a new one is tested."""

FORECASTERS: list[str] = [
    name for name in REGISTERED if issubclass(ARCH_MODEL_REGISTRY[name], ForecasterModel)
]
"""Those that read time series; tests/unit/test_forecaster.py has what must hold for each."""

MEMORY_MODELS: list[str] = [
    name
    for name in REGISTERED
    if getattr(ARCH_MODEL_REGISTRY[name].config_class(), "decoder_memory", "none") != "none"
]
"""Language models with a memory; tests/unit/test_memory_model.py has what must hold for each."""


def memory_parts(name: str) -> tuple[str, ...]:
    """The parts of a language model with a memory."""
    config = ARCH_MODEL_REGISTRY[name].config_class()
    slots = "language_model_host", "decoder_memory", "decoder_self_attention"
    return tuple(str(getattr(config, s)) for s in (*slots, "decoder_self_attention_mixture"))


MEMORY_KINDS: list[str] = sorted(
    {memory_parts(p): p for p in sorted(MEMORY_MODELS, key=len, reverse=True)}.values()
)
"""Of those with the same parts the one with the shortest name."""

OURS: list[str] = [name for name in REGISTERED if name not in FORECASTERS + MEMORY_MODELS]
"""The other ones that read text."""

LANGUAGE_MODELS: list[str] = [
    name for name in OURS if issubclass(ARCH_MODEL_REGISTRY[name], FairseqLanguageModel)
]
"""The decoder-only ones without a memory."""

PRESETS: list[str] = [name for name in OURS if name not in LANGUAGE_MODELS]
"""The encoder-decoders."""

SMALL: list[str] = (
    "--encoder-embed-dim 16 --encoder-ffn-embed-dim 24 --encoder-layers 2 --decoder-layers 2 "
    "--encoder-attention-heads 2 --decoder-attention-heads 2"
).split()
"""Flags that make any preset small without changing its structure."""

PLAIN: list[str] = (
    "--recurrence none --cross-attention dot --cross-attention-mixture none "
    "--encoder-self-attention dot --decoder-self-attention dot"
).split()
"""Flags that put the standard part into every slot."""

RECURRENCE_VARIANTS: dict[str, list[str]] = {
    "all-layers": ["--recurrence-fused-layers", "all"],
    "gated-sum": ["--recurrence-fusion", "gated_sum"],
    "gated-sum-all-scalar": (
        "--recurrence-fusion gated_sum --recurrence-fused-layers all --recurrence-gate scalar"
    ).split(),
    "a-step-a-token": "--recurrence-steps -1 --recurrence-layers 2".split(),
    "deep-positions": (
        "--recurrence-layers 3 --recurrence-positions --recurrence-steps 5 --recurrence-lr-scale 3"
    ).split(),
    "multihead": ["--recurrence-attention", "multihead"],
    "lstm": "--recurrence-cell lstm --recurrence-layers 2".split(),
    "coverage": "--recurrence-coverage --recurrence-steps 5 --recurrence-layers 2".split(),
    "encoder-input": ["--recurrence-input", "encoder"],
    "closed-all": "--recurrence-fusion-init closed --recurrence-fused-layers all".split(),
    "half-width": "--recurrence-width half --recurrence-layers 2".split(),
    "projected": "--recurrence-width projected --recurrence-fusion gated_sum".split(),
    "replace": ["--recurrence-fusion", "replace"],
    "multicolumn": "--recurrence-fusion multicolumn --recurrence-steps -1".split(),
    "pre-norm": "--encoder-normalize-before --decoder-normalize-before".split(),
    "no-recurrence": ["--recurrence", "none"],
}
"""The options of the recurrence encoder, each value at least once."""

OWN_VARIANTS: dict[str, dict[str, list[str]]] = {
    "transformer_birnn": {
        "deep-gated": "--recurrence-layers 2 --recurrence-fusion gated_sum".split(),
        "lstm-pre-norm-deep": (
            "--recurrence-cell lstm --recurrence-layers 2 "
            "--encoder-normalize-before --decoder-normalize-before"
        ).split(),
    },
    "transformer_relpos": {
        "pre-norm": (
            "--relative-clip 3 --encoder-normalize-before --decoder-normalize-before"
        ).split(),
    },
    "transformer_disan": {
        "pre-norm-biarn": (
            "--encoder-normalize-before --decoder-normalize-before --recurrence biarn"
        ).split(),
    },
    "transformer_rnn_multicolumn": {
        "pre-norm-segmented": (
            "--encoder-normalize-before --decoder-normalize-before --recurrence-layers 2 "
            "--recurrence-positions --cross-attention segmented --segment-size 3 --target-length 7"
        ).split(),
        "encoder-input": ["--recurrence-input", "encoder"],
        "half-width": ["--recurrence-width", "half"],
    },
    # The tests' sentences are shorter than its dilation.
    "rsa_codet5_small": {"default": ["--rsa-dilations", "2"]},
}
"""For the presets that do not take all variants: a BiRNN, and what Hao et al. compare with."""

DECODER_VARIANTS: dict[str, list[str]] = {
    "dilated": "--rsa-heads 1,0,0,1,0,0 --rsa-dilations 2".split(),
    "dilated-pair": "--rsa-heads 0,0,0,0,1,1 --rsa-dilations 2,3".split(),
    "dilated-chunked": (
        "--rsa-heads 0,0,0,0,1,1 --rsa-dilations 3,2 --rsa-form chunked --rsa-max-power 0"
    ).split(),
    "own-angles-xl": (
        "--decoder-self-attention xl --decoder-self-attention-mixture rsa --rsa-heads 0,1,1,0,0,0 "
        "--rsa-untie-conjugates --rsa-max-power 0 --rsa-nu-init 0.1,0.8 --rsa-theta-init 0.3"
    ).split(),
    "capped": "--rsa-max-power 2 --rsa-gate-init 1 --rsa-eta-init 0.1,0.8".split(),
    "capped-chunked-relative": (
        "--decoder-self-attention relative --decoder-self-attention-mixture rsa --rsa-max-power 2 "
        "--rsa-form chunked"
    ).split(),
    "some-heads": "--rsa-heads 1,0,0,0,0,0 --rsa-dropout mixed".split(),
    "dense": ["--rsa-form", "dense"],
    "mixed-form": ["--rsa-form", "mixed"],
    "normalized": ["--rsa-normalize"],
    "normalized-dense": "--rsa-normalize --rsa-form dense".split(),
    "toeplitz": "--decoder-self-attention toeplitz --learned-matrix-length 4".split(),
    "toeplitz-chunked-xl": (
        "--decoder-self-attention xl --decoder-self-attention-mixture toeplitz --rsa-form chunked"
    ).split(),
    "toeplitz-relative": (
        "--decoder-self-attention relative --decoder-self-attention-mixture toeplitz"
    ).split(),
    "full-matrix": "--decoder-self-attention full_matrix --learned-matrix-length 6".split(),
    "full-matrix-normalized-xl": (
        "--decoder-self-attention xl --decoder-self-attention-mixture full_matrix "
        "--learned-matrix-length 30 --rsa-normalize"
    ).split(),
    "full-matrix-relative": (
        "--decoder-self-attention relative --decoder-self-attention-mixture full_matrix"
    ).split(),
    "relative": "--decoder-self-attention relative --relative-clip 3".split(),
    "xl": "--decoder-self-attention xl --xl-clamp-length 2".split(),
    "log-sparse-rsa": (
        "--decoder-self-attention log_sparse --decoder-self-attention-mixture rsa"
    ).split(),
}
"""The options of the self-attention parts, each value at least once, for the decoder.

Every map has every mixture: a name such as toeplitz as the map is short for dot with that mixture.
"""


SEGMENTS: list[str] = "--segment-size 3 --target-length 7".split()
"""Segments short enough that the tests' sources have several."""

SRFORMER_VARIANTS: dict[str, list[str]] = {
    "default": SEGMENTS,
    "long-targets-leaky": (
        "--segment-size 2 --target-length 3 --srformer-leak-init 0.5 --srformer-threshold-init 0.3"
    ).split(),
    "ratio-sigma-pre-norm": (
        "--segment-size 2 --target-length-mode ratio --target-ratio 0.7 --srformer-norm frobenius "
        "--srformer-learned-mix --encoder-normalize-before --decoder-normalize-before"
    ).split(),
    "clamp-surrogate": [
        *SEGMENTS,
        *"--srformer-clamp 2 --srformer-surrogate piecewise --srformer-norm none".split(),
    ],
    # A threshold away from the initial biases, or half precision moves some spikes.
    "bias-per-head": [
        *SEGMENTS,
        *"--srformer-neuron-bias --srformer-neuron-per-head --srformer-threshold-init 1".split(),
    ],
    # A norm over all channels: a key near zero is rounded to another share of a channel's.
    "unit-bias-per-head": [
        *SEGMENTS,
        *"--srformer-scale unit --srformer-norm frobenius --srformer-threshold-init 0.2".split(),
        *"--srformer-neuron-bias --srformer-neuron-per-head".split(),
    ],
    "unit-sum": [*SEGMENTS, *"--srformer-scale unit --srformer-norm sum".split()],
    "no-segmented-term-stored": [
        *SEGMENTS,
        "--srformer-no-segmented-term",
        "--srformer-form",
        "stored",
    ],
    "recomputed": [*SEGMENTS, "--srformer-form", "recomputed"],
    # Heads as wide as the code in C needs.
    "compiled": [*SEGMENTS, "--decoder-attention-heads", "1"],
    # Long references read many segments: at a threshold of 0.1, half precision moves some spikes.
    "reference": [
        *SEGMENTS,
        *"--target-length-mode reference --srformer-threshold-init 1".split(),
    ],
    "unit": [*SEGMENTS, "--srformer-scale", "unit"],
    "no-neuron": [*SEGMENTS, "--srformer-no-neuron"],
    "current-segment": [*SEGMENTS, "--srformer-current-segment"],
    "segmented": ["--cross-attention", "segmented", *SEGMENTS],
    "xl": ["--cross-attention", "xl", *SEGMENTS],
    "xl-rnn": ["--cross-attention", "xl", "--xl-memory", "rnn", *SEGMENTS],
    "xl-rnn-all-heads": ["--cross-attention", "xl", "--xl-memory", "rnn_all_heads", *SEGMENTS],
    "global": ["--cross-attention", "global", *SEGMENTS],
    "global-transient": ["--cross-attention", "global", "--global-tokens", "transient", *SEGMENTS],
    "all-three": [
        *SEGMENTS,
        *"--recurrence biarn --recurrence-fused-layers all".split(),
        *"--encoder-self-attention rsa --decoder-self-attention rsa".split(),
    ],
}
"""The options of the cross-attention parts, each value at least once."""


def on_both_sides(flags: list[str]) -> list[str]:
    """The decoder's flags, and the same flags for the encoder."""
    both = list(flags)
    for name, value in zip(flags, flags[1:]):
        if name.startswith("--decoder-"):
            both += [name.replace("--decoder-", "--encoder-"), value]
    return both


SELF_ATTENTION_VARIANTS: dict[str, list[str]] = {
    **{name: on_both_sides(flags) for name, flags in DECODER_VARIANTS.items()},
    "directional-rsa": (
        "--encoder-self-attention directional --encoder-self-attention-mixture rsa "
        "--decoder-self-attention dot"
    ).split(),
    "prob-sparse-rsa": (
        "--encoder-self-attention prob_sparse --encoder-self-attention-mixture rsa "
        "--decoder-self-attention dot --prob-sparse-factor 1"
    ).split(),
    "prob-sparse-rsa-all-rows": (
        "--encoder-self-attention prob_sparse --encoder-self-attention-mixture rsa "
        "--decoder-self-attention dot --prob-sparse-factor 1 --prob-sparse-mixed-rows all"
    ).split(),
    "toeplitz-directional-relative": (
        "--encoder-self-attention directional --encoder-self-attention-mixture toeplitz "
        "--decoder-self-attention relative --decoder-self-attention-mixture toeplitz"
    ).split(),
    "full-matrix-directional-relative": (
        "--encoder-self-attention directional --encoder-self-attention-mixture full_matrix "
        "--decoder-self-attention relative --decoder-self-attention-mixture full_matrix"
    ).split(),
    "encoder-alone": ["--decoder-self-attention", "dot"],
    "decoder-alone-pre-norm": (
        "--encoder-self-attention dot --encoder-normalize-before --decoder-normalize-before"
    ).split(),
    "with-biarn": "--recurrence biarn --recurrence-fused-layers all".split(),
}
"""The same for both sides, for one side only, and together with a recurrence encoder."""


CROSS_VARIANTS: dict[str, list[str]] = {
    "cross": ("--cross-attention-mixture rsa --rsa-heads 1,0,0,1,0,0 --rsa-dilations 2").split(),
    "cross-fused": ["--cross-attention-fused"],
}
"""The options of fairseq's cross-attention, for which SRformer has no place."""


T5_VARIANTS: dict[str, list[str]] = {
    "gated-untied": "--t5-gated --activation-fn gelu_accurate --t5-untied-output".split(),
    "own-head-width": ["--t5-head-dim", "5"],
    "few-buckets": "--t5-relative-buckets 6 --t5-relative-max-distance 5".split(),
    "rsa": "--encoder-self-attention rsa --decoder-self-attention rsa".split(),
    "rsa-dense": (
        "--encoder-self-attention rsa --decoder-self-attention rsa --rsa-form dense"
    ).split(),
    "relative": "--encoder-self-attention relative --decoder-self-attention relative".split(),
    "xl-rsa": (
        "--encoder-self-attention xl --encoder-self-attention-mixture rsa "
        "--decoder-self-attention xl --decoder-self-attention-mixture rsa"
    ).split(),
    "log-sparse-prob-sparse": (
        "--encoder-self-attention prob_sparse --prob-sparse-factor 1 "
        "--decoder-self-attention log_sparse"
    ).split(),
    "biarn-cross": (
        "--recurrence biarn --recurrence-fused-layers all --cross-attention-mixture rsa"
    ).split(),
    "birnn-gated-sum": (
        "--recurrence birnn --recurrence-fusion gated_sum --cross-attention-fused"
    ).split(),
    "directional-multicolumn": (
        "--encoder-self-attention directional --recurrence birnn --recurrence-fusion multicolumn"
    ).split(),
}
"""The options of T5, each value at least once, and the parts that T5 takes."""


RATES = {"dropout", "attention_dropout", "activation_dropout"}
"""Options that do not change a structure."""


def structure(preset: str) -> tuple[tuple[str, str], ...]:
    """The options of a preset that is made small: equal options build equal models."""
    config = ARCH_MODEL_REGISTRY[preset].config_class()
    small = {name[2:].replace("-", "_"): value for name, value in zip(SMALL[::2], SMALL[1::2])}
    names = {f.name for f in fields(config)} - RATES - {"_name"}
    options = {name: str(getattr(config, name)) for name in names}
    assert small.keys() <= options.keys()
    return tuple(sorted({**options, **small}.items()))


STRUCTURES: list[str] = sorted(
    {structure(p): p for p in sorted(PRESETS, key=len, reverse=True)}.values()
)
"""Of the presets that make the same small model the one with the shortest name.

So every structure is tested once.
"""

FAST_STRUCTURES = ("transformer_biarn", "srformer", "rsa_transformer", "srformer_t5_small")
"""A structure for each paper and each host, for the tests that train; the slow run has all."""
assert {*FAST_STRUCTURES} <= {*STRUCTURES}


def variants_of(preset: str) -> dict[str, list[str]]:
    """The sets of options with which a structure is tested."""
    config = ARCH_MODEL_REGISTRY[preset].config_class()
    segments = [] if config.cross_attention == "dot" else SEGMENTS
    variants: dict[str, list[str]] = {"default": segments}
    if preset in OWN_VARIANTS:
        return {**variants, **OWN_VARIANTS[preset]}
    if config.recurrence != "none":
        variants.update(RECURRENCE_VARIANTS)
    if preset == "transformer_biarn":  # no layer is left for another cross-attention
        variants["replace-all"] = (
            "--recurrence-fusion replace --recurrence-fused-layers all --recurrence-input encoder"
        ).split()
    if config.host == "t5" and not segments:
        variants.update(T5_VARIANTS)
    if preset == "srformer":  # the part is the same in the other hosts
        variants.update(SRFORMER_VARIANTS)
    if config.encoder_self_attention == "rsa":
        variants.update({**SELF_ATTENTION_VARIANTS, **CROSS_VARIANTS})
    return variants


def preset_flags(arch: str) -> list[str]:
    """Flags with which the parts of an architecture act on the tests' short sentences.

    With the presets' own sizes, a sentence is one segment of SRformer, whose recurrent term is then
    zero, and shorter than the dilation of `rsa_codet5_small`.
    """
    return variants_of(arch)["default"] if arch in PRESETS else []


SYSTEMS: dict[str, list[str]] = {
    f"{preset}-{name}": ["--arch", preset, *flags]
    for preset in STRUCTURES
    for name, flags in variants_of(preset).items()
}
"""Every structure with every set of its options: the flags that select it."""


BART_FLAGS: list[str] = (
    "--encoder-learned-pos --decoder-learned-pos --layernorm-embedding --no-scale-embedding "
    "--share-all-embeddings --share-decoder-input-output-embed --activation-fn gelu"
).split()
"""Flags that make fairseq's Transformer a BART."""

HOST_FLAGS = ("--t5-", "--activation-fn", "--encoder-normalize-", "--decoder-normalize-")


def stock_of(system: list[str]) -> list[str]:
    """The host of a system: fairseq's Transformer, or T5 without further parts."""
    options = re.findall(r"(--\S+)((?: (?!--)\S+)*)", " ".join(system[2:]))
    flags = [word for name, values in options if name.startswith(HOST_FLAGS)
             for word in (name, *values.split())]  # fmt: skip
    config = ARCH_MODEL_REGISTRY[system[1]].config_class()
    arch = {"transformer": "transformer", "t5": "t5_small"}[config.host]
    if config.host == "transformer" and config.no_token_positional_embeddings:
        flags.append("--no-token-positional-embeddings")
    return ["--arch", arch, *flags, *(BART_FLAGS if config.layernorm_embedding else [])]


TRANSFORMERS: list[str] = [
    p for p in STRUCTURES if ARCH_MODEL_REGISTRY[p].config_class().host == "transformer"
]
"""The structures whose host is fairseq's Transformer, with which they are compared bit for bit.

tests/integration/test_convert_logits.py compares T5 with another library.
"""


COMPOSED_FAMILIES: list[tuple[str, list[tuple[list[str], dict[str, list[str]]]]]] = [
    (
        "srformer",
        [
            (
                "--encoder-self-attention rsa --decoder-self-attention rsa".split(),
                {n: flags for n, flags in SELF_ATTENTION_VARIANTS.items() if n != "with-biarn"},
            ),
            (
                "--recurrence biarn".split(),
                {n: flags for n, flags in RECURRENCE_VARIANTS.items() if n != "no-recurrence"},
            ),
            # RSA's variants need two heads.
            (
                [],
                {
                    n: flags
                    for n, flags in SRFORMER_VARIANTS.items()
                    if n not in ("all-three", "compiled")
                },
            ),
        ],
    ),
    (
        "t5_small",
        [
            ([], {n: T5_VARIANTS[n] for n in ("gated-untied", "own-head-width", "few-buckets")}),
            ([], {n: T5_VARIANTS[n] for n in ("rsa", "rsa-dense", "relative", "xl-rsa")}),
            ([], {n: T5_VARIANTS[n] for n in ("biarn-cross", "birnn-gated-sum")}),
        ],
    ),
]
"""For a host the families of options that are independent of each other: (common flags, variants).

A further family is a further entry of a host's list.
"""


def composed_systems() -> dict[str, list[str]]:
    """Systems with one variant of each family, such as RSA with BiARN and SRformer."""
    return {
        "+".join((host, *(name for name, _ in choice))): [
            "--arch", host, *(flag for _, flags in choice for flag in flags)
        ]
        for host, families in COMPOSED_FAMILIES
        for choice in product(*(
            [(name, [*common, *flags]) for name, flags in variants.items()]
            for common, variants in families
        ))
    }  # fmt: skip


SLOTS = (
    "host", "encoder_self_attention", "encoder_self_attention_mixture", "decoder_self_attention",
    "decoder_self_attention_mixture", "cross_attention", "cross_attention_mixture", "recurrence",
    "recurrence_fusion",
)  # fmt: skip
"""The options that name parts. `pairwise_choice` combines each part with every option's value."""


def option_values(system: list[str]) -> dict[str, str]:
    """The options that a system's flags set, without dashes: {"rsa_form": "dense", ...}."""
    flags = re.findall(r"--(\S+)((?: (?!--)\S+)*)", " ".join(system[2:]))
    return {name.replace("-", "_"): value.strip() for name, value in flags}


def has_neuron(system: list[str]) -> bool:
    """Whether a system's cross-attention has SRformer's accumulate-and-fire neuron."""
    values, config = option_values(system), ARCH_MODEL_REGISTRY[system[1]].config_class()
    part = values.get("cross_attention", getattr(config, "cross_attention", "none"))
    return part == "srformer" and "srformer_no_neuron" not in values


def without_decay(model: nn.Module) -> set[str]:
    """The parameters that ask for no weight decay."""
    asked = {
        name: getattr(parameter, "optim_overrides", {"optimizer": {}})["optimizer"]
        for name, parameter in model.named_parameters()
    }
    assert {*map(str, (entry.get("weight_decay", 0.0) for entry in asked.values()))} == {"0.0"}
    return {name for name, entry in asked.items() if "weight_decay" in entry}


RSA_PARAMETERS = {"mu", "eta", "nu", "theta"}
"""The last names of a mixture's parameters, toward whose zero no weight decay pulls."""


@cache
def default_parts(arch: str) -> dict[str, str]:
    """The parts of an architecture by slot."""
    config = ARCH_MODEL_REGISTRY[arch].config_class()
    return {slot: str(getattr(config, slot)) for slot in SLOTS}


def interactions(system: list[str]) -> set[tuple[tuple[str, str], ...]]:
    """What a system tests: its architecture, and each part together with each value and part."""
    values = option_values(system)
    filled = {slot: values.get(slot, part) for slot, part in default_parts(system[1]).items()}
    if filled["recurrence"] == "none":
        del filled["recurrence_fusion"]
    parts = [(slot, part) for slot, part in filled.items() if part not in ("none", "dot")]
    return {(part, other) for part in parts for other in (*parts, *values.items())} | {
        (("arch", system[1]),)
    }


def covering(found: dict[str, set[Any]], wanted: Iterable[str]) -> list[str]:
    """A few names that together have everything that the wanted ones have.

    The choice is greedy: the next name is the first of those that add the most.

    Args:
        found: what each name has, such as the interactions that a system tests
        wanted: some of the names
    """
    bits: dict[Any, int] = {}
    had = {
        name: sum(1 << bits.setdefault(thing, len(bits)) for thing in things)
        for name, things in found.items()
    }
    left = functools.reduce(int.__or__, (had[name] for name in wanted))
    chosen = []
    while left:
        chosen.append(max(had, key=lambda name: (had[name] & left).bit_count()))
        left &= ~had[chosen[-1]]
    return chosen


def pairwise_choice(
    wanted: dict[str, list[str]], more: dict[str, list[str]]
) -> dict[str, list[str]]:
    """A few systems that together test every interaction of the wanted ones.

    Args:
        wanted: systems by name
        more: further systems to choose from
    """
    candidates = {**more, **wanted}
    tested = {name: interactions(system) for name, system in candidates.items()}
    return {name: candidates[name] for name in covering(tested, wanted)}


FAST_SYSTEMS: dict[str, list[str]] = pairwise_choice(SYSTEMS, composed_systems())
"""The systems of the fast tests; the slow ones take all of `SYSTEMS`."""
