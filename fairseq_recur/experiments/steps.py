"""The steps of a run: commands in one folder, and which of them are done."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from os.path import join, realpath
from pathlib import Path
from typing import Any, Optional

from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.inputs import is_same
from fairseq_recur.experiments.settings import Flags
from fairseq_recur.files import inside, read_json, write_json

LOCK = "lock"
"""File that is locked while a process works in its folder."""

STATE = "state.json"
"""File of what is known of the steps of a run."""


class Run(ABC):
    """Steps in a folder, each a command of ``fairseq-recur``; the runner does the remaining ones.

    Subclasses provide `name`, `folder`, `steps`, `argv` and `train_flags`.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the run in messages."""

    @property
    @abstractmethod
    def folder(self) -> Path:
        """Folder of the run's files."""

    @property
    def own(self) -> str:
        """The end of the folder's path that stays if the folder of all runs is moved, or ""."""
        return ""

    @property
    def root(self) -> str:
        """The folder of all runs, in which relative paths of commands begin; "" without `own`."""
        return str(self.folder)[: -len(self.own)] if self.own else ""

    @property
    @abstractmethod
    def steps(self) -> Sequence[str]:
        """Names of the steps, in order: ``train``, if it is one, is the first."""

    @abstractmethod
    def argv(self, step: str) -> list[str]:
        """Return the arguments of a step's command."""

    @abstractmethod
    def train_flags(self) -> Flags:
        """Return the flags of the training; ``max-update`` and ``max-epoch`` tell its length."""

    @property
    def starts_from(self) -> Optional["Run"]:
        """The run whose model initialises this one, or None."""
        return None

    def key(self, step: str) -> list[str]:
        """Return what a step depends on besides earlier steps; a change repeats the step."""
        return self.relative(self.argv(step))

    def relative(self, words: Sequence[str]) -> list[str]:
        """Return a command of this run in which paths are relative to the folder of all runs."""
        return relative(words, self.own) if self.own else list(words)

    def comparable(self, words: Sequence[str]) -> list[str]:
        """Return those words of a command that may not change, wherever the run's folder is."""
        return self.relative(words)

    def same(self, before: Sequence[str], now: Sequence[str]) -> bool:
        """Return whether two commands of this run, or keys of a step, have the same result."""
        return same_command(self.comparable(before), self.comparable(now), self.root)

    def reads(self) -> dict[str, str]:
        """Describe what the training reads besides its settings; the runner stores it."""
        return {}

    def prepare(self) -> None:
        """Prepare the folder; called before a step, while the folder is locked."""
        return

    def complete(self, step: str) -> None:
        """Finish a step after its command has succeeded.

        Raises:
            ConfigError: its output cannot be used, so the step has failed
        """
        return

    def made(self, step: str) -> dict[str, Any]:
        """Return what is stored of a step that has succeeded, besides how it was done."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return what is known of the steps: {"train": {"key": [...], "seconds": 12.3, ...}}.

        Raises:
            ConfigError: the file is damaged
        """
        return self.state_in(self.folder)

    def state_in(self, folder: Path) -> dict[str, Any]:
        """Return what is known of the steps of this run, or of an earlier one, in a folder.

        Raises:
            ConfigError: the file is damaged
        """
        return read_steps(folder / STATE)

    def write_state(self, state: dict[str, Any]) -> None:
        """Store what is known of the steps; the file is never half-written."""
        write_json(self.folder / STATE, state)

    def remember(self) -> None:
        """Store what a training that has begun reads, if an earlier version stored less."""
        state = self.state()
        before = state.get("train", {}).get("read", {})
        now = self.reads() if "train" in state else {}
        known = {**before, **{n: x for n, x in now.items() if is_same(before.get(n, x), x)}}
        if known != before:
            state["train"]["read"] = known
            self.write_state(state)

    def done(self, step: str) -> bool:
        """Return whether a step was done with its present settings."""
        found = self.state().get(step, {})
        return bool(found.get("done")) and self.same(found.get("key", []), self.key(step))

    def finished(self) -> bool:
        """Return whether all steps are done."""
        return all(map(self.done, self.steps))

    def trained(self) -> bool:
        """Return whether the run has its final model: all steps before ``generate`` are done."""
        return all(self.done(step) for step in self.steps if step != "generate")


def read_steps(path: Path) -> dict[str, Any]:
    """Return what a file says of the steps of a run, see `Run.state`; nothing without a file.

    Raises:
        ConfigError: the file is damaged
    """
    return read_parts(path, lambda of: all(isinstance(step, dict) for step in of.values())) or {}


def read_parts(path: Path, whole: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
    """Read a JSON file with named parts; None if there is no file.

    Args:
        path: of a file that `write_json` wrote
        whole: tells whether the parts are those that were written

    Raises:
        ConfigError: the file is damaged
    """
    found = read_json(path)
    if found is None or (isinstance(found, dict) and whole(found)):
        return found
    raise ConfigError(
        f"{path} is damaged, its JSON is not that of an experiment: restore the file, or remove it "
        "and give the command again that wrote it"
    )


def read_record(path: Path) -> dict[str, Any] | None:
    """Read the settings, runs and cells of a program that computes a table by itself.

    Raises:
        ConfigError: the file is damaged
    """
    kinds = {"settings": dict, "runs": list, "cells": list}
    return read_parts(path, lambda of: all(isinstance(of.get(n), kinds[n]) for n in kinds))


def same_command(before: Sequence[str], now: Sequence[str], root: str) -> bool:
    """Return whether two commands are equal, or differ only in how they name the same files.

    Args:
        before, now: the words
        root: folder in which relative paths begin
    """

    def same(one: str, other: str) -> bool:
        return one == other or realpath(join(root, one)) == realpath(join(root, other))

    return len(before) == len(now) and all(map(same, before, now))


def relative(words: Sequence[str], own: str) -> list[str]:
    """Write the paths of a command relative to the folder of all runs, wherever that was.

    Args:
        words: the last one that names the run's folder, or a file in it, tells where that was;
            without one, nothing changes
        own: the run's folder in that of all runs, such as SYSTEM/seed1
    """
    place = re.compile(rf"((?:.*/)?){re.escape(own)}(?:/.*)?")
    roots = [found[1] for found in map(place.fullmatch, words) if found]
    # In a command that was stored, paths may be relative already.
    return [inside(word, roots[-1]) for word in words] if roots and roots[-1] else list(words)
