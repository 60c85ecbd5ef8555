"""``--task time_series_forecasting``: forecast all variables of a series from a window of it.

Section 4.1 of Huang et al. (ICLR 2023), whose windows, splits and features are those of Informer
(Zhou et al. 2021). The data is one CSV file.
"""

import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Optional

import numpy
import torch
from fairseq.criterions import FairseqCriterion
from fairseq.data import FairseqDataset
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import (
    FairseqEncoderDecoderModel,
    FairseqEncoderModel,
    FairseqLanguageModel,
)
from fairseq.tasks import FairseqTask, register_task
from torch import Tensor

from fairseq_recur.compat.registry import Function, extend
from fairseq_recur.errors import ConfigError, refuse
from fairseq_recur.modules.options import flag, option
from fairseq_recur.tasks.fitting import fitting, model_class
from fairseq_recur.tasks.rows import RowDataset, Sizes
from fairseq_recur.tasks.series_data import Array, Series, as_columns, columns_of, read_series
from fairseq_recur.tasks.series_splits import (
    SPLITS,
    forecast_rows,
    scale_of,
    split_rows,
    standardised,
)

logger = logging.getLogger(__name__)

APART = 2**40
"""Distance between the numbers of two splits' windows, so that no split continues another."""

MONTHS = "12,4,4"
"""Of training, validation and test: those of ETT in Zhou et al. 2021."""

STATE = "time_series_forecasting"
"""Key in a checkpoint's ``task_state`` of the variables and their scale in the training."""

OF_WORDS = (FairseqEncoderDecoderModel, FairseqEncoderModel, FairseqLanguageModel)
"""Models whose inputs are the words of a dictionary."""

WindowOrder = ChoiceEnum(["sequential", "shuffled"])


@dataclass
class TimeSeriesConfig(FairseqDataclass):
    """The flags of ``--task time_series_forecasting``."""

    # Not "data", which fairseq takes for a folder.
    series_file: Optional[str] = option(  # noqa: UP045
        None, "CSV file: a line of names, then a date and numbers in each line"
    )
    series_columns: str = option(
        "",
        "names of the variables to read and to forecast, with commas between, and a name with a "
        "comma in double quotes; by default all columns but the date",
    )
    input_length: int = option(96, "rows that a forecast is made from")
    label_length: int = option(
        48, "last rows of the input that the decoder reads before its forecast"
    )
    horizon: int = option(24, "rows to forecast")
    split_months: str = option(MONTHS, "months of 30 days for training, validation and test")
    split_fractions: str = option(
        "",
        "fractions of the rows for training, validation and test, such as 0.7,0.1,0.2, "
        "in place of --split-months",
    )
    window_order: WindowOrder = option(  # type: ignore[valid-type]  # made at run time
        "sequential",
        "order of the training windows: sequential, as Huang et al. train all models, "
        "or shuffled anew in each epoch",
    )
    drop_last_batch: bool = option(
        False,
        "leave out the last batch of every split if it has fewer windows than --batch-size, as the "
        "code of Zhou et al. 2021 does, also in the test part",
    )


