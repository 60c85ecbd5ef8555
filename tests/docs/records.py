"""Finding the figures of a page in the records of its results, by what the page calls them.

Every number of a record stands under labels: the keys that lead to it, and what its neighbours say,
such as ``"system": "birnn"`` or ``"seed": 2``. In a table, the names of the row and the heading of
the column choose the labels. In a paragraph, the systems that it mentions do.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from functools import cached_property
from itertools import takewhile
from statistics import mean, median
from typing import Any, NamedTuple

# Code, targets of links, and words with digits in them, such as R-1 and Multi30k.
NO_FIGURES = re.compile(
    r"```.*?```|`[^`\n]*`|\]\([^)]*\)|\b[A-Za-z_][\w.*:/-]*\d[\w.-]*|^\|.*\n(?=\|[ :|-]*---)",
    re.S | re.M,
)
FIGURE = re.compile(r"(?<![\w.,])([-+]?)(\d+(?:,\d{3})*)(\.\d+)?(?![\w]|\.\d)(?=( ?%)?)")
SMALL = 20
"""Whole numbers up to this one are not looked up: they count systems, seeds and the like."""

NO_RESULTS = {"versions", "signatures", "decimals", "draws_seed", "samples", "interval", "commit"}
"""Keys of what describes a measurement and is not its result."""

RULE = re.compile(r"\|[ :|-]*---")
"""The line below the headings of a table."""


class Figure(NamedTuple):
    """A figure of a page: as written, its sign and value, whether a percentage, whether a p."""

    written: str
    sign: str
    value: Decimal
    percent: bool
    is_p: bool


class Number(NamedTuple):
    """A number of a record and what it stands under."""

    value: float
    labels: frozenset[str]


def figures(text: str) -> Iterator[Figure]:
    """The figures of a text that are neither code nor a small count."""
    text = NO_FIGURES.sub(" ", text)
    for found in FIGURE.finditer(text):
        sign, whole, decimals, percent = found.groups()
        value = Decimal(whole.replace(",", "") + (decimals or ""))
        if decimals or value > SMALL:
            is_p = bool(re.search(r"\bp(\s+is)?(\s+at\s+most)?\s+$", text[: found.start()]))
            yield Figure(found[0].lstrip("+-"), sign, value, bool(percent), is_p)


def normal(text: object) -> str:
    """A name as pages and keys share it: ``rsa_gate_-1``, ``RSA gate -1`` and ``1,000``."""
    text = re.sub(r"(?<=\d),(?=\d{3})|\*\*", "", str(text).lower())
    words = re.sub(r"[^\w.*]|_", " ", text).split()
    return " ".join(filter(None, (word.strip(".") for word in words)))


def numbers(record: Any, labels: frozenset[str] = frozenset()) -> Iterator[Number]:
    """All numbers of a record, also those that are a whole string.

    Of measurements that were repeated also the median and the mean.
    """
    if isinstance(record, dict):
        yield from numbers_of_dict(record, labels)
    elif isinstance(record, list):
        plain = [x for x in record if isinstance(x, (int, float))]
        # A point of a curve, such as an update and its loss, stands under the first of the two.
        point = {str(record[0])} if len(record) == 2 and isinstance(record[0], int) else set()
        for value in record:
            yield from numbers(value, labels | point)
        if plain and len(plain) == len(record):
            yield Number(median(plain), labels)
            yield Number(mean(plain), labels)
    elif isinstance(record, str) and re.fullmatch(r"-?\d+(,\d{3})*(\.\d+)?", record):
        yield Number(float(record.replace(",", "")), labels)
    elif isinstance(record, (int, float)) and not isinstance(record, bool):
        yield Number(float(record), labels)


def numbers_of_dict(record: dict[str, Any], labels: frozenset[str]) -> Iterator[Number]:
    """The numbers of a dictionary, under its keys and under what stands beside them."""
    beside = set()
    for name, value in record.items():
        # What the whole record says of itself, and what was compared with, tell nothing apart.
        if not labels or "flags" in labels or name in ("baseline", "start_from"):
            continue
        if isinstance(value, (str, int, float)):
            beside.add(normal(f"{name} {value}"))
        if isinstance(value, str):
            beside.add(normal(value))
    for name, value in record.items():
        if record.keys() == {"updates", "values"}:
            yield from (
                numbers_of_curve(record["updates"], value, labels) if name == "values" else ()
            )
        elif name not in NO_RESULTS:
            yield from numbers(value, labels | beside | {normal(name)})


def numbers_of_curve(
    updates: list[int], values: list[float], labels: frozenset[str]
) -> Iterator[Number]:
    """The values, and the first update after which it was below 1."""
    for update, value in zip(updates, values):
        yield Number(value, labels | {str(update)})
    for update in [update for update, value in zip(updates, values) if value < 1][:1]:
        yield Number(float(update), labels | {"below 1"})


def names_of_systems(record: Any) -> Iterator[str]:
    if isinstance(record, dict):
        for name, value in record.items():
            if name in ("system", "arch") and isinstance(value, str):
                yield value
            elif name in ("systems", "parameters") and isinstance(value, dict):
                yield from value
            yield from names_of_systems(value)
    elif isinstance(record, list):
        for value in record:
            yield from names_of_systems(value)


def commands(record: Any, key: str = "") -> Iterator[str]:
    """The commands of a record, and the settings of their environment."""
    if isinstance(record, dict):
        for name, value in record.items():
            yield from commands(value, name)
    elif isinstance(record, list):
        for value in record:
            yield from commands(value, key)
    elif isinstance(record, str) and (key in ("command", "commands", "set") or key.isupper()):
        yield record


def rounded(value: float, like: Decimal) -> set[Decimal]:
    """The value with the decimals of another; of a tie both neighbours."""
    places = -int(like.as_tuple().exponent)
    half_up = Decimal(repr(value)).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
    return {half_up, Decimal(f"{value:.{places}f}")}


@dataclass
class Records:
    """The numbers of some records, and what a page calls their labels.

    Attributes:
        contents: of the files
        names: what the page calls labels; of alternatives separated by ``|`` a number must have
            one, and of what is separated by ``&`` each
        unit: of the page's figures
    """

    contents: list[Any]
    names: dict[str, str]
    unit: float = 1.0

    def __post_init__(self) -> None:
        self.names = {normal(name): labels for name, labels in self.names.items()}

    @cached_property
    def numbers(self) -> list[Number]:
        return [number for content in self.contents for number in numbers(content)]

    @cached_property
    def labels(self) -> Counter[str]:
        """The labels and how many numbers stand under each."""
        return Counter(label for number in self.numbers for label in number.labels)

    @cached_property
    def systems(self) -> frozenset[str]:
        found = {normal(name) for content in self.contents for name in names_of_systems(content)}
        return frozenset(found)

    @cached_property
    def settings(self) -> set[Decimal]:
        """The numbers that are a whole argument of a command or in the name of a system."""
        texts = [*(text for content in self.contents for text in commands(content)), *self.systems]
        words = {word for text in texts for word in re.split(r"[\s='\"]+", text)}
        return {Decimal(word) for word in words if re.fullmatch(r"\d+(\.\d+)?", word)}

    def called(self, text: str) -> list[set[str]]:
        """The labels that a page's name stands for: sets of which a number must have a label."""
        name = normal(text)
        wanted = [
            {label for each in part.split("|") if (label := normal(each)) in self.labels}
            for part in self.names.get(name, name).split("&")
        ]
        return [labels for labels in wanted if labels]

    def called_by_cell(self, cell: str, heading: str) -> list[set[str]]:
        """The labels that a cell stands for: as a whole, with its heading, or by its parts."""
        cell = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", cell)
        if re.fullmatch(r"[-+\d., ]*", cell):
            return self.called(f"{heading} {cell}") if cell else []
        if normal(cell) in self.names:
            return self.called(cell)
        parts = re.split(r", | \(|: ", cell)
        return self.called(cell) or [labels for part in parts for labels in self.called(part)]

    def called_by_row(self, row: list[str], headings: list[str]) -> tuple[list[set[str]], int]:
        """The labels that the first cells of a row name, and the number of these cells."""
        for count in range(len(row), 1, -1):
            if labels := self.called(" ".join(row[:count])):
                return labels, count
        found = list(takewhile(bool, map(self.called_by_cell, row, headings)))
        return [labels for each in found for labels in each], len(found)

    def called_by_column(self, headings: list[str]) -> Iterator[list[set[str]]]:
        """The labels that each heading names; one that is only a seed is like the one before."""
        words = ""
        for heading in headings:
            if not re.fullmatch(r"seed \d+", heading):
                words = heading.partition(",")[0]
            parts = {words, heading, *re.split(", |: ", heading)}
            parts = {heading} if normal(heading) in self.names else parts
            yield [labels for part in parts for labels in self.called(part)]

    def under(self, wanted: Iterable[set[str]]) -> list[Number]:
        """The numbers with a label of each set."""
        sets = list(wanted)
        return [n for n in self.numbers if all(n.labels & labels for labels in sets)]

    def found(self, figure: Figure, among: list[Number], signed: bool) -> list[Number]:
        """The numbers that are the figure when they are rounded to its decimals."""
        scales = {1.0, 1 / self.unit, 100.0 if figure.percent else 1.0}
        near = 10.0 ** int(figure.value.as_tuple().exponent)
        return [
            number
            for number in among
            if not (figure.sign == "-" and number.value >= 0)
            and not ((figure.sign == "+" or signed and not figure.sign) and number.value < 0)
            and any(
                abs(size - float(figure.value)) <= near
                and figure.value in rounded(size, figure.value)
                for size in (abs(number.value) * scale for scale in scales)
            )
        ]


