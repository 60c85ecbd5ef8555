"""Draw a trained model's attention for one sentence: its attention weights over source and
target, the steps of its recurrence encoder over the source, and the gate of the gated sum.

The target is the model's own translation, or a given one. The matrices have one row per target
token (or source token, or step) and are labelled with the tokens.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.registry import REGISTRIES

from fairseq_recur.cli.translate import search_problems
from fairseq_recur.errors import Problems
from fairseq_recur.files import check_outputs, output_problems, write_text
from fairseq_recur.inspection.capture import KINDS
from fairseq_recur.inspection.panels import Labels, Panel, panels
from fairseq_recur.loading.folder import find_checkpoints
from fairseq_recur.modules.options import flag
from fairseq_recur.plotting.attention import SCALES, draw
from fairseq_recur.plotting.figures import add_output_arguments, check_output, save
from fairseq_recur.pretrained import from_pretrained
from fairseq_recur.pretrained.subwords import NONE

SEARCH: dict[str, Any] = {"beam": 5, "lenpen": 1.0, "max_len_b": 200}
"""Options of the search for the model's own translation, with their defaults."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `plot attention`."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="an encoder-decoder model")
    parser.add_argument(
        "--data",
        metavar="FOLDER",
        help="folder with the dictionaries, dict.SOURCE.txt and dict.TARGET.txt (default: the "
        "checkpoint's folder, or the training's data)",
    )
    parser.add_argument(
        "-s", "--source-lang", metavar="SOURCE", help="(default: that of the training)"
    )
    parser.add_argument(
        "-t", "--target-lang", metavar="TARGET", help="(default: that of the training)"
    )
    parser.add_argument("--source", required=True, metavar="TEXT", help="the sentence")
    parser.add_argument("--target", metavar="TEXT", help="a translation (default: the model's own)")
    add_output_arguments(parser)
    parser.add_argument("--json", metavar="FILE", help="also write the matrices and their labels")
    _add_panel_arguments(parser)
    _add_search_arguments(parser)
    _add_text_arguments(parser)


def _add_panel_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which matrices are drawn, and how."""
    parser.add_argument(
        "--show",
        nargs="+",
        choices=KINDS,
        metavar="NAME",
        help="encoder, decoder: self-attention; steps: BiARN's steps over the source; cross: "
        "attention over the Transformer encoder; fusion: attention over the recurrence encoder; "
        "gate: lambda of the gated sum (default: all that the model has)",
    )
    parser.add_argument(
        "--layer",
        type=_number_or("top", "all"),
        default="top",
        metavar="N",
        help="layer number from 0, all, or top (the top layer of each kind; gates of all layers "
        "share a panel)",
    )
    parser.add_argument(
        "--head",
        type=_number_or("mean", "all"),
        default="mean",
        metavar="N",
        help="head number from 0, all, or mean",
    )
    parser.add_argument(
        "--scale",
        choices=SCALES,
        default="panel",
        help="upper end of the colour scale: each panel's largest value, or 1 to compare panels",
    )


def _add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `SEARCH`, which find the model's own translation."""
    for name, text in (
        ("beam", "beam size"),
        ("lenpen", "length penalty"),
        ("max_len_b", "longest translation in tokens"),
    ):
        kind, value = type(SEARCH[name]), f"(default: {SEARCH[name]}; not with --target)"
        parser.add_argument(flag(name), type=kind, metavar="N", help=f"{text} {value}")


def _add_text_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the tokenizer and the BPE, with the options of each."""
    group = parser.add_argument_group("from text to tokens, as in fairseq-interactive")
    for name in ("tokenizer", "bpe"):
        kinds = [NONE, *REGISTRIES[name]["registry"]]
        text = f"{', '.join(kinds)} (default: as in `translate`)"
        group.add_argument(f"--{name}", choices=kinds, metavar="NAME", help=text)
    for options in encoder_options():
        gen_parser_from_dataclass(group, options, delete_default=True)  # to see what is given


def _number_or(*words: str) -> Any:
    """A type for argparse: a number from 0, or one of the words."""

    def parse(text: str) -> str:
        if text not in words and not text.isdecimal():
            known = " or ".join(("a number from 0", *words))
            raise argparse.ArgumentTypeError(f"{text!r}: expected {known}")
        return text

    return parse


def run(args: argparse.Namespace) -> int:
    """Load the model, get the translation with its attention, draw."""
    problems = Problems("invalid options of plot attention")
    with problems.gathered():
        output = check_output(args.output)
    outputs, options = (args.output, args.json), given_options(args)
    inputs = [args.checkpoint, *(text for text in options.values() if isinstance(text, str))]
    for problem in (*output_problems(*outputs, inputs=inputs), *_problems(args)):
        if problem not in problems.found:
            problems.add(problem)
    problems.raise_all()
    _, (file,) = find_checkpoints(args.checkpoint, None)
    check_outputs(*outputs, inputs=[file])
    model = from_pretrained(
        file, data=args.data, source_lang=args.source_lang,
        target_lang=args.target_lang, tokenizer=args.tokenizer, bpe=args.bpe, device="cpu",
        **options,
    )  # fmt: skip
    search = {**SEARCH, **given_search(args)} if args.target is None else {}
    maps, labels = model.look(args.source, args.target, **search)
    wanted = panels(model.model, maps, labels, args.show, args.layer, args.head)
    save(draw(wanted, args.scale), output)
    if args.json:
        write_json(Path(args.json), args.checkpoint, labels, wanted)
    return 0


def given_search(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options in `SEARCH` that were given."""
    return {name: value for name in SEARCH if (value := getattr(args, name)) is not None}


def _problems(args: argparse.Namespace) -> Iterator[str]:
    """Yield what can be seen to be wrong before the model is loaded."""
    for name in ("source", "target"):
        text = getattr(args, name)
        if text is not None and not text.split():
            yield f"--{name} has no words; give a sentence"
    given = given_search(args)
    yield from search_problems(given)
    for name, value in given.items() if args.target is not None else ():
        yield f"{flag(name)} {value} has no effect with --target; leave it out"


def encoder_options() -> Iterator[FairseqDataclass]:
    """Yield the options of each of fairseq's tokenizers and BPEs."""
    for name in ("tokenizer", "bpe"):
        for options in REGISTRIES[name]["dataclass_registry"].values():
            yield options()


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of tokenizers and BPEs that were given."""
    names = {field.name for options in encoder_options() for field in fields(options)}
    names -= {"_name", "source_lang", "target_lang"}
    given = {name: getattr(args, name, None) for name in sorted(names)}
    not_given = (None, False)  # 0 equals False, and may be given
    return {n: value for n, value in given.items() if not any(value is x for x in not_given)}


def write_json(path: Path, checkpoint: str, labels: Labels, wanted: list[Panel]) -> None:
    """Write the sentence's tokens and the matrices, and print the path."""
    content: dict[str, Any] = {
        "checkpoint": checkpoint,
        "source": labels.source,
        "target": labels.target,
        "panels": [panel.as_json() for panel in wanted],
    }
    write_text(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
    print(path)
