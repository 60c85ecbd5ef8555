"""Tasks of this plug-in. Importing this package registers them with fairseq."""

from fairseq_recur.tasks.regular_languages import RegularLanguagesTask
from fairseq_recur.tasks.summarization import SummarizationTask

__all__ = ["RegularLanguagesTask", "SummarizationTask"]
