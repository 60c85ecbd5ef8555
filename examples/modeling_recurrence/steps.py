"""How much the attention of BiARN's steps differs.

    python steps.py DATA-BIN SENTENCES NAME=CHECKPOINT ...

Prints for each direction the total variation distance between the attention of the first and the
last step: 0 for the same words, 1 for different words. It is averaged over the sentences, which are
in the model's subwords.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

import fairseq_recur

COUNT = 200
"""Number of sentences; the first ones are used."""


def distances(
    model: "fairseq_recur.Pretrained", sentences: Iterable[str]
) -> list[tuple[float, ...]]:
    """Return the distance of each sentence, forward and backward."""
    found = []
    for sentence in sentences:
        maps, _ = model.look(sentence, target=sentence)
        weights = maps["steps", 0].mean(1)  # directions, steps, source
        apart = (weights[:, 0] - weights[:, -1]).abs().sum(-1) / 2
        found.append(tuple(apart.tolist()))
    return found


def main(data: str, sentences: str, *checkpoints: str) -> None:
    """Print a table with a row per checkpoint."""
    lines = Path(sentences).read_text(encoding="utf-8").splitlines()[:COUNT]
    named: dict[str, str] = dict(text.split("=", 1) for text in checkpoints)
    print("| system | forward | backward |\n| --- | ---: | ---: |")
    for name, checkpoint in named.items():
        model = fairseq_recur.from_pretrained(checkpoint, data=data, bpe="none")
        columns = zip(*distances(model, lines))
        print(f"| {name} | " + " | ".join(f"{sum(c) / len(c):.3f}" for c in columns) + " |")


if __name__ == "__main__":
    if {"-h", "--help"} & {*sys.argv}:
        print(__doc__)
        sys.exit()
    main(*sys.argv[1:])
