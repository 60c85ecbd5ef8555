"""How much the steps of BiARN differ in what they read.

    python steps.py DATA-BIN SENTENCES NAME=CHECKPOINT ...

For each direction the total variation distance between what the first and the last step attend to,
0 (the same words) to 1 (others), on average over the sentences, which are in the model's subwords.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

import fairseq_recur

COUNT = 200
"""Of the sentences, the first."""


def distances(
    model: "fairseq_recur.Pretrained", sentences: Iterable[str]
) -> list[tuple[float, ...]]:
    """Of each sentence, forward and backward."""
    found = []
    for sentence in sentences:
        maps, _ = model.look(sentence, target=sentence)
        weights = maps["steps", 0].mean(1)  # directions, steps, source
        apart = (weights[:, 0] - weights[:, -1]).abs().sum(-1) / 2
        found.append(tuple(apart.tolist()))
    return found


def main(data: str, sentences: str, *checkpoints: str) -> None:
    """Print a row of a table for each checkpoint."""
    lines = Path(sentences).read_text(encoding="utf-8").splitlines()[:COUNT]
    named: dict[str, str] = dict(text.split("=", 1) for text in checkpoints)
    print("| system | forward | backward |\n| --- | ---: | ---: |")
    for name, checkpoint in named.items():
        model = fairseq_recur.from_pretrained(checkpoint, data=data, bpe="none")
        columns = zip(*distances(model, lines))
        print(f"| {name} | " + " | ".join(f"{sum(c) / len(c):.3f}" for c in columns) + " |")


if __name__ == "__main__":
    main(*sys.argv[1:])
