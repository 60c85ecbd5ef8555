"""Fill in the tables of pages from the recorded results: python benchmarks/tables.py [--check].

A table is placed between `<!-- table: FILE KIND -->` and `<!-- end -->`. FILE is in results/.
KIND is a key of TABLES, followed by a colon and an argument if the table takes one. A test fails
when a page is out of date.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAGES = [HERE / "README.md", HERE.parent / "docs" / "results.md"]
PLACE = re.compile(r"(<!-- table: (\S+?)(?: (\S+))? -->\n).*?(<!-- end -->)", re.S)
Row = dict[str, Any]
Rows = Iterable[Sequence[str]]


def spread(values: Sequence[float], decimals: int | None = None) -> str:
    """Format the median and the range; by default with three significant digits of the median."""
    size = statistics.median(values)
    if decimals is None:
        decimals = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return "{:.{d}f} ({:.{d}f}–{:.{d}f})".format(size, min(values), max(values), d=decimals)


def cell(row: Row, name: str, decimals: int | None = None, unit: float = 1) -> str:
    """Format a measurement, of one value or of several, in a unit; "-" where there is none."""
    value = row.get(name)
    if value is None:
        return "-"
    return spread(value, decimals) if isinstance(value, list) else f"{value / unit:.{decimals}f}"


def labelled(row: Row, label: str) -> str:
    """Add the error to the label of a row that has one in place of measurements."""
    return f"{label}: {row['error'].replace('|', '/')}" if "error" in row else label


USED = {
    "busy_percent": "GPU busy, %", "access_percent": "memory accessed, %",
    "power_percent": "power, %",
}  # fmt: skip
"""Shares of a GPU; a table has columns of those that were measured."""


def used(rows: Iterable[Row]) -> list[str]:
    """Return the names of the shares of a GPU that any row has."""
    return [name for name in USED if any(name in row for row in rows)]


def ops(result: Row) -> Iterator[list[str]]:
    """Every operation, at each length and in each form."""
    yield ["operation", "length", "form", "forward, ms", "forward and backward, ms", "peak, MiB"]
    for row in result["rows"]:
        for form, found in row["forms"].items():
            yield [
                row["op"].replace("_", " "), str(row["length"]), labelled(found, form),
                cell(found, "forward_ms"), cell(found, "both_ms"), cell(found, "peak_mib", 1),
            ]  # fmt: skip


def training(result: Row) -> Iterator[list[str]]:
    """Speed of whole models."""
    lengths = "source" in result["rows"][0]
    shares = used(result["rows"])
    head = ["system", "parameters, M", "target tokens/s", "of the first", "FLOPs allow",
            "peak, MiB", *(USED[name] for name in shares)]  # fmt: skip
    yield ["source", *head] if lengths else head
    for row in result["rows"]:
        cells = [
            labelled(row, f"`{row['system']}`"), cell(row, "parameters", 1, 1e6),
            cell(row, "tokens_per_second", 0), cell(row, "of_first", 2),
            cell(row, "flops_allow", 2), cell(row, "peak_mib", 0),
            *(cell(row, name, 0) for name in shares),
        ]  # fmt: skip
        yield [str(row["source"]), *cells] if lengths else cells


def streams(result: Row) -> Iterator[list[str]]:
    """Language models and forecasters."""
    yield [
        "work", "system", "parameters, M", "tokens or rows/s", "of the first", "of its host",
        "FLOPs allow", "peak, MiB",
    ]  # fmt: skip
    for row in result["rows"]:
        yield [
            row["work"], labelled(row, f"`{row['system']}`"), cell(row, "parameters", 1, 1e6),
            cell(row, "per_second", 0), cell(row, "of_first", 2), cell(row, "of_host", 2),
            cell(row, "flops_allow", 2), cell(row, "peak_mib", 0),
        ]  # fmt: skip


def commands(result: Row) -> Iterator[list[str]]:
    """Speed and memory of training commands."""
    yield ["size", "command", "target tokens/s", "of the first", "peak, MiB", "system time, s"]
    for row in result["rows"]:
        yield [
            row["size"], f"`{row['command']}`", spread(row["tokens_per_second"], 0),
            spread(row["of_first"], 2), spread(row["peak_mib"], 0), spread(row["system_seconds"]),
        ]  # fmt: skip


def processes(result: Row) -> Iterator[list[str]]:
    """Speed with processes."""
    yield ["system", "processes", "target tokens/s", "of one process"]
    for row in result["rows"]:
        yield [
            f"`{row['system']}`", str(row["processes"]), spread(row["tokens_per_second"], 0),
            spread(row["of_one"], 2),
        ]  # fmt: skip


def decoding(result: Row) -> Iterator[list[str]]:
    """Speed, lengths and quality."""
    last = {"bleu": ("BLEU", 2), "rougeL": ("ROUGE-L", 2), "peak_mib": ("peak, MiB", 0)}
    name = next((name for name in last if name in result["rows"][0]), None)
    title, decimals = last.get(name or "", ("", 0))
    shares = used(result["rows"])
    yield [
        "beam", "source", "system", "sentences/s", "of the first", "tokens out",
        *([title] if name else []), *(USED[name] for name in shares),
    ]  # fmt: skip
    for row in result["rows"]:
        lengths = [f"{row[side]:g}" if side in row else "-" for side in ("source", "output")]
        yield [
            str(row.get("beam", "-")), lengths[0], labelled(row, f"`{row['system']}`"),
            cell(row, "sentences_per_second"), cell(row, "of_first", 2), lengths[1],
            *([cell(row, name, decimals)] if name else []),
            *(cell(row, name, 0) for name in shares),
        ]  # fmt: skip


def forms(result: Row) -> Iterator[list[str]]:
    """Times of the forms of RSA."""
    yield ["side", "length", *result["rows"][0]["ms"]]
    for row in result["rows"]:
        yield [row["side"], str(row["length"]), *(spread(t, 0) for t in row["ms"].values())]


def hosts(result: Row) -> Iterator[list[str]]:
    """Times of an update without and with RSA."""
    yield ["host", "setting", "without, ms", "with RSA, ms", "ratio"]
    for row in result["rows"]:
        times = [spread(found) for found in row["ms"].values()]
        yield [f"`{row['host']}`", row["setting"], *times, spread(row["of_host"], 2)]


def steps(result: Row, op: str) -> Iterator[list[str]]:
    """Times of a decoding step."""
    rows = [row for row in result["rows"] if row["op"] == op]
    first, *others = rows[0]["forms"]
    yield ["length", f"{first}, ms", *(x for o in others for x in (f"{o}, ms", "times as fast"))]
    for row in rows:
        yield [
            str(row["length"]), spread(row["forms"][first]["ms"]),
            *(x for o in others
              for x in (spread(row["forms"][o]["ms"]), spread(row["forms"][o]["faster"], 2))),
        ]  # fmt: skip


def memory(result: Row) -> Iterator[list[str]]:
    """Resident memory."""
    yield ["architecture", "work", "MiB at the end", "KiB for each epoch or sentence"]
    for arch, kinds in result["rows"].items():
        for kind, curve in kinds.items():
            yield [arch, kind, f"{curve['mib'][-1]:.0f}", f"{curve['slope_kib']:+.2f}"]


def profiling(result: Row) -> Iterator[list[str]]:
    """Operations of an update."""
    names = [name for name in result["rows"][0] if name != "op"]
    yield [
        "operation",
        *(f"`{name}`: {what}" for name in names for what in ("ms", "share", "calls")),
    ]
    for row in result["rows"]:
        cells = [
            (f"{row[n]['ms']:.0f}", f"{row[n]['share']:.1%}", str(row[n]["calls"])) for n in names
        ]
        yield [f"`{row['op']}`", *(text for cell in cells for text in cell)]


def kernels(result: Row) -> Iterator[list[str]]:
    """Resources of the Triton kernels, of the launch that needs most."""
    targets = list(dict.fromkeys(row["target"] for row in result["rows"]))
    yield ["kernel", "dtype", "products", "head width", *targets]
    most: dict[tuple[str, ...], dict[str, list[list[int]]]] = {}
    for row in result["rows"]:
        key = (f"`{row['kernel']}`", row["dtype"], row["precision"], str(row["width"]))
        numbers = [row[k] for k in ("registers", "spill_bytes", "shared_bytes")]
        most.setdefault(key, {}).setdefault(row["target"], []).append(numbers)
    for key, found in most.items():
        cells = (" / ".join(str(max(column)) for column in zip(*found.get(t, ()))) for t in targets)
        yield [*key, *(cell or "-" for cell in cells)]


def comparison(result: Row) -> Iterator[list[str]]:
    """Two commits."""
    after = result["commit"] if result["after"] == "." else result["after"]
    yield ["measured", result["before"], after, "ratio"]
    for row in result["rows"]:
        yield [row["what"], spread(row["before"]), spread(row["after"]), spread(row["ratio"], 3)]


TABLES: dict[str, Callable[..., Rows]] = {
    f.__name__: f
    for f in (
        ops,
        training,
        streams,
        commands,
        processes,
        decoding,
        forms,
        hosts,
        steps,
        memory,
        profiling,
        kernels,
        comparison,
    )
}


def markdown(rows: Rows) -> str:
    """Format a table; columns of numbers are right-aligned."""
    head, *body = rows
    numeric = [all(re.match(r"[-+.\d]", row[c]) for row in body) for c in range(len(head))]
    lines = [head, ["---:" if right else "---" for right in numeric], *body]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def table(file: str, kind: str) -> str:
    """Format one table with its command, commit and machine."""
    result = json.loads((HERE / "results" / file).read_text(encoding="utf-8"))
    name, _, argument = kind.partition(":")
    rows = TABLES[name](result, argument) if argument else TABLES[name](result)
    torch = result.get("versions", {}).get("torch") or result["torch"]
    count = result.get("threads_per_process", result["threads"])
    threads = f"{count} thread" + ("" if count == 1 else "s")
    versions = f"Commit {result['commit']}, torch {torch}, {threads}"
    about = f"{versions}; {result['machine']}."
    return f"\n    {result['command']}\n\n{about}\n\n{markdown(rows)}\n"


def filled(text: str) -> str:
    """Return the text of a page with up-to-date tables."""
    return PLACE.sub(lambda m: m[1] + table(m[2], m[3]) + m[4], text)


def main() -> None:
    """Write the pages, or list those that are out of date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if a page is out of date"
    )
    args = parser.parse_args()
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    stale = [page for page, text in texts.items() if filled(text) != text]
    if args.check and stale:
        sys.exit(f"{', '.join(map(str, stale))}: out of date; run python benchmarks/tables.py")
    for page in stale:
        page.write_text(filled(texts[page]), encoding="utf-8")


if __name__ == "__main__":
    main()
