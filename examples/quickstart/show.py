"""Print ten sentences of the test set with their reference and each system's translation.

    python show.py TEST NAME=OUTPUT [NAME=OUTPUT ...]

TEST.en and TEST.de are the source and the reference; OUTPUT is what fairseq-generate
printed. The ten are spread evenly over the test set, not chosen for their quality.
"""

import argparse
import sys
from collections.abc import Sequence

from fairseq_recur.errors import ConfigError
from fairseq_recur.scoring.generation import read_hypotheses, read_lines

SHOWN = 10


def show(test: str, outputs: Sequence[str]) -> None:
    """Read everything, print a block for each sentence.

    Raises:
        ConfigError: an argument or a file that cannot be used
    """
    columns = {"source": read_lines(f"{test}.en")}
    count = len(columns["source"])
    for output in (f"reference={test}.de", *outputs):
        name, _, file = output.partition("=")
        if not file:
            raise ConfigError(f"{output}: expected NAME=OUTPUT")
        columns[name] = read_hypotheses(file, count)
    width = max(map(len, columns))
    for number in range(SHOWN):
        line = (2 * number + 1) * count // (2 * SHOWN)
        print(f"line {line + 1}")
        for name, sentences in columns.items():
            print(f"  {name:<{width}}  {sentences[line]}")


def main(words: Sequence[str] | None = None) -> int:
    """Print the sentences; return 0, or 2 for files that cannot be used."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("test", metavar="TEST")
    parser.add_argument("outputs", metavar="NAME=OUTPUT", nargs="+")
    args = parser.parse_args(words)
    try:
        show(args.test, args.outputs)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
