"""Tasks of this plug-in. Importing this package registers them with fairseq."""

from fairseq_recur.tasks.regular_languages import RegularLanguagesTask
from fairseq_recur.tasks.streams import StreamLanguageModelingTask
from fairseq_recur.tasks.summarization import SummarizationTask
from fairseq_recur.tasks.time_series import TimeSeriesTask

__all__ = [
    "RegularLanguagesTask",
    "StreamLanguageModelingTask",
    "SummarizationTask",
    "TimeSeriesTask",
]
