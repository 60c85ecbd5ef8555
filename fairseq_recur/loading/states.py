"""What a checkpoint holds, without building anything from it."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fairseq_recur import compat
from fairseq_recur.compat.checkpoint_options import with_objects
from fairseq_recur.errors import CheckpointError
from fairseq_recur.models.checkpoints import rename_old_options
from fairseq_recur.modules.stream_memory import is_memory


def read_state(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint without running code from it.

    Returns:
        what the file holds; its weights, under "model", without the memory of its last batch

    Raises:
        CheckpointError: the file is missing, damaged, unsafe or not a fairseq checkpoint
    """
    state = compat.read_checkpoint(str(path))
    state["model"] = {name: x for name, x in state["model"].items() if not is_memory(name)}
    return state


def saved_options(state: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a checkpoint's model by their present names, however they were saved.

    Args:
        state: from `read_state`

    Returns:
        the flat options, those of the configuration before those of old checkpoints; empty if
        there are none

    Raises:
        CheckpointError: the configuration refers to an option that it does not have
    """
    options: Any = state.get("args")
    if state.get("cfg") is not None:
        try:
            cfg = with_objects(state["cfg"])
            whole: Any = OmegaConf.to_container(cfg, resolve=True)
        except (OmegaConfBaseException, AssertionError, ValueError) as error:
            raise CheckpointError(
                f"the configuration in the checkpoint cannot be read ({error}); give one that "
                "fairseq-train saved"
            ) from error
        options = whole.get("model") if isinstance(whole, dict) else None
    options = vars(options) if isinstance(options, Namespace) else options
    found = dict(options) if isinstance(options, dict) else {}
    rename_old_options(found)
    return found