class WindowDataset(RowDataset):
    """All windows of a split, one row apart.

    Args:
        values: (rows, V) standardised values of the series
        features: (rows, F) of the dates
        first: the row after the first window's input
        last: the row after the last window's forecast
        lengths: of the input and of the forecast
        number: of the split
        shuffled: draw a new order in each epoch
    """

    def __init__(
        self,
        values: Tensor,
        features: Tensor,
        first: int,
        last: int,
        lengths: tuple[int, int],
        number: int,
        shuffled: bool,
    ) -> None:
        super().__init__(numpy.full(last - first - lengths[1] + 1, sum(lengths)), shuffled)
        self.values, self.features, self.first, self.number = values, features, first, number
        self.input, self.horizon = lengths
        self.multiple = 1

    def collater(self, samples: list[int]) -> dict[str, Any]:
        """Build a batch.

        Returns:
            fairseq's usual entries, with ``net_input.past`` (B, L, V), ``net_input.past_times``
            (B, L, F), ``net_input.future_times`` (B, T, F) and ``net_input.starts`` (B,), the
            windows' numbers; and ``target`` (B, T, V)
        """
        if not samples:
            return {}
        ends = torch.tensor(samples).unsqueeze(1) + self.first
        past = ends + torch.arange(-self.input, 0)
        future = ends + torch.arange(self.horizon)
        return {
            "id": torch.tensor(samples),
            "nsentences": len(samples),
            "ntokens": len(samples) * self.horizon,
            "net_input": {
                "past": self.values[past],
                "past_times": self.features[past],
                "future_times": self.features[future],
                "starts": torch.tensor(samples) + self.number * APART,
            },
            "target": self.values[future],
        }

    def ordered_indices(self) -> Sizes:
        """Return the indices in the order of the batches; fairseq seeds numpy before the call.

        Their number is a multiple of ``multiple``; the last ones are left out.
        """
        count = len(self)
        order = self.drawn() if self.shuffled else numpy.arange(count)
        return order[: count - count % self.multiple]


