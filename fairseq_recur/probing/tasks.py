"""The probing tasks, and their files in SentEval's format.

Each line of a file holds a split (tr, va or te), a label and a sentence, separated by tabs. As in
SentEval, any fields between label and sentence are ignored.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq_recur.errors import ConfigError
from fairseq_recur.files import write_text

SPLITS = {"tr": "train", "va": "valid", "te": "test"}
SHOWN = 8  # labels and files named in an error


class ProbingTask(NamedTuple):
    """A SentEval task: its name there, its name in table 5 of Hao et al. 2019, and its file."""

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
    """One split: its sentences, and the number of each sentence's label."""

    sentences: list[str]
    labels: list[int]


class TaskData(NamedTuple):
    """A task: its labels, in the order of their numbers, and the splits train, valid and test."""

    task: ProbingTask
    labels: list[str]
    splits: dict[str, Examples]

    def sentences(self) -> list[str]:
        """Return the sentences of all splits, one split after the other."""
        return [s for split in self.splits.values() for s in split.sentences]


def choose_tasks(folder: Path, names: Sequence[str]) -> list[ProbingTask]:
    """Find the tasks in a folder.

    Args:
        folder: with files named as in SentEval
        names: the tasks; empty for all tasks in the folder

    Raises:
        ConfigError: the folder, or the file of a requested task, is missing
    """
    if not folder.is_dir():
        raise ConfigError(
            f"{folder}: no such folder; expected a folder with SentEval's probing files"
        )
    chosen = [TASKS[name] for name in TASKS if name in names or not names]
    missing = [task.file for task in chosen if not (folder / task.file).is_file()]
    if missing and (names or len(missing) == len(chosen)):
        there = sorted(path.name for path in folder.iterdir())[:SHOWN]
        raise ConfigError(
            f"{folder} has no {', '.join(missing)}; it has {', '.join(there) or 'no files'}. "
            "Create three tasks from any text with `fairseq-recur probe make`"
        )
    return [task for task in chosen if task.file not in missing]


def read_task(folder: Path, task: ProbingTask) -> TaskData:
    """Read the file of a task; its labels are those of the training split, sorted.

    Raises:
        ConfigError: a line is not in SentEval's format, or has a label that the training split
            lacks; a split is empty; the training split has fewer than two labels
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
        raise ConfigError(
            f"{path}: every line of split tr has the label {labels[0]!r}; expected 2 labels or more"
        )
    numbers = {label: index for index, label in enumerate(labels)}
    for number, label, _ in (line for lines in found.values() for line in lines):
        if label not in numbers:
            known = ", ".join(labels[:SHOWN]) + (" ..." if len(labels) > SHOWN else "")
            raise ConfigError(
                f"{path}, line {number}: the label {label!r} does not occur in split tr; "
                f"expected one of its {len(labels)} labels: {known}"
            )
    splits = {
        name: Examples([s for _, _, s in lines], [numbers[label] for _, label, _ in lines])
        for name, lines in found.items()
    }
    return TaskData(task, labels, splits)


def _read_lines(path: Path) -> Iterator[tuple[int, str, str, str]]:
    """Yield the number, split, label and sentence of each non-blank line."""
    for number, line in read_text(path):
        fields = line.split("\t")
        split, sentence = fields[0], " ".join(fields[-1].split())
        where = f"{path}, line {number}"
        if len(fields) < 3:
            raise ConfigError(
                f"{where}: {len(fields)} field{'s' * (len(fields) > 1)} in {line[:60]!r}; "
                "expected split, label and sentence, separated by tabs"
            )
        if split not in SPLITS:
            raise ConfigError(f"{where}: split {split[:20]!r}; expected tr, va or te")
        for name, value in (("label", fields[1]), ("sentence", sentence)):
            if not value.strip():
                raise ConfigError(f"{where}: the {name} is empty; fill it in, or remove the line")
        yield number, SPLITS[split], fields[1], sentence


def read_text(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and text of each non-blank line, without a byte order mark.

    Raises:
        ConfigError: the file is missing, or a line is not UTF-8
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; expected a text file")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise ConfigError(
                    f"{path}, line {number}: not UTF-8 text ({error}); convert the file to UTF-8"
                ) from None
            if text.strip():
                yield number, text


def write_task(path: Path, splits: dict[str, list[tuple[str, str]]]) -> None:
    """Write the (label, sentence) pairs of train, valid and test in SentEval's format."""
    lines = [
        f"{short}\t{label}\t{sentence}\n"
        for short, name in SPLITS.items()
        for label, sentence in splits[name]
    ]
    write_text(path, "".join(lines))
