"""What the criterions of this plug-in's tasks without text have in common."""

from typing import Any, ClassVar

from fairseq.tasks import TASK_REGISTRY

from fairseq_recur.criterions.counts import SummedCounts
from fairseq_recur.errors import ConfigError


class CriterionOfTask(SummedCounts):
    """A criterion for the batches of one task.

    Raises:
        ConfigError: the task is another one
    """

    flag: ClassVar[str]
    """The name under which it is registered."""

    for_task: ClassVar[str]
    """The name of the task that takes this criterion and its subclasses."""

    def __init__(self, task: Any) -> None:
        if not isinstance(task, TASK_REGISTRY.get(self.for_task, ())):
            raise ConfigError(
                f"--criterion {self.flag} measures the batches of --task {self.for_task}; give "
                f"--task {self.for_task}, or another --criterion"
            )
        super().__init__(task)
