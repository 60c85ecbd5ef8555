"""The summarization recipes: `python -m recipes.summarization COMMAND`; their scripts call it."""

import argparse
import os
import shlex
import sys
from dataclasses import fields
from pathlib import Path

from fairseq_recur.errors import CheckpointError, ConfigError
from fairseq_recur.experiments.runner import Stopped
from recipes import summary_flags
from recipes.evaluation import Evaluation, decode
from recipes.steps import exclusive
from recipes.summary_check import check_prepared, check_texts
from recipes.summary_options import AUTO, Choices, DataSet, choose, read_data_set
from recipes.summary_prepare import Preparation
from recipes.summary_report import write_results

COMMANDS = {
    "prepare": "download and prepare the data",
    "train": "print the folders of data and training, the batch, the tokens of the longest text, "
    "SETTINGS and START, the flags of fairseq-train",
    "evaluate": "average checkpoints, summarize the test set, score the summaries",
}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; every command accepts all options."""
    parser = argparse.ArgumentParser(
        prog="recipes.summarization", description=__doc__,
        epilog="; ".join(f"{name}: {what}" for name, what in COMMANDS.items()),
    )  # fmt: skip
    parser.add_argument("command", choices=list(COMMANDS))
    parser.add_argument("--recipe", type=Path, required=True, help="folder with data.yaml")
    parser.add_argument("--work-dir", type=Path, required=True, help="output folder")
    parser.add_argument("--mirror", help="folder or address with the archives")
    for choice in fields(Choices):
        default = (os.cpu_count() or 1) if choice.name == "workers" else choice.default
        # As text: `choose` reports all that are wrong together.
        parser.add_argument(f"--{choice.name.replace('_', '-')}", default=default)
    parser.add_argument("--prefix", default=AUTO)
    parser.add_argument("--run", help="name of the training (default: from the settings)")
    parser.add_argument("--baseline", help="training to compare with: its name or folder")
    parser.add_argument(
        "--unprepared", action="store_true",
        help="for train: before the data is prepared, take the published number of documents",
    )  # fmt: skip
    parser.add_argument("--search", default="", help="additional flags of the search")
    return parser


def chosen_for_training(choices: Choices) -> str:
    """Return the variables that decide on a training; train.sh keeps them in its folder."""
    return f"SETTINGS={choices.settings} START={choices.start}"


def check_choices(choices: Choices, folder: Path) -> None:
    """Raise ConfigError if a training had other settings, or another initial model, than these.

    RUN names a training without telling them, and the results say what they were.
    """
    kept, now = folder / "choices", chosen_for_training(choices)
    if kept.is_file() and (trained := kept.read_text().strip()) != now:
        raise ConfigError(
            f"{folder} was trained with {trained}, not with {now}; give evaluate.sh the same "
            f"variables: {trained}"
        )


def run(args: argparse.Namespace, data: DataSet, choices: Choices) -> None:
    """Run the command; output for the scripts is one word per line."""
    work: Path = args.work_dir
    runs = summary_flags.runs(choices, work)
    name = args.run or f"{choices.arch}-{choices.settings}-seed{choices.seed}"
    if not name.startswith(f"{choices.arch}-"):
        raise ConfigError(
            f"RUN={name} does not begin with ARCH={choices.arch}, so its name would be wrong; "
            f"expected RUN={choices.arch}-NAME, or no RUN"
        )
    checkpoint = f"average{args.average}.pt" if args.average else "checkpoint_best.pt"
    words = [str(work / choices.folder / "data-bin"), str(runs / name)]
    if args.command == "prepare":
        models = args.recipe.parent / "models.yaml"
        with exclusive(work):
            Preparation(data, choices, work, models, args.mirror).run()
    elif args.command == "train":
        if not args.unprepared:
            check_prepared(choices, work)
        flags = summary_flags.training(data, choices, work, runs / name, args.prefix)
        batch = map(str, summary_flags.batch(data, choices))
        longest = str(choices.longest)
        print("\n".join([*words, *batch, longest, chosen_for_training(choices), *flags]))
    else:
        check_choices(choices, runs / name)
        check_texts(choices, work)
        search = ["--max-tokens", str(max(16384, choices.longest)), *shlex.split(args.search)]
        flags = [*summary_flags.generation(data, choices), "--gen-subset", "test", *search]
        average = ["--last", str(args.average)] if args.average else []
        baseline = None
        if args.baseline is not None:
            named = runs / args.baseline
            baseline = named if named.is_dir() else Path(args.baseline)
        decode(Evaluation(runs / name, average, checkpoint, [words[0], *flags]), baseline)
        file = write_results(data, choices, work, runs / name, checkpoint, search, baseline)
        print(f"Results: {file}")


def main(words: list[str] | None = None) -> int:
    """Run a command; return 0, 2 for wrong settings and unusable files, 130 after a signal."""
    args = build_parser().parse_args(words)
    try:
        data = read_data_set(args.recipe / "data.yaml")
        wanted = Choices(**{choice.name: getattr(args, choice.name) for choice in fields(Choices)})
        run(args, data, choose(wanted))
    except (ConfigError, CheckpointError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return Stopped("SIGINT").report()
    except Stopped as stopped:
        return stopped.report()
    return 0


if __name__ == "__main__":
    sys.exit(main())