@register_task("time_series_forecasting", dataclass=TimeSeriesConfig)
class TimeSeriesTask(FairseqTask):
    """Forecasts the rows after a window, from its rows and the dates.

    The splits are ``train``, ``valid`` and ``test``; the input of their first windows reaches
    back into the split before. Values are standardised by mean and deviation of ``train``, or by
    those of the checkpoint that is loaded.

    Args:
        cfg: the options
        loaded: whether those that the user has not given are from a checkpoint

    Raises:
        ConfigError: the file or a flag cannot be used
    """

    def __init__(self, cfg: TimeSeriesConfig, loaded: bool = False) -> None:
        super().__init__(cfg)
        wrong = [
            f"{flag(name)} {getattr(cfg, name)}: expected {least} to {2**16}"
            for name, least in (("input_length", 1), ("label_length", 0), ("horizon", 1))
            if not least <= getattr(cfg, name) <= 2**16
        ]
        if cfg.label_length > cfg.input_length and not wrong:
            wrong.append(
                f"--label-length {cfg.label_length}: expected at most --input-length "
                f"{cfg.input_length}, of which it is the end"
            )
        if cfg.split_fractions and cfg.split_months != MONTHS:
            both = f"--split-months {cfg.split_months}"
            both += f" has no effect with --split-fractions {cfg.split_fractions}"
            wrong.append(
                f"{both}; the checkpoint has what was not given: to replace it, give also "
                f"--split-fractions '', or --split-months {MONTHS}"
                if loaded
                else f"{both}; leave out one of them"
            )
        if cfg.series_file is None:
            wrong.append("no series: give a CSV file with --series-file")
        refuse("task time_series_forecasting", wrong)
        assert cfg.series_file is not None
        columns = columns_of(cfg.series_columns)
        self.series: Series = read_series(cfg.series_file, columns)
        self.rows = split_rows(self.series, cfg.split_months, cfg.split_fractions)
        self.values = torch.empty(self.series.values.shape, dtype=torch.float32)
        self.set_scale(*scale_of(self.series.values[slice(*self.rows["train"])]))
        self.features = torch.from_numpy(self.series.features())
        self.remembers = False

    @classmethod
    def setup_task(cls, cfg: TimeSeriesConfig, **kwargs: Any) -> "TimeSeriesTask":
        """Create the task from the command line or a checkpoint."""
        return cls(cfg, kwargs.get("from_checkpoint", False))

    def set_scale(self, mean: Array, deviation: Array) -> None:
        """Standardise all rows, those of loaded splits too; checkpoints will have this scale.

        Args:
            mean: (V,)
            deviation: (V,)

        Raises:
            ConfigError: the values overflow with this scale
        """
        values = standardised(self.series, mean, deviation)
        self.mean, self.deviation = mean, deviation
        self.values.copy_(torch.from_numpy(values))
        scale = {"mean": mean.tolist(), "deviation": deviation.tolist()}
        series = {"names": self.series.names, "step": self.series.step.total_seconds()}
        self.state.merge_state_dict({STATE: {**series, **scale}})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Use the scale in a checkpoint; with an older one, that of the series stays.

        Raises:
            ConfigError: the series has other variables than the training, or another order, or
                another time from row to row
        """
        super().load_state_dict(state_dict)
        saved = state_dict.get(STATE)
        if saved is None:
            return
        names = self.series.names
        if saved["names"] != names:
            raise ConfigError(
                f"{self.cfg.series_file}: found the variables {', '.join(names)}, but the model "
                f"was trained on {', '.join(saved['names'])}: give another --series-file, or "
                f"choose them in this order with --series-columns {as_columns(saved['names'])}"
            )
        step = saved.get("step", self.series.step.total_seconds())  # older ones lack it
        if step != self.series.step.total_seconds():
            raise ConfigError(
                f"{self.cfg.series_file}: found a row every {self.series.step}, but the model was "
                f"trained on a row every {timedelta(seconds=step)}; give a series with that step"
            )
        self.set_scale(numpy.array(saved["mean"]), numpy.array(saved["deviation"]))

    @property
    def source_dictionary(self) -> None:
        """None: there are no words."""

    @property
    def target_dictionary(self) -> None:
        """None: there are no words."""

    def max_positions(self) -> None:
        """Return None: all windows are equally long."""

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> None:
        """Build the windows of a split.

        Raises:
            ConfigError: there is no such split, or it is shorter than a window
        """
        if split not in SPLITS:
            raise ConfigError(
                f"the task time_series_forecasting has the splits {', '.join(SPLITS)}, not "
                f"{split!r}; choose one of them"
            )
        lengths = self.cfg.input_length, self.cfg.horizon
        first, last = forecast_rows(self.rows, split, *lengths)
        shuffled = split == "train" and str(self.cfg.window_order) == "shuffled"
        number = SPLITS.index(split)
        windows = WindowDataset(self.values, self.features, first, last, lengths, number, shuffled)
        self.datasets[split] = windows
        logger.info(
            "%s: %d windows of %d rows and a horizon of %d, %d variables",
            split, len(windows), *lengths, len(self.series.names),
        )  # fmt: skip

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model, which may remember the batch before.

        Raises:
            ConfigError: it is one for words
        """
        name, kind = model_class(cfg)
        if kind is not None and issubclass(kind, OF_WORDS):
            raise ConfigError(
                f"--arch {name} is a model of words, and --task time_series_forecasting has none; "
                "choose a forecaster, such as informer, log_sparse or xl_forecaster"
            )
        model = super().build_model(cfg, from_checkpoint)
        self.remembers = getattr(getattr(model, "encoder", None), "memory", None) is not None
        return model

    def build_criterion(self, cfg: Any, *args: Any, **kwargs: Any) -> FairseqCriterion:
        """Build the criterion.

        Raises:
            ConfigError: it measures no forecasts
        """
        criterion = super().build_criterion(cfg, *args, **kwargs)
        return fitting(criterion, "time_series_forecasting", "forecast_error")

    def get_batch_iterator(self, dataset: FairseqDataset, *args: Any, **kwargs: Any) -> Any:
        """Build fairseq's iterator, which keeps the order of the windows as asked.

        Raises:
            ConfigError: of training, where the model has a memory, and no batch would continue the
                one before, or the order is another; or only the last batch is left, and dropped
        """
        if self.cfg.drop_last_batch and isinstance(dataset, WindowDataset):
            multiple = kwargs.get("required_batch_size_multiple", 1)
            limits = kwargs.get("max_sentences"), kwargs.get("max_tokens")
            dataset.multiple = self.whole_batch(dataset, *limits, multiple)
        iterator = super().get_batch_iterator(dataset, *args, **kwargs)
        iterator.disable_shuffling = not getattr(dataset, "shuffled", False)
        if self.remembers and not iterator.disable_shuffling:
            raise ConfigError(
                "--window-order shuffled: no batch continues the one before, so the memory of the "
                "encoder would stay empty in training, but not in validation; choose sequential, "
                "or --encoder-memory none"
            )
        if self.remembers and iterator.disable_shuffling and len(iterator) > 1:
            problem = self.memory_problem(len(iterator.frozen_batches[0]), iterator.num_shards)
            if problem and dataset is self.datasets.get("train"):
                raise ConfigError(f"{problem}, or --encoder-memory none")
            if problem:
                logger.warning(problem)
        return iterator

    def whole_batch(
        self, windows: WindowDataset, size: int | None, tokens: int | None, multiple: int
    ) -> int:
        """Return the number of windows in a batch that ``--drop-last-batch`` keeps.

        Args:
            windows: of a split
            size: ``--batch-size``, or None
            tokens: ``--max-tokens``, or None
            multiple: ``--required-batch-size-multiple``

        Raises:
            ConfigError: it is not given, or the split has fewer
        """
        if size is None:
            raise ConfigError("--drop-last-batch needs --batch-size; give it, or leave it out")
        size = windows_of_batch(windows, size, tokens, multiple)
        if size > len(windows):
            raise ConfigError(
                f"--drop-last-batch: {SPLITS[windows.number]} has {len(windows)} windows, fewer "
                f"than a batch of {size}, so that none is left; give a smaller --batch-size"
            )
        return size

    def memory_problem(self, windows: int, processes: int) -> str:
        """Return why a memory stays empty: the next batch begins beyond what it holds; or "".

        Args:
            windows: of a batch
            processes: that take turns
        """
        if windows * processes <= self.cfg.input_length:
            return ""
        return (
            f"--encoder-memory xl has no effect: with {processes} x {windows} windows "
            "(processes x --batch-size), a batch begins after the windows of --input-length "
            f"{self.cfg.input_length} that are remembered; give a smaller --batch-size"
        )


