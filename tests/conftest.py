"""What every test may need: the presets, small models, a small corpus, fairseq's commands."""

import os
import random
import re
from argparse import Namespace
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import fields
from functools import cache
from pathlib import Path

# One thread: tests that run side by side on two cores slow each other down otherwise.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HYDRA_FULL_ERROR", "1")
# Compiled code stays in the checkout: the home folder may not be writable.
os.environ.setdefault("XDG_CACHE_HOME", str(Path(__file__).resolve().parent.parent / ".cache"))

import pytest
import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY, FairseqLanguageModel, build_model
from omegaconf import DictConfig

import fairseq_recur  # noqa: F401  (registers the presets)

OURS: list[str] = sorted(
    name
    for name, model in ARCH_MODEL_REGISTRY.items()
    if model.__module__.split(".")[0] == "fairseq_recur"
)
"""Every architecture that the plug-in registers: a new one cannot escape the tests."""

LANGUAGE_MODELS: list[str] = [
    name for name in OURS if issubclass(ARCH_MODEL_REGISTRY[name], FairseqLanguageModel)
]
"""The decoder-only ones."""

PRESETS: list[str] = [name for name in OURS if name not in LANGUAGE_MODELS]
"""The encoder-decoders."""

SMALL: list[str] = (
    "--encoder-embed-dim 16 --encoder-ffn-embed-dim 24 --encoder-layers 2 --decoder-layers 2 "
    "--encoder-attention-heads 2 --decoder-attention-heads 2"
).split()
"""Flags that make any preset small and leave its structure."""

PLAIN: list[str] = (
    "--recurrence none --cross-attention dot --encoder-self-attention dot --decoder-self-attention dot"
).split()
"""Flags that leave the standard part in every slot."""

RECURRENCE_VARIANTS: dict[str, list[str]] = {
    "all-layers": ["--recurrence-fused-layers", "all"],
    "gated-sum": ["--recurrence-fusion", "gated_sum"],
    "gated-sum-all-scalar": (
        "--recurrence-fusion gated_sum --recurrence-fused-layers all --recurrence-gate scalar"
    ).split(),
    "a-step-a-token": "--recurrence-steps -1 --recurrence-layers 2".split(),
    "deep-positions": "--recurrence-layers 3 --recurrence-positions --recurrence-steps 5".split(),
    "multihead": ["--recurrence-attention", "multihead"],
    "birnn": ["--recurrence", "birnn"],
    "birnn-deep-gated": (
        "--recurrence birnn --recurrence-layers 2 --recurrence-fusion gated_sum"
    ).split(),
    "pre-norm": "--encoder-normalize-before --decoder-normalize-before".split(),
    "birnn-pre-norm-deep": (
        "--recurrence birnn --recurrence-layers 2 --encoder-normalize-before "
        "--decoder-normalize-before"
    ).split(),
    "no-recurrence": ["--recurrence", "none"],
}
"""The options of the recurrence encoder, each value at least once."""

COMPARISON_VARIANTS: dict[str, dict[str, list[str]]] = {
    "transformer_relpos": {
        "pre-norm": "--relative-clip 3 --encoder-normalize-before --decoder-normalize-before".split(),
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
    },
}
"""The systems that Hao et al. compare with, in other hosts and beside other parts."""

DECODER_VARIANTS: dict[str, list[str]] = {
    "dilated": "--rsa-heads 1,0,0,1,0,0 --rsa-dilations 2".split(),
    "dilated-pair": "--rsa-heads 0,0,0,0,1,1 --rsa-dilations 2,3".split(),
    "dilated-chunked": (
        "--rsa-heads 0,0,0,0,1,1 --rsa-dilations 3,2 --rsa-form chunked --rsa-max-power 0"
    ).split(),
    "own-angles": "--rsa-heads 0,1,1,0,0,0 --rsa-untie-conjugates --rsa-max-power 0".split(),
    "capped": ["--rsa-max-power", "2"],
    "capped-chunked": "--rsa-max-power 2 --rsa-form chunked".split(),
    "some-heads": "--rsa-heads 1,0,0,0,0,0 --rsa-dropout mixed".split(),
    "dense": ["--rsa-form", "dense"],
    "normalized": ["--rsa-normalize"],
    "normalized-dense": "--rsa-normalize --rsa-form dense".split(),
    "toeplitz": "--decoder-self-attention toeplitz --learned-matrix-length 4".split(),
    "toeplitz-chunked": "--decoder-self-attention toeplitz --rsa-form chunked".split(),
    "full-matrix": "--decoder-self-attention full_matrix --learned-matrix-length 6".split(),
    "full-matrix-normalized": (
        "--decoder-self-attention full_matrix --learned-matrix-length 30 --rsa-normalize"
    ).split(),
    "relative": "--decoder-self-attention relative --relative-clip 3".split(),
}
"""The options of the self-attention parts, each value at least once, for the decoder."""


