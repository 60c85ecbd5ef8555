"""The words of a training: a model means nothing with other words of the same number."""

import hashlib
import logging
from collections.abc import Mapping
from typing import Any

from fairseq_recur.compat.registry import Function, extend
from fairseq_recur.errors import ConfigError

logger = logging.getLogger(__name__)

STATE = "dictionaries"
"""Key in a checkpoint's ``task_state`` of the hashes of the dictionaries."""


def dictionaries(task: Any) -> dict[str, Any]:
    """Return a task's dictionaries by name: source and target, or the languages.

    Multilingual tasks have one for each language. Their source and target are those of the first
    language in training, and those of the translated pair in decoding.
    """
    of_languages = getattr(task, "dicts", None)
    if isinstance(of_languages, Mapping):
        return {str(language): found for language, found in of_languages.items()}
    return {side: getattr(task, f"{side}_dictionary", None) for side in ("source", "target")}


def hashes(task: Any) -> dict[str, str]:
    """Return the number and a hash of the words of a task's dictionaries, each by its name."""
    found = {}
    for name, dictionary in dictionaries(task).items():
        symbols = getattr(dictionary, "symbols", None)
        if symbols is not None:
            words = "\n".join(symbols).encode(errors="replace")
            found[name] = f"{len(symbols)} words, {hashlib.sha256(words).hexdigest()}"
    return found


def difference(task: Any, saved: Any) -> str | None:
    """Say which dictionaries of a task have as many words as those of a checkpoint, but others.

    Another number of words is an error elsewhere, as the weights do not fit.

    Args:
        task: whose dictionaries are used now
        saved: what `hashes` returned when the checkpoint was saved; None in older ones
    """
    before = saved if isinstance(saved, dict) else {}
    other = []
    for name, now in hashes(task).items():
        was = str(before.get(name, now))
        if was != now and was.partition(" ")[0] == now.partition(" ")[0]:
            other.append(name)
    if not other:
        return None
    which = f"the {' and '.join(other)} dictionar{'y has' if len(other) == 1 else 'ies have'}"
    return f"{which} other words, or another order of them, than in the model's training"


@extend("fairseq.tasks:FairseqTask.state_dict", "words of a training")
def task_state(get: Function, self: Any) -> dict[str, Any]:
    """Store what identifies the dictionaries."""
    found = hashes(self)
    return {**get(self), **({STATE: found} if found else {})}


@extend("fairseq.tasks:FairseqTask.load_state_dict", "words of a training")
def load_task_state(load: Function, self: Any, state: dict[str, Any]) -> None:
    """Refuse a trained model with other words, before it is built.

    Raises:
        ConfigError: the dictionaries have as many words, but others
    """
    load(self, {name: value for name, value in state.items() if name != STATE})
    if problem := difference(self, state.get(STATE)):
        raise ConfigError(f"{problem}: give the data that were prepared with its dictionaries")


@extend("fairseq.checkpoint_utils:_upgrade_state_dict", "words of a training")
def upgrade_state_dict(upgrade: Function, state: dict[str, Any]) -> Any:
    """Put the hashes where `load_checkpoint` finds them: a trainer gives no task its state."""
    state = upgrade(state)
    saved = (state.get("task_state") or {}).get(STATE)
    if saved is not None:
        state["extra_state"][STATE] = saved
    return state


@extend("fairseq.trainer:Trainer.load_checkpoint", "words of a training")
def load_checkpoint(load: Function, self: Any, filename: str, *args: Any, **kwargs: Any) -> Any:
    """Refuse to go on with other words; where the data begin anew, only warn.

    Raises:
        ConfigError: the dictionaries have as many words, but others
    """
    extra_state = load(self, filename, *args, **kwargs)
    problem = difference(self.task, (extra_state or {}).get(STATE))
    if problem is None:
        return extra_state
    options = self.cfg.checkpoint
    if not options.reset_dataloader and filename != options.finetune_from_model:
        raise ConfigError(
            f"{filename}: {problem}: give the data that were prepared with its dictionaries, or "
            "begin another training with --finetune-from-model and another --save-dir"
        )
    logger.warning(f"{filename}: {problem}, so its embeddings belong to other words")
    return extra_state