def windows_of_batch(
    windows: WindowDataset, size: int | None, tokens: int | None, multiple: int
) -> int:
    """Return how many windows fairseq puts into a batch.

    Args:
        windows: of a split
        size: ``--batch-size``, or None
        tokens: ``--max-tokens``, or None, but not both
        multiple: ``--required-batch-size-multiple``
    """
    fitting = None if tokens is None else tokens // windows.size(0)
    size = max(1, min(limit for limit in (size, fitting) if limit is not None))
    return size - size % multiple if size > multiple else size


@extend("fairseq.checkpoint_utils:_upgrade_state_dict", "scale of a series")
def upgrade_state_dict(upgrade: Function, state: dict[str, Any]) -> Any:
    """Put the scale where `load_checkpoint` finds it: a trainer gives no task its state."""
    state = upgrade(state)
    saved = state.get("task_state", {}).get(STATE)
    if saved is not None:
        state["extra_state"][STATE] = saved
    return state


@extend("fairseq.trainer:Trainer.load_checkpoint", "scale of a series")
def load_checkpoint(load: Function, self: Any, filename: str, *args: Any, **kwargs: Any) -> Any:
    """Give a training that goes on the scale with which it began.

    With ``--finetune-from-model`` or ``--reset-dataloader`` the data begin anew: the scale is that
    of the series.

    Raises:
        ConfigError: the series has other variables, or another order of them
    """
    extra_state = load(self, filename, *args, **kwargs)
    saved = (extra_state or {}).get(STATE)
    if saved is not None:
        options = self.cfg.checkpoint
        if not options.reset_dataloader and filename != options.finetune_from_model:
            self.task.load_state_dict({STATE: saved})
    return extra_state
