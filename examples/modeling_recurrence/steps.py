"""How much the attention of BiARN's steps differs.

    python steps.py DATA-BIN SENTENCES NAME=CHECKPOINT ...

Prints for each direction the total variation distance between the attention of the first and the
last step: 0 for the same words, 1 for different words. It is averaged over the sentences, which are
in the model's subwords.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence

import fairseq_recur
from fairseq_recur.errors import CheckpointError, ConfigError
from fairseq_recur.scoring.generation import read_lines

COUNT = 200
"""Number of sentences; the first ones are used."""


def distances(
    model: "fairseq_recur.Pretrained", sentences: Iterable[str]
) -> list[tuple[float, ...]]:
    """Return the distance of each sentence, forward and backward."""
    found = []
    for sentence in sentences:
        maps, _ = model.look(sentence, target=sentence)
        if ("steps", 0) not in maps:
            raise ConfigError("the model has no steps of a BiARN; name a model that has")
        weights = maps["steps", 0].mean(1)  # directions, steps, source
        apart = (weights[:, 0] - weights[:, -1]).abs().sum(-1) / 2
        found.append(tuple(apart.tolist()))
    return found


def show(data: str, sentences: str, checkpoints: Sequence[str]) -> None:
    """Print a table with a row per checkpoint.

    Raises:
        ConfigError, CheckpointError: an argument or a file that cannot be used
    """
    lines, named = read_lines(sentences)[:COUNT], {}
    for text in checkpoints:
        name, _, named[name] = text.partition("=")
        if not named[name]:
            raise ConfigError(f"{text}: expected NAME=CHECKPOINT")
    rows = ["| system | forward | backward |", "| --- | ---: | ---: |"]
    for name, checkpoint in named.items():
        model = fairseq_recur.from_pretrained(checkpoint, data=data, bpe="none")
        columns = zip(*distances(model, lines))
        rows.append(f"| {name} | " + " | ".join(f"{sum(c) / len(c):.3f}" for c in columns) + " |")
    print("\n".join(rows))


def main(words: Sequence[str] | None = None) -> int:
    """Print the table; return 0, or 2 for files that cannot be used."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", metavar="DATA-BIN")
    parser.add_argument("sentences", metavar="SENTENCES")
    parser.add_argument("checkpoints", metavar="NAME=CHECKPOINT", nargs="+")
    args = parser.parse_args(words)
    try:
        show(args.data, args.sentences, args.checkpoints)
    except (ConfigError, CheckpointError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
