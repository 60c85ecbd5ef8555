"""The training's log: each line once in --log-file, and no parameter that does not exist."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from fairseq_recur.compat.registry import Function, mend, source_of

PROGRESS = "fairseq.logging.progress_bar"

log_file = mend(
    "log file",
    reason="each epoch adds a handler for --log-file and keeps the others open, so that a line of "
    "epoch 4 is written four times; beside a progress bar on a terminal, the file lacks the lines "
    "of --log-interval",
    until="a fairseq whose progress_bar adds no handler",
    needed=lambda: "addHandler" in source_of(f"{PROGRESS}:progress_bar"),
)


def _writers() -> list[logging.FileHandler]:
    """Return the handlers of the log files that are open now."""
    from fairseq.logging import progress_bar

    return [h for h in progress_bar.logger.handlers if isinstance(h, logging.FileHandler)]


@log_file.patch(f"{PROGRESS}:progress_bar")
def progress_bar(
    build: Function, iterator: Any, log_format: Any = None, log_interval: int = 100,
    log_file: str | None = None, *args: Any, **kwargs: Any,
) -> Any:  # fmt: skip
    """Close the log file of the last epoch before fairseq opens it again."""
    from fairseq.logging import progress_bar

    if log_file is not None:  # validation has a bar without one
        for handler in _writers():
            progress_bar.logger.removeHandler(handler)
            handler.close()
    bar = build(iterator, log_format, log_interval, log_file, *args, **kwargs)
    inner = bar
    while hasattr(inner, "wrapped_bar"):  # TensorBoard's and others around it
        inner = inner.wrapped_bar
    inner.log_interval = log_interval
    return bar


@log_file.patch(f"{PROGRESS}:TqdmProgressBar.__iter__")
def iterate(iterate: Function, self: Any) -> Iterator[Any]:
    """Count, for `log`; tqdm's own count is behind between two refreshes."""
    self.size = len(self.iterable)
    for number, item in enumerate(iterate(self), start=self.n):
        self.i = number
        yield item


@log_file.patch(f"{PROGRESS}:TqdmProgressBar.log")
def log(show: Function, self: Any, stats: Any, tag: str | None = None, step: Any = None) -> None:
    """Show the statistics in the bar, and write the line of a pipe to the log file."""
    from fairseq.logging.progress_bar import SimpleProgressBar

    show(self, stats, tag, step)
    if _writers() and hasattr(self, "i"):
        with _to_file_only():
            SimpleProgressBar.log(self, stats, tag, step)


@contextmanager
def _to_file_only() -> Iterator[None]:
    """Keep the progress bar's log off the terminal."""
    from fairseq.logging import progress_bar

    progress_bar.logger.propagate = False
    try:
        yield
    finally:
        progress_bar.logger.propagate = True


shared_parameters = mend(
    "shared parameters",
    reason='the trainer logs a "detected shared parameter" for each pair of biases that a model '
    "does not have, because both are None",
    until="a fairseq that skips None in _catalog_shared_params",
    needed=lambda: "param is None" not in source_of("fairseq.trainer:_catalog_shared_params"),
)


@shared_parameters.patch("fairseq.trainer:_catalog_shared_params")
def catalog_shared_params(catalog: Function, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Return the names of the parameters that have several, without the missing ones."""
    found = catalog(module, *args, **kwargs)
    if found is None:  # a submodule's
        return None
    missing = {
        f"{prefix}.{name}" if prefix else name
        for prefix, part in module.named_modules(remove_duplicate=False)
        for name, parameter in part._parameters.items()
        if parameter is None
    }
    return [names for names in found if names[0] not in missing]