SEGMENTS: list[str] = "--segment-size 3 --target-length 7".split()
"""Segments so short that the sources of the tests have several."""

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
    "no-segmented-term-stored": [
        *SEGMENTS,
        "--srformer-no-segmented-term",
        "--srformer-form",
        "stored",
    ],
    "no-neuron": [*SEGMENTS, "--srformer-no-neuron"],
    "current-segment": [*SEGMENTS, "--srformer-current-segment"],
    "segmented": ["--cross-attention", "segmented", *SEGMENTS],
    "xl": ["--cross-attention", "xl", *SEGMENTS],
    "xl-rnn": ["--cross-attention", "xl", "--xl-memory", "rnn", *SEGMENTS],
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
    """Flags of the decoder, and the same ones of the encoder."""
    both = list(flags)
    for name, value in zip(flags, flags[1:]):
        if name.startswith("--decoder-"):
            both += [name.replace("--decoder-", "--encoder-"), value]
    return both


SELF_ATTENTION_VARIANTS: dict[str, list[str]] = {
    **{name: on_both_sides(flags) for name, flags in DECODER_VARIANTS.items()},
    "encoder-alone": ["--decoder-self-attention", "dot"],
    "decoder-alone-pre-norm": (
        "--encoder-self-attention dot --encoder-normalize-before --decoder-normalize-before"
    ).split(),
    "with-biarn": "--recurrence biarn --recurrence-fused-layers all".split(),
}
"""The same for both sides, one side alone, and beside a recurrence encoder."""


T5_VARIANTS: dict[str, list[str]] = {
    "gated-untied": "--t5-gated --activation-fn gelu_accurate --t5-untied-output".split(),
    "own-head-width": ["--t5-head-dim", "5"],
    "few-buckets": "--t5-relative-buckets 6 --t5-relative-max-distance 5".split(),
    "rsa": "--encoder-self-attention rsa --decoder-self-attention rsa".split(),
    "rsa-dense": (
        "--encoder-self-attention rsa --decoder-self-attention rsa --rsa-form dense"
    ).split(),
    "relative": "--encoder-self-attention relative --decoder-self-attention relative".split(),
    "biarn": "--recurrence biarn --recurrence-fused-layers all".split(),
    "birnn-gated-sum": "--recurrence birnn --recurrence-fusion gated_sum".split(),
    "directional-multicolumn": (
        "--encoder-self-attention directional --recurrence birnn --recurrence-fusion multicolumn"
    ).split(),
}
"""The options of a T5, each value at least once, and the parts that it takes."""


RATES = {"dropout", "attention_dropout", "activation_dropout"}
"""Options that leave a structure as it is."""


def structure(preset: str) -> tuple[tuple[str, str], ...]:
    """The options of a preset with the flags of `SMALL`: equal ones make the same models."""
    config = ARCH_MODEL_REGISTRY[preset].config_class()
    small = {name[2:].replace("-", "_"): value for name, value in zip(SMALL[::2], SMALL[1::2])}
    names = {f.name for f in fields(config)} - RATES - {"_name"}
    options = {name: str(getattr(config, name)) for name in names}
    assert small.keys() <= options.keys()
    return tuple(sorted({**options, **small}.items()))


STRUCTURES: list[str] = list({structure(p): p for p in reversed(PRESETS)}.values())[::-1]
"""Of the presets that differ in their sizes alone, one: so every structure is tested once."""


def variants_of(preset: str) -> dict[str, list[str]]:
    """The options to test a structure with; one that is another's twin but for rates: none."""
    config = ARCH_MODEL_REGISTRY[preset].config_class()
    segments = [] if config.cross_attention == "dot" else SEGMENTS
    variants: dict[str, list[str]] = {"default": segments}
    if preset in COMPARISON_VARIANTS:
        return {**variants, **COMPARISON_VARIANTS[preset]}
    if config.recurrence != "none":
        variants.update(RECURRENCE_VARIANTS)
    if config.host == "t5" and not segments:
        variants.update(T5_VARIANTS)
    if preset == "srformer":  # in the other hosts it is the same part
        variants.update(SRFORMER_VARIANTS)
    if config.encoder_self_attention == "rsa":
        variants.update(SELF_ATTENTION_VARIANTS)
    return variants


