"""What a program prints: needless warnings, the level of the log, hydra's errors."""

import logging
import os
import sys
import warnings

from fairseq_recur.compat.registry import mend
from fairseq_recur.compat.report import version

NOISE = (
    r"hydra\.experimental\.(initialize|compose)\(\) is no longer experimental",
    r"\s*The version_base parameter is not specified",
    r"\s*'\S*config' is validated against ConfigStore schema",
    r"In '\S*config': Usage of deprecated keyword in package header",
    r"\s*The strict flag in the compose API is deprecated",
    r"'pin_memory' argument is set as true but no accelerator is found",
    r"`torch\.cuda\.amp\.(autocast|GradScaler)\(args\.\.\.\)` is deprecated",
    r"torch\.cuda\.amp\.GradScaler is enabled, but CUDA is not available",
    r"Support for mismatched key_padding_mask and attn_mask is deprecated",
    r".*`?broadcast_buffers",
)

needless_warnings = mend(
    "warnings",
    reason="ten warnings per run about calls inside fairseq that a user cannot change",
    until="a fairseq written for current versions of hydra and torch",
)


@needless_warnings.action
def ignore_warnings() -> None:
    """Filter the warnings."""
    for message in NOISE:
        warnings.filterwarnings("ignore", message=message)


log_level = mend(
    "log level",
    reason="fairseq's wav2vec2_classification sets the root logger to DEBUG when it is imported",
    until="a fairseq without logging.basicConfig in that file",
)


@log_level.action
def lower_root_logger() -> None:
    """Restore the level of the root logger, if fairseq configured it."""
    root = logging.getLogger()
    formats = [getattr(handler.formatter, "_fmt", None) for handler in root.handlers]
    if root.level == logging.DEBUG and formats == [logging.BASIC_FORMAT]:
        root.setLevel(os.environ.get("LOGLEVEL", "INFO").upper())


bleu_advice = mend(
    "advice about BLEU",
    reason="generate recommends --sacrebleu, an option that no longer changes its score",
    until="a fairseq whose generate recommends --scoring sacrebleu",
)


@bleu_advice.action
def correct_bleu_advice() -> None:
    """Replace the warning, once."""
    generate = logging.getLogger("fairseq_cli.generate")
    generate.removeFilter(_correct)
    generate.addFilter(_correct)


def _correct(record: logging.LogRecord) -> bool:
    if "Use --sacrebleu" in str(record.msg):
        record.levelno, record.levelname = logging.INFO, "INFO"
        record.msg = "the BLEU4 of the last line is not sacreBLEU's; use fairseq-recur score"
    return True


hydra_errors = mend(
    "hydra errors",
    reason="hydra 1.0 cannot print an error on Python >= 3.10: a TypeError about 'etype' hides it",
    until="hydra-core 1.1",
    needed=lambda: version("hydra-core").startswith("1.0.") and sys.version_info >= (3, 10),
)


@hydra_errors.action
def show_hydra_errors() -> None:
    """Let hydra raise its errors."""
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
