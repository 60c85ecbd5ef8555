"""An optimizer whose state the processes of a training divide: ``--zero-sharding os``."""

import sys
from collections.abc import Iterable
from itertools import chain
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils
from torch.distributed.optim import ZeroRedundancyOptimizer


class ShardedOptimizer(ZeroRedundancyOptimizer):
    """torch's optimizer for `ZeRO <https://arxiv.org/abs/1910.02054>`_, as fairseq's trainer needs.

    Each process updates its share of the parameters and sends them to the others. All compute from
    the same gradients, so the parameters are those of an optimizer without shares, bit for bit.

    Args:
        params: the groups of an optimizer
        optimizer_class: that optimizer's class
        options: ``process_group``, and what the class's constructor takes
    """

    disable_mem_eff_fp16_loading_hack = True  # `load_state_dict` keeps the dtypes itself

    def __init__(
        self, params: Iterable[Any], optimizer_class: type[torch.optim.Optimizer], **options: Any
    ) -> None:
        self._handled = sys.exc_info()[1]
        super().__init__(params, optimizer_class, **options)

    def __getattr__(self, name: str) -> Any:
        """Return what fairseq asks of an optimizer, such as ``supports_step_with_scale``."""
        if name.startswith("supports_"):
            return getattr(self.optim, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def broadcast_global_state_dict(self, state_dict: Any) -> Any:
        """Return the first process's state on all processes."""
        return distributed_utils.broadcast_object(state_dict, 0, self.process_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load this process's share as the optimizer itself loads it.

        torch's own method leaves a step of the fused kernels on the CPU.

        Args:
            state_dict: the state of all parameters, of any number of processes, in the same
                groups, as `optim.overrides` makes them
        """
        saved = state_dict["param_groups"]
        every = (p for group in self.param_groups for p in group["params"])
        number = {parameter: n for n, parameter in enumerate(every)}
        own = [[number[p] for p in group["params"]] for group in self.optim.param_groups]
        values = state_dict["state"]
        state = {n: values[n] for n in chain.from_iterable(own) if n in values}
        groups = [{**group, "params": numbers} for group, numbers in zip(saved, own)]
        self.optim.load_state_dict({"state": state, "param_groups": groups})
        for mine, exposed in zip(self.optim.param_groups, self.param_groups):
            exposed.update({name: value for name, value in mine.items() if name != "params"})
            for parameter in mine["params"]:
                # torch rounds the state to the parameter's precision; fairseq's is float32.
                half = parameter.dtype in (torch.float16, torch.bfloat16)
                if half and number[parameter] in state:
                    self.optim.state[parameter] = state[number[parameter]]

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Gather the state of all processes for the next `state_dict` of process *to*.

        The trainer asks for that also when it has caught an error, to save the training as it is.
        NaN gradients are an error of all processes. Any other is that of this process, and it would
        wait for the others in vain, so the error is raised at once.
        """
        error = sys.exc_info()[1]
        if error not in (None, self._handled) and not isinstance(error, FloatingPointError):
            raise
        super().consolidate_state_dict(to)

    def state_dict(self) -> dict[str, Any]:
        """Return the gathered state, and release it: it is as large as all shares."""
        try:
            return super().state_dict()
        finally:
            self._all_state_dicts: list[dict[str, Any]] = []
