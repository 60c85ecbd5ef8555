"""The translation recipes: `python -m recipes.translation COMMAND`; their scripts call it.

The options of `prepare` are environment variables: see recipes/translation_options.py.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from sacrebleu.metrics import BLEU

from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.runner import Stopped
from fairseq_recur.files import write_text
from fairseq_recur.scoring.generation import read_hypotheses, read_lines
from recipes.evaluation import TEXT, Evaluation, decode, score
from recipes.fetch import fetch
from recipes.steps import Made, exclusive, need_space
from recipes.translation_options import Options, Recipe, read_options, read_recipe
from recipes.translation_steps import binary_step, cut_step, model_step, text_step, tokens_step
from recipes.translation_text import detokenise_chinese, tidy, tokeniser

HYPHEN = re.compile(r"(\S)-(?=\S)")


def write_translations(generated: Path, output: Path, language: str) -> None:
    """Write the translations that `generate` printed, in the order of the test set, one per line.

    Raises:
        ConfigError: sentences are missing
    """
    lines = read_hypotheses(generated)
    if language == "zh":
        lines = [detokenise_chinese(line) for line in lines]
    write_text(output, "".join(f"{line}\n" for line in lines))


def extra_scores(
    reference: Path, translations: Path, language: str, lowercase: bool = False
) -> str:
    """Return the BLEU of Moses tokens, without and with compounds split at hyphens.

    Older papers report these. Both sides are tokenised by the same rules, with punctuation
    normalised. BLEU is not smoothed, as in multi-bleu.perl. The scores are only comparable with
    each other.
    """
    tokenise = tokeniser(language, normalise=True, dashes=False, chinese="characters")
    sides = [[tokenise(tidy(line)) for line in read_lines(f)] for f in (translations, reference)]
    if lowercase:
        sides = [[line.lower() for line in lines] for lines in sides]
    split = [[HYPHEN.sub(r"\1 ##AT##-##AT## ", line) for line in lines] for lines in sides]
    name = "characters" if language == "zh" else "Moses's tokens"
    shown = [f"BLEU of {name}: {_bleu(*sides):.2f}"]
    if language != "zh":
        shown.append(f"BLEU of {name}, compounds split: {_bleu(*split):.2f}")
    return "\n".join(f"(not comparable with the scores above) {line}" for line in shown)


def _bleu(translations: list[str], reference: list[str]) -> float:
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    return float(metric.corpus_score(translations, [reference]).score)


MADE = ("text", "tokens", "pieces")  # and data-bin.DIRECTION


def prepare(recipe: Recipe, options: Options) -> None:
    """Prepare a direction of a recipe, from its archives to fairseq's binary data.

    Raises:
        ConfigError: the disk is full, an archive is missing or wrong, or another preparation runs
    """
    work = options.work
    with exclusive(work):
        need_space(work, space(recipe, options), f"preparing {options.direction}")
        corpora = {corpus.name: corpus for corpus in recipe.used(options)}
        archives = {
            name: fetch(corpus.archive, work / "downloads", options.wmt_mirror, "WMT_MIRROR")
            for name, corpus in corpora.items()
        }
        if options.download_only == "1":
            print(f"all archives of {options.direction} are downloaded", flush=True)
            return
        text = {name: text_step(work, c, archives[name]) for name, c in corpora.items()}
        languages = recipe.languages
        train = [text[corpus.name] for corpus in recipe.chosen(options.corpora)]
        tokens = [tokens_step(work, made, languages, options) for made in train]
        model = model_step(work, tokens, languages, options)
        pieces = {"train": cut_step(work, "train", tokens, model, languages, options)}
        for name in ("valid", "test"):
            part = f"{name}.{options.direction}"
            pieces[name] = cut_step(work, part, [text[part]], model, languages, options)
        data = binary_step(work, pieces, options)
        write_settings(options, model, data)
    print(f"{work / f'data-bin.{options.direction}'} is ready", flush=True)


def space(recipe: Recipe, options: Options) -> int:
    """Return the number of bytes that a preparation still has to write."""
    downloads, mirror = options.work / "downloads", options.wmt_mirror
    local = downloads if mirror is None or "://" in mirror else Path(mirror)
    sizes: dict[str, int] = {}
    missing = 0
    for corpus in recipe.used(options):
        archive = corpus.archive
        file = local / archive.name
        there = file.stat().st_size if file.is_file() else None
        sizes[archive.name] = (archive.size or 0) if there is None else there
        if there is None and local == downloads:
            missing += sizes[archive.name]
    names = {corpus.archive.name for corpus in recipe.chosen(options.corpora)}
    train = sum(sizes[name] for name in names)
    if options.sample:
        train = min(train, options.sample * 1000)  # a pair has less than a kilobyte
    folders = [options.work / name for name in (*MADE, f"data-bin.{options.direction}")]
    made = sum(p.stat().st_size for f in folders for p in f.rglob("*") if p.is_file())
    return missing + max(0, int(recipe.disk * train) - made)


def write_settings(options: Options, model: Made, data: Made) -> None:
    """Write `prepared.SRC-TGT.sh`, which the scripts of training and evaluation source.

    The keys identify the data, which another preparation may replace.
    """
    if options.tokenizer == "moses":
        decoding = f'--bpe subword_nmt --bpe-codes "$WORK/pieces/model/codes.{options.target}"'
        decoding += f" --tokenizer moses --source-lang {options.source}"
        decoding += f" --target-lang {options.target}"
    else:
        decoding = "--bpe sentencepiece"
        decoding += f' --sentencepiece-model "$WORK/pieces/model/model.{options.target}"'
    file = options.work / f"prepared.{options.direction}.sh"
    partial = file.with_suffix(".partial")
    partial.write_text(
        f"# Written by prepare.sh.\nMODEL_KEY={model.key}\nDATA_KEY={data.key}\n"
        f"DICTIONARY={options.dictionary}\nLOWERCASE={options.lowercase}\n"
        f"DECODING=({decoding})\n"
    )
    partial.replace(file)


SEARCH = (
    "--gen-subset test --beam 4 --lenpen 0.6 --max-len-a 1 --max-len-b 50 --max-tokens 4000"
).split()


def evaluate(args: argparse.Namespace) -> None:
    """Average and translate, write test.txt and extras.txt, print and store the scores.

    Raises:
        ConfigError: nothing is trained, a step failed, or the baseline is not evaluated
    """
    folder, (source, target) = args.folder, args.languages
    generate = [args.data, "-s", source, "-t", target, *SEARCH, *args.flags]
    average = ["--last", args.average, "--updates"]
    generated = decode(Evaluation(folder, average, "average.pt", generate), args.baseline)
    write_translations(generated, folder / TEXT, target)
    tokenize = "zh" if target == "zh" else "13a"
    metrics = ["--metrics", "bleu", "chrf", "--tokenize", tokenize]
    metrics += ["--lowercase"] if args.lowercase else []
    score(folder, folder.parent.name, args.reference, metrics, args.baseline)
    extras = extra_scores(args.reference, folder / TEXT, target, args.lowercase)
    write_text(folder / "extras.txt", f"{extras}\n")
    print(extras)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 2 after an error message, 130 after a signal."""
    parser = argparse.ArgumentParser("recipes.translation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("prepare", help="from archives to binary data")
    one.add_argument("recipe", type=Path)
    two = commands.add_parser("evaluate", help="average, translate, score, compare")
    two.add_argument("folder", type=Path, help="folder of the training")
    two.add_argument("data", help="fairseq's binary data")
    two.add_argument("--languages", nargs=2, required=True)
    two.add_argument("--reference", type=Path, required=True)
    two.add_argument("--average", required=True, help="number of checkpoints")
    two.add_argument("--baseline", type=Path, help="folder of another training")
    two.add_argument("--lowercase", action="store_true", help="score without regard to case")
    two.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="flags of generate")
    arguments = parser.parse_args(words)
    try:
        if arguments.command == "prepare":
            recipe = read_recipe(arguments.recipe)
            prepare(recipe, read_options(recipe, os.environ))
        else:
            evaluate(arguments)
    except (ConfigError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return Stopped("SIGINT").report()
    except Stopped as stopped:
        return stopped.report()
    return 0


if __name__ == "__main__":
    sys.exit(main())
