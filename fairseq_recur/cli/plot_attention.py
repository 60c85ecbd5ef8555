"""Draw what a trained model looks at in one sentence.

Its attentions over source and target, the steps of its recurrence encoder over the source, and
the gate of the gated sum, for its own translation of the sentence or for a given one. The
matrices have a row for each target token (or source token, or step), labelled with the tokens.
"""

import argparse
import json
import logging
from argparse import Namespace
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from fairseq.data import Dictionary, encoders
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.registry import REGISTRIES
from fairseq.tasks.translation import TranslationTask
from fairseq.tokenizer import tokenize_line
from torch import Tensor

from fairseq_recur.cli import inputs
from fairseq_recur.cli.attention_figure import SCALES, draw
from fairseq_recur.cli.figures import check_output, save
from fairseq_recur.errors import CheckpointError, ConfigError
from fairseq_recur.inspection.capture import KINDS
from fairseq_recur.inspection.panels import Labels, panels
from fairseq_recur.inspection.passes import look, translate

HELP = "draw what a model attends to in a sentence, the steps of biarn, and its gates"

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `plot attention`."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="of an encoder-decoder")
    parser.add_argument(
        "--data",
        metavar="FOLDER",
        help="with the dictionaries, dict.SOURCE.txt and dict.TARGET.txt (otherwise the "
        "checkpoint's own folder)",
    )
    parser.add_argument("-s", "--source-lang", metavar="SOURCE", help="otherwise as in training")
    parser.add_argument("-t", "--target-lang", metavar="TARGET", help="otherwise as in training")
    parser.add_argument("--source", required=True, metavar="TEXT", help="the sentence")
    parser.add_argument(
        "--target", metavar="TEXT", help="a translation (otherwise the model's own)"
    )
    parser.add_argument(
        "--output", required=True, metavar="FILE", help="figure to write: .png, .pdf or .svg"
    )
    parser.add_argument("--json", metavar="FILE", help="write the matrices and their labels, too")
    parser.add_argument(
        "--show",
        nargs="+",
        choices=KINDS,
        metavar="NAME",
        help="encoder, decoder: their self-attention; steps: of biarn over the source; cross: "
        "attention over the Transformer encoder; fusion: over the recurrence encoder; gate: lambda "
        "of the gated sum (otherwise all that the model has)",
    )
    parser.add_argument(
        "--layer",
        type=_number_or("top", "all"),
        default="top",
        metavar="N",
        help="from 0, or all, or top: the uppermost of each kind; a gate's layers share a panel",
    )
    parser.add_argument(
        "--head", type=_number_or("mean", "all"), default="mean", metavar="N", help="from 0, or all"
    )
    parser.add_argument(
        "--scale",
        choices=SCALES,
        default="one",
        help="colours from 0 to 1, or to the largest value of each panel, for long texts",
    )
    parser.add_argument("--beam", type=int, default=5, metavar="N", help="of the translation")
    parser.add_argument("--lenpen", type=float, default=1.0, metavar="X", help="of the beam search")
    parser.add_argument(
        "--max-len-b", type=int, default=200, metavar="N", help="longest translation in tokens"
    )
    _add_text_options(parser)


def _number_or(*words: str) -> Any:
    """A type for argparse: a number from 0, or one of the words."""

    def parse(text: str) -> str:
        if text not in words and not text.isdecimal():
            known = " or ".join(("a number from 0", *words))
            raise argparse.ArgumentTypeError(f"{text!r}: expected {known}")
        return text

    return parse


def _add_text_options(parser: argparse.ArgumentParser) -> None:
    """The options of fairseq-interactive that make tokens of text."""
    group = parser.add_argument_group("from text to tokens, as in fairseq-interactive")
    for name in ("tokenizer", "bpe"):
        kinds = list(REGISTRIES[name]["registry"])
        group.add_argument(f"--{name}", choices=kinds, metavar="NAME", help=", ".join(kinds))
    for name in ("tokenizer", "bpe"):
        for options in REGISTRIES[name]["dataclass_registry"].values():
            gen_parser_from_dataclass(group, options())


def run(args: argparse.Namespace) -> int:
    """Load the model, translate or take the given translation, look, draw."""
    output = check_output(args.output)
    for name in ("beam", "max_len_b"):
        if getattr(args, name) < 1:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} {getattr(args, name)}: expected at least 1")
    if not abs(args.lenpen) <= 100:
        raise ConfigError(f"--lenpen {args.lenpen}: expected -100 to 100")
    task, model = load(args.checkpoint, args.data, args.source_lang, args.target_lang)
    text = Text(args)
    source, source_words = text.source(task, args.source)
    _check_length("--source", source, model.max_positions()[0])
    eos = task.target_dictionary.eos()
    if args.target is None:
        options = {name: getattr(args, name) for name in ("beam", "lenpen", "max_len_b")}
        target, target_words = translate(task, model, source, **options), []
        logger.info("translation: %s", text.readable(task.target_dictionary.string(target)))
    else:
        target, target_words = text.tokens("--target", args.target, task.target_dictionary)
    _check_length("--target", target, model.max_positions()[1])
    predicted = text.labels(target, task.target_dictionary, target_words)
    labels = Labels(
        source=text.labels(source, task.source_dictionary, source_words),
        read=[task.target_dictionary[eos], *predicted[:-1]],
        target=predicted,
    )
    # A translation is looked at as it was made, a given one as in training.
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
            f"{option} has {len(tokens)} tokens; the model takes at most {longest}; give less text"
        )


