"""The probing tasks, and their files in SentEval's format.

A line is a sentence: its split (tr, va or te), its label, and its words, with tabs between;
further fields before the last are left out, as SentEval does.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq_recur.errors import ConfigError

SPLITS = {"tr": "train", "va": "valid", "te": "test"}
SHOWN = 8  # labels and files named in an error


class ProbingTask(NamedTuple):
    """A task of SentEval: its name there, in Hao et al. 2019's table 5, and its file."""

    name: str
    short: str
    file: str


TASKS: dict[str, ProbingTask] = {
    task.name: task
    for task in (
        ProbingTask("Length", "SeLen", "sentence_length.txt"),
        ProbingTask("WordContent", "WC", "word_content.txt"),
        ProbingTask("Depth", "TrDep", "tree_depth.txt"),
        ProbingTask("TopConstituents", "ToCo", "top_constituents.txt"),
        ProbingTask("BigramShift", "BShif", "bigram_shift.txt"),
        ProbingTask("Tense", "Tense", "past_present.txt"),
        ProbingTask("SubjNumber", "SubN", "subj_number.txt"),
        ProbingTask("ObjNumber", "ObjN", "obj_number.txt"),
        ProbingTask("OddManOut", "SoMo", "odd_man_out.txt"),
        ProbingTask("CoordinationInversion", "CoIn", "coordination_inversion.txt"),
    )
}
"""In the order of table 5."""


class Examples(NamedTuple):
    """One split: sentences, and for each the number of its label."""

    sentences: list[str]
    labels: list[int]


class TaskData(NamedTuple):
    """A task's labels, in the order of their numbers, and its splits: train, valid, test."""

    task: ProbingTask
    labels: list[str]
    splits: dict[str, Examples]

    def sentences(self) -> list[str]:
        """Return the sentences of all splits, one split after the other."""
        return [s for split in self.splits.values() for s in split.sentences]


def choose_tasks(folder: Path, names: Sequence[str]) -> list[ProbingTask]:
    """Find the tasks of a folder.

    Args:
        folder: with files named as SentEval names them
        names: which tasks; none for all that are there

    Raises:
        ConfigError: no such folder, or a task's file is not in it
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; expected one with SentEval's probing files")
    chosen = [TASKS[name] for name in TASKS if name in names or not names]
    missing = [task.file for task in chosen if not (folder / task.file).is_file()]
    if missing and (names or len(missing) == len(chosen)):
        there = sorted(path.name for path in folder.iterdir())[:SHOWN]
        raise ConfigError(
            f"{folder} has no {', '.join(missing)}; it has {', '.join(there) or 'no files'}. "
            "Make three tasks from any text with `fairseq-recur probe make`"
        )
    return [task for task in chosen if task.file not in missing]


def read_task(folder: Path, task: ProbingTask) -> TaskData:
    """Read a task's file; the labels are those of its training split, sorted.

    Raises:
        ConfigError: a line that is not in SentEval's format, with its number; an empty split;
            a label that is not in the training split, or fewer than two that are
    """
    path = folder / task.file
    found: dict[str, list[tuple[int, str, str]]] = {name: [] for name in SPLITS.values()}
    for number, split, label, sentence in _read_lines(path):
        found[split].append((number, label, sentence))
    empty = [short for short, name in SPLITS.items() if not found[name]]
    if empty:
        raise ConfigError(f"{path}: no line of split {', '.join(empty)}; expected tr, va and te")
    labels = sorted({label for _, label, _ in found["train"]})
    if len(labels) < 2:
        raise ConfigError(f"{path}: all of split tr has the label {labels[0]!r}; expected several")
    numbers = {label: index for index, label in enumerate(labels)}
    for lines in found.values():
        for number, label, _ in lines:
            if label not in numbers:
                known = ", ".join(labels[:SHOWN]) + (" ..." if len(labels) > SHOWN else "")
                raise ConfigError(
                    f"{path}, line {number}: the label {label!r} is not in split tr; "
                    f"expected one of its {len(labels)}: {known}"
                )
    return TaskData(
        task,
        labels,
        {
            name: Examples([s for _, _, s in lines], [numbers[label] for _, label, _ in lines])
            for name, lines in found.items()
        },
    )


def _read_lines(path: Path) -> Iterator[tuple[int, str, str, str]]:
    """Yield the number, split, label and sentence of each line that is not blank."""
    for number, line in read_text(path):
        fields = line.split("\t")
        split, sentence = fields[0], " ".join(fields[-1].split())
        where = f"{path}, line {number}"
        if len(fields) < 3:
            raise ConfigError(
                f"{where}: {len(fields)} field{'s' * (len(fields) > 1)} in {line[:60]!r}; "
                "expected split, label and sentence with tabs between"
            )
        if split not in SPLITS:
            raise ConfigError(f"{where}: split {split[:20]!r}; expected tr, va or te")
        for name, value in (("label", fields[1]), ("sentence", sentence)):
            if not value.strip():
                raise ConfigError(f"{where}: the {name} is empty; fill it in, or remove the line")
        yield number, SPLITS[split], fields[1], sentence


def read_text(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and text of each line that is not blank.

    Raises:
        ConfigError: no such file, or a line that is not UTF-8
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; give a file that is there")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise ConfigError(
                    f"{path}, line {number}: not UTF-8 text ({error}); convert it to UTF-8"
                ) from None
            if text.strip():
                yield number, text


def write_task(path: Path, splits: dict[str, list[tuple[str, str]]]) -> None:
    """Write (label, sentence) pairs of train, valid and test as SentEval does."""
    lines = [
        f"{short}\t{label}\t{sentence}\n"
        for short, name in SPLITS.items()
        for label, sentence in splits[name]
    ]
    path.write_text("".join(lines), encoding="utf-8", newline="\n")
