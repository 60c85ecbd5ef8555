"""The results of a recipe: summaries as text, their scores, and results.json."""

import json
from pathlib import Path

from fairseq_recur.files import write_json, write_text
from fairseq_recur.scoring.generation import read_hypotheses, read_lines
from recipes.evaluation import COMPARED, GENERATED, SCORES, TEXT, score
from recipes.subwords import load_pieces
from recipes.summary_extracts import EXTRACTS, metrics_for
from recipes.summary_flags import generation
from recipes.summary_options import Choices, DataSet
from recipes.summary_texts import COUNTS, one_line

RESULTS = "results.json"


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
    write_text(run / TEXT, "".join(one_line(pieces.decode(x.split())) + "\n" for x in found))


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
        baseline: folder of another training that is already evaluated, or None

    Returns:
        the file with the results
    """
    references = work / "text" / "test.target"
    write_summaries(choices, work / choices.folder / "model", run, references)
    metrics = metrics_for(read_lines(references))
    score(run, choices.arch, references, ("--metrics", *metrics), baseline)
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
        "extracts": json.loads((work / EXTRACTS / SCORES).read_text()),
        "baseline": str(baseline) if baseline else None,
        "compared": json.loads((run / COMPARED).read_text()) if baseline else None,
    }
    write_json(run / RESULTS, report)
    return run / RESULTS