def load(
    checkpoint: str, data: str | None, source: str | None, target: str | None
) -> tuple[TranslationTask, Any]:
    """Load a checkpoint's task and model, the model in evaluation mode.

    Args:
        checkpoint: its file
        data: folder with the dictionaries, or None for the checkpoint's own
        source, target: languages, or None for those of the checkpoint

    Raises:
        CheckpointError: a file that cannot be used, or does not fit the dictionaries
        ConfigError: another kind of model, or dictionaries that are not there
    """
    state = checkpoint_utils.load_checkpoint_to_cpu(checkpoint)
    state["args"] = None  # of an old checkpoint; they are in cfg as well
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
    wanted = Namespace(task="translation", dataset_impl=None, **changes)
    try:
        inputs.check_data("plot attention", wanted)
    except ConfigError as error:
        hint = "" if data else ". Name the folder with the dictionaries with --data"
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
            f"{checkpoint}: its weights do not fit, maybe as the dictionaries in {folder} are not "
            f"those that it was trained with (name them with --data): {error}"
        ) from error
    if not hasattr(models[0], "encoder"):
        raise ConfigError(
            f"{checkpoint}: expected an encoder-decoder, found a model without an encoder"
        )
    return task, models[0].eval()


class Text:
    """Between text and tokens.

    Args:
        args: the options of fairseq's tokenizers and BPEs
    """

    def __init__(self, args: argparse.Namespace) -> None:
        try:
            self.tokenizer = encoders.build_tokenizer(args)
            self.bpe = encoders.build_bpe(args)
        except (ImportError, LookupError) as error:
            raise ConfigError(
                f"--tokenizer {args.tokenizer} or --bpe {args.bpe} lacks something: {error}; "
                "give its options, or install it"
            ) from error
        # Its symbols are numbers; those of the others can be read.
        self.decodes_symbols = args.bpe == "gpt2"

    def pieces(self, option: str, text: str) -> list[str]:
        """The words of a text as a dictionary has them; ConfigError if there is none."""
        for encoder in (self.tokenizer, self.bpe):
            text = text if encoder is None else encoder.encode(text)
        words = tokenize_line(text)
        if not words:
            raise ConfigError(f"{option} has no words; give a sentence")
        return words

    def tokens(self, option: str, text: str, dictionary: Dictionary) -> tuple[Tensor, list[str]]:
        """A text as (L,) int64 with the end of the sentence, and its words."""
        words = self.pieces(option, text)
        ids = dictionary.encode_line(" ".join(words), add_if_not_exist=False)
        return ids.long(), words

    def source(self, task: TranslationTask, text: str) -> tuple[Tensor, list[str]]:
        """As `tokens`, as the task hands it to a model: with its prefix, and cut if it cuts."""
        ids, words = self.tokens("--source", text, task.source_dictionary)
        data = task.build_dataset_for_inference([ids], [len(ids)])
        read = data.collater([data[0]])["net_input"]["src_tokens"][0]
        return read, [*(getattr(task, "prefix", None) or []), *words]

    def labels(self, tokens: Tensor, dictionary: Dictionary, words: list[str]) -> list[str]:
        """The tokens' symbols; an unknown one with the word that it stands for, if it is known."""
        symbols = [dictionary[token] for token in tokens.tolist()]
        for index, token in enumerate(tokens.tolist()):
            if token == dictionary.unk() and index < len(words):
                symbols[index] = f"{symbols[index]} {words[index]}"
            elif self.decodes_symbols and symbols[index].isdecimal():
                symbols[index] = self.bpe.decode(symbols[index]).replace(" ", "\u2581")
        return symbols

    def readable(self, line: str) -> str:
        """Tokens as text."""
        for encoder in (self.bpe, self.tokenizer):
            line = line if encoder is None else encoder.decode(line)
        return line


def write_json(path: Path, checkpoint: str, labels: Labels, wanted: list[Any]) -> None:
    """Write the sentence's tokens and the matrices, and print where."""
    content: dict[str, Any] = {
        "checkpoint": checkpoint,
        "source": labels.source,
        "target": labels.target,
        "panels": [panel.as_json() for panel in wanted],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(path)
