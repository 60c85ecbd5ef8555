"""The model of an architecture with parameters that have no data, and a batch for it."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from fairseq import options
from fairseq.criterions import build_criterion
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import (
    ARCH_MODEL_REGISTRY,
    FairseqEncoderDecoderModel,
    FairseqLanguageModel,
    build_model,
)
from torch import nn

from fairseq_recur.errors import ConfigError, refuse
from fairseq_recur.planning.meta_tensors import RealIntegers, RealNumbers

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

# The plan has its own options for these, or computes them.
PLANNED = (
    "--arch", "-a", "--max-tokens", "--batch-size", "--update-freq", "--max-update", "--fp16",
    "--bf16", "--memory-efficient-fp16", "--memory-efficient-bf16", "--amp", "--user-dir",
)  # fmt: skip

CRITERION = ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"]

KINDS = (FairseqEncoderDecoderModel, FairseqLanguageModel)
EXPECTED = "an encoder-decoder or a language model that reads tokens"

Sample = dict[str, Any]


class Built(NamedTuple):
    """A model, and what is needed to compute its loss.

    Attributes:
        model: in training mode, on torch's meta device
        criterion: fairseq's, from the flags
        decoder_only: whether it is a language model
        source, target: sizes of the dictionaries
        positions: the longest source and target that the model accepts
        memory: of a language model that remembers earlier segments, or None
    """

    model: nn.Module
    criterion: nn.Module
    decoder_only: bool
    source: int
    target: int
    positions: int
    memory: Any = None


def words(size: int) -> Dictionary:
    """A dictionary of *size* entries, including fairseq's special ones."""
    dictionary = Dictionary()
    for i in range(size - len(dictionary)):
        dictionary.add_symbol(f"w{i}")
    return dictionary


def model_problems(arch: str, flags: Sequence[str]) -> Iterator[str]:
    """Yield why there is no such model to plan, as far as the names of its flags show it."""
    if arch not in ARCH_MODEL_REGISTRY:
        yield f"unknown architecture {arch!r}; see `fairseq-recur train --list`"
    elif not issubclass(ARCH_MODEL_REGISTRY[arch], KINDS):
        yield f"--arch {arch} cannot be planned; expected {EXPECTED}"
    foreign = [flag for flag in flags if flag.split("=")[0] in PLANNED]
    if foreign:
        yield (
            f"found {', '.join(foreign)} after --, expected flags of the model; the plan has its "
            "own options for these, or computes them; remove them there"
        )


@contextmanager
def plannable(arch: str) -> Iterator[None]:
    """Refuse a model that needs more than dictionaries and a batch of tokens.

    fairseq's classes do not say what their models need: data of speech, a task's options, targets.

    Raises:
        ConfigError: the model cannot be built, or run on a batch
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"--arch {arch} cannot be planned with its flags ({error!r}); expected {EXPECTED}"
        ) from error


def configure(arch: str, flags: Sequence[str]) -> Any:
    """Return fairseq-train's configuration of an architecture with flags.

    Raises:
        ConfigError: the architecture is unknown, the plan has its own option for a flag, or it
            assumes another optimizer
        SystemExit: 2, with fairseq's message, if a flag is invalid
    """
    refuse("unusable model", model_problems(arch, flags))
    decoder_only = issubclass(ARCH_MODEL_REGISTRY[arch], FairseqLanguageModel)
    parser = options.get_training_parser("language_modeling" if decoder_only else "translation")
    parser.prog, parser.usage = "fairseq-recur plan", "%(prog)s OPTION ... -- FLAG ..."
    chosen = any(flag.split("=")[0] == "--criterion" for flag in flags)
    argv: list[str] = ["data", "--arch", arch, *([] if chosen else CRITERION), *flags]
    config = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, argv))
    optimizer = getattr(config.optimizer, "_name", None)
    if optimizer not in (None, "adam", "adamw_fused"):
        raise ConfigError(f"--optimizer {optimizer}: the plan assumes Adam; leave it out")
    return config


def build(
    arch: str, flags: Sequence[str], source: int, target: int, precision: str, device: str = "meta"
) -> Built:
    """Build a model as fairseq-train does.

    Args:
        arch: a name of fairseq's registry
        flags: fairseq-train's flags for the model and the criterion
        source: size of the dictionary
        target: likewise; equal sizes mean one joined dictionary
        precision: of the parameters, "fp32", "fp16" or "bf16"
        device: "meta" computes only shapes; the tests compare with "cpu"

    Raises:
        ConfigError: the architecture or its flags are invalid
    """
    config = configure(arch, flags)
    dictionary = words(source)
    task = Namespace(
        dictionary=dictionary,
        source_dictionary=dictionary,
        target_dictionary=dictionary if source == target else words(target),
    )
    with ExitStack() as modes:
        modes.enter_context(torch.device(device))
        for mode in (RealIntegers, RealNumbers) if device == "meta" else ():
            modes.enter_context(mode())
        model = build_model(config.model, task)
        criterion = build_criterion(config.criterion, task)
    for module in (model, criterion):
        module.to(DTYPES[precision]).train()
    decoder_only = isinstance(model, FairseqLanguageModel)
    limits = model.max_positions()
    positions = min(limits) if isinstance(limits, tuple) else limits
    memory = getattr(getattr(model, "decoder", None), "memory", None)
    return Built(model, criterion, decoder_only, source, target, positions, memory)


def sample(built: Built, sentences: int, source: int, target: int) -> Sample:
    """Make a batch of sentences without padding. Its integers have data on any device.

    Args:
        built: a model
        sentences: B
        source: S, in tokens
        target: T, in tokens; a language model reads T
    """
    generator = torch.Generator().manual_seed(1)

    def tokens(vocabulary: int, length: int) -> torch.Tensor:
        low = min(4, vocabulary - 1)  # after the special symbols
        return torch.randint(low, vocabulary, (sentences, length), generator=generator)

    output = tokens(built.target, target)
    inputs = {
        "src_tokens": tokens(built.source, source),
        "src_lengths": torch.full((sentences,), source),
        "prev_output_tokens": output.roll(1, 1),
    }
    if built.decoder_only:
        inputs = {"src_tokens": output.roll(1, 1), "src_lengths": torch.full((sentences,), target)}
    if built.memory is not None:
        inputs["starts"] = torch.zeros(sentences, dtype=torch.int64)
    return {
        "net_input": inputs,
        "target": output,
        "ntokens": output.numel(),
        "nsentences": sentences,
    }
