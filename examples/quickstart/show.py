"""Print ten sentences of the test set with their reference and each system's translation.

    python show.py TEST NAME=OUTPUT [NAME=OUTPUT ...]

TEST.en and TEST.de are the source and the reference; OUTPUT is what fairseq-generate
printed. The ten are spread evenly over the test set, not chosen for their quality.
"""

import sys

from fairseq_recur.scoring.generation import read_hypotheses, read_lines

SHOWN = 10


def main(test: str, outputs: list[str]) -> None:
    """Read everything, print a block for each sentence."""
    columns = {"source": read_lines(f"{test}.en"), "reference": read_lines(f"{test}.de")}
    for output in outputs:
        name, _, file = output.partition("=")
        columns[name] = read_hypotheses(file, len(columns["source"]))
    width = max(map(len, columns))
    count = len(columns["source"])
    for number in range(SHOWN):
        line = (2 * number + 1) * count // (2 * SHOWN)
        print(f"line {line + 1}")
        for name, sentences in columns.items():
            print(f"  {name:<{width}}  {sentences[line]}")


if __name__ == "__main__":
    if {"-h", "--help"} & {*sys.argv}:
        print(__doc__)
        sys.exit()
    main(sys.argv[1], sys.argv[2:])