def missing(text: str, records: Records) -> list[str]:
    """The figures of a text that its records do not have under the names of the text."""
    wrong: list[str] = []
    prose: list[str] = []
    tables: list[dict[str, bool]] = []  # whether the first cells of their rows are names
    lines = text.splitlines()
    for line, after in zip(lines, [*lines[1:], ""]):
        if not line.startswith("|"):
            prose.append(line)
        elif RULE.match(after):
            headings, above = cells(line), ""
            tables.append({})
            prose.append("")
        elif not RULE.match(line):
            row = cells(line)
            above = row[0] = row[0] or above
            if any(True for cell in row[1:] for _ in figures(cell)):
                tables[-1][row[0]] = records.called_by_row(row, headings)[1] > 0
            wrong += missing_in_row(row, headings, records)
    for table in tables:
        if any(table.values()):
            wrong += [f"{name}, a name" for name, is_known in table.items() if not is_known]
    for block in re.split(r"\n\s*\n|\n(?=- )", "\n".join(prose)):
        wrong += missing_in_block(block, records)
    return wrong


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().removeprefix("|").removesuffix("|").split("|")]


def missing_in_row(row: list[str], headings: list[str], records: Records) -> Iterator[str]:
    """The figures that are not under the names of the row and the heading of their column.

    Where the row has no names that are labels, some label must have all its figures. It must not
    be a label of more than a third of all numbers.
    """
    names, count = records.called_by_row(row, headings)
    of_row, found = records.under(names), []
    for place, (cell, wanted) in enumerate(zip(row, records.called_by_column(headings))):
        numbers = of_row
        for labels in wanted:  # such as a seed, unless nothing in the row has any
            numbers = [n for n in numbers if n.labels & labels] or numbers
        for figure in figures(cell) if place >= count else ():
            is_name = place == 0 or not wanted
            there = records.found(figure, numbers, signed=True)
            if is_name and figure.value in records.settings:
                continue
            if not there:
                yield f"{figure.written} in {row}"
            elif place > 0:
                found.append({label for number in there for label in number.labels})
    if found and not names:
        common = set.intersection(*found)
        if not any(records.labels[label] <= len(records.numbers) / 3 for label in common):
            yield f"nothing has all figures of {row}"


def missing_in_block(block: str, records: Records) -> Iterator[str]:
    """The figures that are not of a system that the text mentions, nor of none."""
    text = f" {normal(block)} "
    words = set(text.split())
    said = {
        name
        for name in records.systems
        if any(word in words for word in name.split() if word.isalpha())
    }
    for name in records.names:
        if f" {name} " in text:
            said |= set().union(*records.called(name))
    systems = records.systems if said else frozenset()
    numbers = [n for n in records.numbers if n.labels & said or not n.labels & systems]
    of_p = [n for n in numbers if {"p", "corrected"} & set(" ".join(n.labels).split())]
    for figure in figures(block):
        among = of_p if figure.is_p and of_p else numbers
        if figure.value not in records.settings and not records.found(figure, among, False):
            yield figure.written
