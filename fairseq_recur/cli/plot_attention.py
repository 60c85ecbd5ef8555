"""Draw a trained model's attention for one sentence: its attention weights over source and
target, the steps of its recurrence encoder over the source, and the gate of the gated sum.

The target is the model's own translation, or a given one. The matrices have one row per target
token (or source token, or step) and are labelled with the tokens.
"""

import argparse
import json
import logging
from argparse import Namespace
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.registry import REGISTRIES
from fairseq.tasks.translation import TranslationTask
from torch import Tensor

from fairseq_recur.cli.preflight import check_data
from fairseq_recur.errors import CheckpointError, ConfigError
from fairseq_recur.files import write_text
from fairseq_recur.inspection.capture import KINDS
from fairseq_recur.inspection.panels import Labels, Panel, panels
from fairseq_recur.inspection.passes import look, translate
from fairseq_recur.inspection.tokens import Tokens
from fairseq_recur.modules.options import flag
from fairseq_recur.plotting.attention import SCALES, draw
from fairseq_recur.plotting.figures import add_output_arguments, check_output, save

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `plot attention`."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="an encoder-decoder model")
    parser.add_argument(
        "--data",
        metavar="FOLDER",
        help="folder with the dictionaries, dict.SOURCE.txt and dict.TARGET.txt (default: the "
        "checkpoint's folder)",
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
    parser.add_argument("--beam", type=int, default=5, metavar="N", help="beam size")
    parser.add_argument("--lenpen", type=float, default=1.0, metavar="X", help="length penalty")
    parser.add_argument(
        "--max-len-b", type=int, default=200, metavar="N", help="longest translation in tokens"
    )
    group = parser.add_argument_group("from text to tokens, as in fairseq-interactive")
    for name in ("tokenizer", "bpe"):
        kinds = list(REGISTRIES[name]["registry"])
        group.add_argument(f"--{name}", choices=kinds, metavar="NAME", help=", ".join(kinds))
    for name in ("tokenizer", "bpe"):
        for options in REGISTRIES[name]["dataclass_registry"].values():
            gen_parser_from_dataclass(group, options())


def _number_or(*words: str) -> Any:
    """A type for argparse: a number from 0, or one of the words."""

    def parse(text: str) -> str:
        if text not in words and not text.isdecimal():
            known = " or ".join(("a number from 0", *words))
            raise argparse.ArgumentTypeError(f"{text!r}: expected {known}")
        return text

    return parse


def run(args: argparse.Namespace) -> int:
    """Load the model, get the translation, capture the attention, draw."""
    output = check_output(args.output)
    for name in ("beam", "max_len_b"):
        if getattr(args, name) < 1:
            raise ConfigError(f"{flag(name)} {getattr(args, name)}: expected at least 1")
    if not abs(args.lenpen) <= 100:
        raise ConfigError(f"--lenpen {args.lenpen}: expected -100 to 100")
    text = Tokens(args)  # before the model, which takes longer to load
    task, model = load(args.checkpoint, args.data, args.source_lang, args.target_lang)
    source, source_words = text.source(task, args.source)
    _check_length("--source", source, model.max_positions()[0])
    target_words: list[str] = []
    if args.target is None:
        options = {name: getattr(args, name) for name in ("beam", "lenpen", "max_len_b")}
        target = translate(task, model, source, **options)
        logger.info("translation: %s", text.decode(task.target_dictionary.string(target)))
    else:
        target, target_words = text.encode("--target", args.target, task.target_dictionary)
    _check_length("--target", target, model.max_positions()[1])
    eos = task.target_dictionary.eos()
    predicted = text.labels(target, task.target_dictionary, target_words)
    labels = Labels(
        source=text.labels(source, task.source_dictionary, source_words),
        read=[task.target_dictionary[eos], *predicted[:-1]],
        target=predicted,
    )
    # The model's own translation is decoded step by step; a given one is teacher-forced.
    maps = look(model, source, target, eos, step_by_step=args.target is None)
    wanted = panels(model, maps, labels, args.show, args.layer, args.head)
    save(draw(wanted, args.scale), output)
    if args.json:
        write_json(Path(args.json), args.checkpoint, labels, wanted)
    return 0


def _check_length(option: str, tokens: Tensor, longest: int) -> None:
    """Raise ConfigError if the model has no positions for so many tokens."""
    if len(tokens) > longest:
        raise ConfigError(
            f"{option} has {len(tokens)} tokens; the model takes at most {longest}; shorten it"
        )


def load(
    checkpoint: str, data: str | None, source: str | None, target: str | None
) -> tuple[TranslationTask, Any]:
    """Load a checkpoint's task and model, the model in evaluation mode.

    The folder of the dictionaries is by default the checkpoint's, the languages those of training.

    Raises:
        CheckpointError: the file is unusable, or does not fit the dictionaries
        ConfigError: the model is of another kind, or dictionaries are missing
    """
    state = checkpoint_utils.load_checkpoint_to_cpu(checkpoint)
    state["args"] = None  # of an old checkpoint; cfg has them too
    saved = state["cfg"]["task"]
    if "source_lang" not in saved:
        raise ConfigError(
            f"{checkpoint}: expected a model that translates, found one of --task {saved['_name']}"
        )
    folder = data or str(Path(checkpoint).parent)
    changes = {
        "data": folder,
        "source_lang": source or saved["source_lang"],
        "target_lang": target or saved["target_lang"],
        "eval_bleu": False,
    }
    try:
        check_data("plot attention", Namespace(task="translation", dataset_impl=None, **changes))
    except ConfigError as error:
        hint = "" if data else ". Give the folder of the dictionaries with --data"
        raise ConfigError(f"{error}{hint}") from error
    for name, value in changes.items():
        if name in saved:
            saved[name] = value
    try:
        models, _, task = checkpoint_utils.load_model_ensemble_and_task([checkpoint], state=state)
    except RuntimeError as error:
        if "size mismatch" not in str(error):
            raise
        raise CheckpointError(
            f"{checkpoint}: its weights do not fit; if the dictionaries in {folder} are not those "
            f"of the training, give the right folder with --data: {error}"
        ) from error
    if not hasattr(models[0], "encoder"):
        raise ConfigError(
            f"{checkpoint}: expected an encoder-decoder, found a model without an encoder"
        )
    return task, models[0].eval()


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