SYSTEMS: dict[str, list[str]] = {
    f"{preset}-{name}": ["--arch", preset, *flags]
    for preset in STRUCTURES
    for name, flags in variants_of(preset).items()
}
"""Every structure, and every set of options: the flags that choose them."""


BART_FLAGS: list[str] = (
    "--encoder-learned-pos --decoder-learned-pos --layernorm-embedding --no-scale-embedding "
    "--share-all-embeddings --share-decoder-input-output-embed --activation-fn gelu"
).split()
"""What makes fairseq's Transformer a BART."""

HOST_FLAGS = ("--t5-", "--activation-fn", "--encoder-normalize-", "--decoder-normalize-")


def stock_of(system: list[str]) -> list[str]:
    """The model around a system's parts: fairseq's Transformer, or the T5 without them."""
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
"""The structures around fairseq's Transformer, to which they can be compared bit for bit.

T5's counterpart is another library's, see tests/integration/test_convert_logits.py.
"""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`preset` takes every structure; `system` every structure and every set of options."""
    if "transformer" in metafunc.fixturenames:
        metafunc.parametrize("transformer", TRANSFORMERS)
    if "preset" in metafunc.fixturenames:
        long = metafunc.definition.get_closest_marker("slow_presets")
        metafunc.parametrize("preset", [
            pytest.param(p, marks=pytest.mark.slow if long and p != "transformer_biarn" else ())
            for p in STRUCTURES
        ])  # fmt: skip
    if "system" in metafunc.fixturenames:
        long = metafunc.definition.get_closest_marker("slow_options")
        metafunc.parametrize("system", [
            pytest.param(
                flags, id=name,
                marks=pytest.mark.slow if long and not name.endswith("-default") else (),
            )
            for name, flags in SYSTEMS.items()
        ])  # fmt: skip


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)
    random.seed(1)


@pytest.fixture(scope="session")
def dictionary() -> Dictionary:
    """A dictionary of 60 words."""
    words = Dictionary()
    for i in range(60):
        words.add_symbol(f"w{i}")
    return words


@pytest.fixture(scope="session")
def make_model(dictionary: Dictionary) -> Callable[..., torch.nn.Module]:
    """Build an architecture from flags: ``make_model("transformer_biarn", "--dropout", "0")``."""
    task = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)

    @cache
    def configure(task_name: str, *flags: str) -> DictConfig:
        parser = options.get_training_parser(task_name)
        args = options.parse_args_and_arch(parser, ["data", *flags])
        return convert_namespace_to_omegaconf(args)

    def make(arch: str, *flags: str) -> torch.nn.Module:
        decoder_only = issubclass(ARCH_MODEL_REGISTRY[arch], FairseqLanguageModel)
        name = "language_modeling" if decoder_only else "translation"
        return build_model(deepcopy(configure(name, "--arch", arch, *flags)).model, task)

    return make


def write_corpus(
    folder: Path, name: str, pairs: int, change: Callable[[list[str]], list[str]], seed: int
) -> None:
    """Lines of 2 to 8 of twenty words, and on the other side the changed lines."""
    rng = random.Random(seed)
    sources = [[f"w{rng.randrange(20)}" for _ in range(rng.randint(2, 8))] for _ in range(pairs)]
    (folder / f"{name}.src").write_text("".join(" ".join(s) + "\n" for s in sources))
    (folder / f"{name}.tgt").write_text("".join(" ".join(change(s)) + "\n" for s in sources))


@pytest.fixture(scope="session")
def cli() -> Callable[..., str]:
    """Run a fairseq command in this process: ``cli("train", data, "--arch", ...)``."""
    from tests.running import run_command

    return run_command


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory, cli: Callable[..., str]) -> Path:
    """A preprocessed corpus whose target is its source reversed: (folder)/bin, (folder)/*.src."""
    folder = tmp_path_factory.mktemp("corpus")
    for name, pairs, seed in (("train", 200, 1), ("valid", 20, 2), ("test", 20, 3)):
        write_corpus(folder, name, pairs, lambda words: words[::-1], seed)
    cli(
        "preprocess", "--source-lang", "src", "--target-lang", "tgt", "--joined-dictionary",
        "--trainpref", folder / "train", "--validpref", folder / "valid",
        "--testpref", folder / "test", "--destdir", folder / "bin",
    )  # fmt: skip
    return folder


TRAIN: Sequence[str] = (
    "--optimizer adam --lr 0.002 --lr-scheduler inverse_sqrt --warmup-updates 10 --criterion "
    "label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 400 --cpu --seed 1 "
    "--log-format simple --log-interval 1 --num-workers 0"
).split()
"""Flags of a short training."""
