"""Checks of fairseq's options that would do something else than they say, or fail later on."""

import argparse
from importlib.util import find_spec

from fairseq import utils
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
from fairseq.tasks.translation_lev import TranslationLevenshteinTask

from fairseq_recur.errors import Problems
from fairseq_recur.models.base import RecurrentModel
from fairseq_recur.tasks.streams import StreamLanguageModelingTask

WHOLE_WORDS = "eos", "complete", "complete_doc"
"""Values of --sample-break-mode with which no block ends within a word."""

SPEECH, MASKED, CLASSES = "speech", "masked language models", "classification"
CRITERIONS = {
    **dict.fromkeys(
        (
            "ctc", "fastspeech2", "hubert", "label_smoothed_cross_entropy_with_ctc",
            "speech_dlm_criterion", "speech_to_spectrogram", "speech_to_spectrogram_2pass",
            "speech_to_unit", "speech_to_unit_2pass", "speech_unit_lm_criterion", "tacotron2",
            "wav2vec",
        ),
        SPEECH,
    ),
    **dict.fromkeys(("masked_lm", "legacy_masked_lm_loss"), MASKED),
    **dict.fromkeys(
        ("sentence_prediction", "sentence_prediction_adapters", "sentence_ranking"), CLASSES
    ),
    "latency_augmented_label_smoothed_cross_entropy": "simultaneous translation",
    "model": "models that compute their own losses",
    "nat_loss": "non-autoregressive models",
    "vocab_parallel_cross_entropy": "Megatron's models",
}  # fmt: skip
"""fairseq's criterions that fit none of this plug-in's models, and what they are for."""

OVERLAPPING = ("c10d", "pytorch_ddp")
"""Values of --ddp-backend with which fairseq's adaptive loss does not train."""


def check_options(command: str, args: argparse.Namespace) -> None:
    """Check a command's options that only fairseq reads.

    Args:
        command: of fairseq
        args: its options

    Raises:
        ConfigError: some cannot act; the message has all of them
    """
    problems = Problems("options that cannot be used")
    if command == "train":
        training_problems(args, problems)
    elif command in ("generate", "interactive"):
        decoding_problems(command, args, problems)
    elif command == "eval-lm":
        evaluation_problems(args, problems)
    problems.raise_all()


def training_problems(args: argparse.Namespace, problems: Problems) -> None:
    """Note what keeps these options from training the model."""
    criterion_problems(args, problems)
    if args.write_checkpoints_asynchronously and not find_spec("iopath"):
        problems.add(
            "--write-checkpoints-asynchronously needs the package iopath, and none is installed: "
            "nothing would be trained; install it, or leave the option out"
        )


def decoding_problems(command: str, args: argparse.Namespace, problems: Problems) -> None:
    """Note the options that decoding would not read, or cannot."""
    refines = issubclass(TASK_REGISTRY[args.task], TranslationLevenshteinTask)
    for name in ("print_step", "retain_iter_history"):
        if getattr(args, name) and not refines:
            problems.add(
                f"--{name.replace('_', '-')} is for models that refine a translation, with "
                "--task translation_lev; leave it out"
            )
    if command == "generate" and args.constraints:
        problems.add(
            "--constraints: generate reads no constraints from binary data; use interactive, whose "
            "lines have them after a tab"
        )
    if command == "generate" and args.score_reference and args.print_alignment == "soft":
        problems.add(
            "--print-alignment soft: --score-reference has hard alignments only; give "
            "--print-alignment hard"
        )
    if command == "interactive" and args.lm_path:
        problems.add(
            f"--lm-path {args.lm_path}: interactive reads no language model; leave it out, or use "
            "generate"
        )


def evaluation_problems(args: argparse.Namespace, problems: Problems) -> None:
    """Note the options with which eval-lm would not measure what they say."""
    if len(utils.split_paths(args.path or "")) > 1:
        problems.add(f"--path {args.path}: eval-lm reads one checkpoint; give one")
    if args.post_process is None:
        return
    if args.post_process not in ("subword_nmt", "@@ "):
        problems.add(
            f"--remove-bpe {args.post_process}: eval-lm joins only the pieces of "
            "subword_nmt, which end in @@; give --remove-bpe without a value, or leave it out"
        )
    elif issubclass(TASK_REGISTRY[args.task], StreamLanguageModelingTask):
        problems.add(
            "--remove-bpe: a segment of a stream may end within a word, of which both parts would "
            "be counted; leave it out, so that the loss is one of pieces"
        )
    elif getattr(args, "sample_break_mode", None) not in WHOLE_WORDS:
        problems.add(
            "--remove-bpe: a block of --tokens-per-sample may end within a word, of which both "
            "parts would be counted; add --sample-break-mode eos or complete, or leave it out, so "
            "that the loss is one of pieces"
        )


def criterion_problems(args: argparse.Namespace, problems: Problems) -> None:
    """Note what keeps the criterion from training the model."""
    model = ARCH_MODEL_REGISTRY[args.arch]
    purpose = CRITERIONS.get(args.criterion)
    if purpose is not None and issubclass(model, RecurrentModel):
        problems.add(
            f"--criterion {args.criterion} is for {purpose}, not for --arch {args.arch}; give "
            "label_smoothed_cross_entropy, cross_entropy or another one for sequences of words"
        )
    if args.criterion != "adaptive_loss":
        return
    if args.ddp_backend in OVERLAPPING:
        problems.add(
            f"--criterion adaptive_loss with --ddp-backend {args.ddp_backend}: bands without a "
            "word have no gradient; give --ddp-backend legacy_ddp"
        )
    if not getattr(args, "adaptive_softmax_cutoff", None):
        problems.add(
            "--criterion adaptive_loss needs the bands of an adaptive softmax; give "
            "--adaptive-softmax-cutoff, or another criterion"
        )
