"""The results of a recipe: summaries as text, their scores, and results.json."""

import json
from pathlib import Path

from fairseq_recur import cli
from fairseq_recur.errors import ConfigError
from fairseq_recur.scoring.generation import read_hypotheses
from recipes.subwords import load_pieces
from recipes.summary_flags import generation
from recipes.summary_options import Choices, DataSet
from recipes.summary_texts import COUNTS, one_line

GENERATED, TEXT, SCORES, COMPARED, RESULTS = (
    "generate-test.txt", "test.txt", "scores.json", "compared.json", "results.json",
)  # fmt: skip
METRICS = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def write_summaries(choices: Choices, model: Path, run: Path, references: Path) -> None:
    """Write the summaries of fairseq-generate as text, one per line, in the order of the set.

    Args:
        choices: the settings, which tell the kind of subwords
        model: folder with the files of the subwords
        run: folder with the output of fairseq-generate, in subwords
        references: file with one line per summary

    Raises:
        ConfigError: a summary is missing
    """
    pieces = load_pieces(choices.pieces, model)
    with open(references, encoding="utf-8", newline="\n") as lines:
        count = sum(1 for _ in lines)
    found = read_hypotheses(run / GENERATED, count)
    with open(run / TEXT, "w", encoding="utf-8", newline="\n") as out:
        out.writelines(one_line(pieces.decode(line.split())) + "\n" for line in found)


def score(references: Path, run: Path, name: str, baseline: Path | None) -> None:
    """Score the summaries, and compare them with those of a baseline.

    Args:
        references: file with one reference per line
        run: folder with test.txt
        name: name of the system
        baseline: folder of another system that is already evaluated, or None

    Raises:
        ConfigError: a file cannot be read
    """
    words = ["--reference", str(references), "--system", f"{name}={run / TEXT}"]
    words += ["--metrics", *METRICS]
    commands = [["score", *words, "--json", str(run / SCORES)]]
    if baseline is not None:
        if not (baseline / TEXT).is_file():
            raise ConfigError(f"BASELINE={baseline}: no {TEXT} there; evaluate that training first")
        other = f"baseline={baseline / TEXT}"
        words += ["--baseline", other, "--test", "both", "--json", str(run / COMPARED)]
        commands.append(["compare", *words])
    for command in commands:
        if cli.main(command):
            raise ConfigError(
                f"{run / TEXT} cannot be scored, see above; correct that and run evaluate.sh again"
            )


def write_results(
    data: DataSet, choices: Choices, work: Path, run: Path, checkpoint: str, extra: list[str],
    baseline: Path | None,
) -> Path:  # fmt: skip
    """Convert the generated summaries to text, score and compare them, write results.json.

    Args:
        data: the data set
        choices: the settings
        work: folder of the recipe
        run: folder of the training, with the output of fairseq-generate
        checkpoint: the evaluated checkpoint
        extra: additional flags of the search
        baseline: see `score`

    Returns:
        the file with the results
    """
    references = work / "text" / "test.target"
    write_summaries(choices, work / choices.folder / "model", run, references)
    score(references, run, choices.arch, baseline)
    (system,) = json.loads((run / SCORES).read_text())["systems"].values()
    report = {
        "data": data.name,
        "documents": json.loads((work / "text" / COUNTS).read_text()),
        "arch": choices.arch,
        "settings": choices.settings,
        "pieces": choices.pieces,
        "start": choices.start,
        "max_source": choices.max_source,
        "max_target": choices.max_target,
        "checkpoint": checkpoint,
        "search": [*generation(data, choices), *extra],
        "scores": system["scores"],
        "baseline": str(baseline) if baseline else None,
        "compared": json.loads((run / COMPARED).read_text()) if baseline else None,
    }
    (run / RESULTS).write_text(json.dumps(report, indent=1) + "\n")
    return run / RESULTS
