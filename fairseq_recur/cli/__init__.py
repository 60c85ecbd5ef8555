"""The command ``fairseq-recur``: one module per command, imported when the command runs.

Importing fairseq takes seconds, so ``path``, ``--help`` and scoring do without it.
"""

import argparse
import codecs
import contextlib
import difflib
import importlib
import io
import itertools
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NoReturn, TextIO

import fairseq_recur
from fairseq_recur.cli import fairseq_commands
from fairseq_recur.errors import INPUT_ERRORS, INTERRUPTED, REMEDIES, ConfigError, ProcessError
from fairseq_recur.version import __version__

PROG = "fairseq-recur"
TRACEBACK = "FAIRSEQ_RECUR_TRACEBACK"


@dataclass(frozen=True)
class Command:
    """A command of this package.

    Attributes:
        module: in this folder, with `add_arguments(parser)` and `run(args) -> int`; its
            docstring is the command's description
        help: one line for the list of commands
        needs_fairseq: whether everything must be registered with fairseq before the import
        builds_models: whether parts from elsewhere may be needed, which --user-dir names
    """

    module: str
    help: str
    needs_fairseq: bool = True
    builds_models: bool = False

    def load(self) -> ModuleType:
        """Import the module."""
        if self.needs_fairseq:
            fairseq_recur.register()
        return importlib.import_module(f"fairseq_recur.cli.{self.module}")


OWN_COMMANDS: dict[str, Command] = {
    "check": Command(
        "check", "show versions, registered names, known problems and remedies", needs_fairseq=False
    ),
    "path": Command("path", "print the folder for fairseq's --user-dir", needs_fairseq=False),
    "translate": Command("translate", "translate raw text, line by line", builds_models=True),
    "summarize": Command("translate", "summarize raw texts, one per line", builds_models=True),
    "average": Command("average", "average the parameters of checkpoints"),
    "convert": Command(
        "convert", "convert T5, CodeT5 and BART from Hugging Face's format and back"
    ),
    "export": Command(
        "export", "export recurrent models to Hugging Face's library", builds_models=True
    ),
    "score": Command(
        "score",
        "score translations with BLEU, chrF, TER and COMET, summaries with ROUGE",
        needs_fairseq=False,
    ),
    "compare": Command(
        "compare", "test whether systems differ significantly from a baseline", needs_fairseq=False
    ),
    "plot curves": Command(
        "plot_curves", "draw learning curves from training logs", needs_fairseq=False
    ),
    "plot checkpoint": Command(
        "plot_checkpoint", "draw the gates and kernels of RSA checkpoints", builds_models=True
    ),
    "plot attention": Command(
        "plot_attention",
        "draw attention weights, BiARN's steps and gates for one sentence",
        builds_models=True,
    ),
    "plot forecast": Command(
        "plot_forecast", "draw forecasts of a time series", needs_fairseq=False
    ),
    "plot recurrence": Command(
        "plot_recurrence", "show which dilations of RSA fit a series or a text"
    ),
    "forecast": Command(
        "forecast", "forecast a time series and write a CSV file", builds_models=True
    ),
    "probe make": Command("probe_make", "build probing tasks from a text"),
    "probe run": Command(
        "probe_run", "train classifiers on the frozen encoders of checkpoints", builds_models=True
    ),
    "experiment": Command("experiment", "train, decode and score the systems of a table"),
    "plan": Command(
        "plan", "predict a training's memory, batch size and duration", builds_models=True
    ),
}
GROUPS = {
    "plot": "draw learning curves, checkpoints, attention weights, forecasts or recurrences",
    "probe": "probe the sentence representations of frozen encoders",
}
"""The first words of the commands that have two."""

PRINTING = {"check", "compare", "experiment new", "experiment status", "path", "plan", "score"}
"""Commands after whose output nothing is left to do: a reader such as `head` may end early."""

PRINTS = {"--dry-run", "--help", "--list", "-h"}
"""Options with which each command does no more than that."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean ...?" if a known word comes close to *word*, else nothing.

    One with the same parts in another order, such as rsa_transformer for transformer_rsa, is the
    closest.
    """
    words = list(known)
    same = [other for other in words if sorted(other.split("_")) == sorted(word.split("_"))]
    close = same or difflib.get_close_matches(word, words, n=2, cutoff=0.7)
    return f"; did you mean {' or '.join(close)}?" if close else ""


class Parser(argparse.ArgumentParser):
    """A parser that suggests names similar to unknown ones, and refuses blank values."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **kwargs})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; unknown arguments are an error of the command that they were given to."""
        words = sys.argv[1:] if args is None else list(args)
        # Before argparse asks for required options, of which this may be one misspelled.
        for word in itertools.takewhile(lambda word: word != "--", words):
            option = word.split("=")[0]
            is_option = self._subparsers is None and word.startswith("--") and " " not in word
            if is_option and option not in self._option_string_actions:
                self.refuse("argument", option, self._option_string_actions)
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.refuse("argument", unknown[0].split("=")[0], self._option_string_actions)
        for action in self._actions:
            value = getattr(namespace, action.dest, None)
            given = value if isinstance(value, list) else [value]
            # A tab may be a separator.
            if any(isinstance(text, str) and not text.strip(" \n") for text in given):
                name = "/".join(action.option_strings) or action.metavar or action.dest
                self.error(f"argument {name}: expected a value, found a blank one; give one")
        return namespace, unknown

    def refuse(self, kind: str, word: str, known: Iterable[str]) -> NoReturn:
        """Exit with status 2 because of an unknown word."""
        if word in known:
            self.error(f"{kind} {word!r} after --, which ends the options; give it before")
        self.error(f"unknown {kind} {word!r}{suggestion(word, known) or '; see --help'}")


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults, except those of switches and required options."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.required or action.default in (None, False, []):
            return action.help
        return super()._get_help_string(action)


def build_parser(only: str | None = None) -> Parser:
    """Return the parser of all commands.

    Args:
        only: the command whose options are declared; the others' modules are not imported. None
            declares the options of all.
    """
    parser = Parser(
        prog=PROG,
        description="Recurrence for fairseq's Transformer: fairseq's commands with the plug-in "
        "loaded, and tools around them.",
        epilog=f"{PROG} COMMAND --help explains a command. Exit status: 0 success; 1 check found "
        "a problem, a run of an experiment failed, another process of a distributed training "
        "died, or the reader of the output ended before the work did; 2 invalid input; 75 a "
        "signal stopped a training, which is saved; 130 Ctrl-C, or a signal stopped an "
        "experiment.",
    )
    parser.add_argument("--version", action="version", version=f"{PROG} {__version__}")
    parser.add_argument(
        "--debug",
        action="store_true",
        help=f"show the traceback of input errors (also: {TRACEBACK}=1)",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in fairseq_commands.COMMANDS.items():
        commands.add_parser(name, add_help=False, help=text)
    groups: dict[str, Any] = {"": commands}
    for name, command in OWN_COMMANDS.items():
        group, _, word = name.rpartition(" ")
        if group not in groups:
            text = GROUPS[group]
            inner = commands.add_parser(group, help=text, description=f"{text.capitalize()}.")
            groups[group] = inner.add_subparsers(
                dest="subcommand", metavar="SUBCOMMAND", required=True
            )
        leaf = groups[group].add_parser(word, help=command.help, formatter_class=_Help)
        if only in (None, name):
            module = command.load()
            leaf.description = (module.__doc__ or "").strip()
            module.add_arguments(leaf)
            if command.builds_models:
                leaf.add_argument(
                    "--user-dir",
                    metavar="DIR",
                    help="also load the plug-in in this folder, such as parts of your own",
                )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments after the program's name; None reads those of this process

    Returns:
        the exit status: 0 for success; 1 if `check` found a problem, a run of an experiment
        failed, another process of a training died, or the reader of the output ended before the
        work did; 2 for invalid input, which one message on stderr explains; 75 if a signal stopped
        a training, which is saved; 130 after Ctrl-C, or if a signal stopped an experiment

    Raises:
        SystemExit: from argparse, with status 2 for invalid arguments
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    debug = os.environ.get(TRACEBACK, "") not in ("", "0")
    while argv[:1] in (["--debug"], ["--"]):
        debug = debug or argv[0] == "--debug"
        argv = argv[1:]
    try:
        _check_words(argv)
        fairseq_commands.log_level()  # fairseq reads the variable, too, as soon as it is imported
        status = _dispatch(argv)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except BrokenPipeError:  # the program that reads the output has ended (`| head`, `| tee`)
        _discard_output(sys.stdout)
        return 0 if _only_prints(argv) else _cut_short()
    except KeyboardInterrupt:
        if debug:
            traceback.print_exc()
        print(f"{PROG}: interrupted; files that were written before are complete", file=sys.stderr)
        return INTERRUPTED
    except UnicodeEncodeError as error:
        if not (message := _unprintable(error)):
            raise
        print(f"{PROG}: error: {message}", file=sys.stderr)
        return 2
    except (*INPUT_ERRORS, ProcessError, OSError) as error:
        is_input_error = isinstance(error, INPUT_ERRORS)
        if isinstance(error, OSError) and not is_input_error:
            if error.errno not in REMEDIES:
                raise
            if error.filename is None:
                _discard_output(sys.stdout)
        if debug and is_input_error:
            traceback.print_exc()
        print(f"{PROG}: error: {_message(error)}", file=sys.stderr)
        return 1 if isinstance(error, ProcessError) else 2


def _check_words(argv: Iterable[str]) -> None:
    """Refuse names that no log can show.

    Raises:
        ConfigError: an argument is not UTF-8
    """
    for word in argv:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{ascii(word)} is not UTF-8; rename the file or folder") from None


def _unprintable(error: UnicodeEncodeError) -> str:
    """Say what standard output cannot show; nothing if its encoding has all characters."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    if codecs.lookup(encoding).name == "utf-8":
        return ""
    return (
        f"standard output is {encoding}, which lacks {ascii(error.object[error.start])}; set "
        "PYTHONIOENCODING=utf-8"
    )


def _discard_output(stream: TextIO) -> None:
    """Point a standard stream nowhere: Python would try to write the rest of it at exit."""
    with contextlib.suppress(io.UnsupportedOperation):  # in a notebook
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _only_prints(argv: Sequence[str]) -> bool:
    """Return whether a command loses nothing if its output is cut short."""
    return bool(PRINTING & {" ".join(argv[:1]), " ".join(argv[:2])} or PRINTS & set(argv))


def _cut_short() -> int:
    """Say that a command did not finish its work; return the exit status."""
    try:
        print(
            f"{PROG}: error: the program that read the output has ended before the work was done; "
            "run the same command again",
            file=sys.stderr,
        )
    except BrokenPipeError:  # it read this stream, too
        _discard_output(sys.stderr)
    return 1


def _dispatch(argv: list[str]) -> int:
    """Pass fairseq's commands on as they are; parse the arguments of this package's own."""
    first = argv[0] if argv else ""
    if first in fairseq_commands.COMMANDS:
        fairseq_recur.register()
        return fairseq_commands.run(first, argv[1:])
    words = argv[: 2 if first in GROUPS else 1]
    name = " ".join(words)
    if name in OWN_COMMANDS and OWN_COMMANDS[name].builds_models:
        _load_plugin(argv)
    parser = build_parser(only=name)
    if words and not words[-1].startswith("-"):
        known = [*fairseq_commands.COMMANDS, *OWN_COMMANDS, *GROUPS]
        if name not in known:
            parser.refuse("command", name, known)
    args = parser.parse_args(argv)  # exits unless the command is one of this package's own
    fairseq_commands.set_up_logging(sys.stderr)
    return int(OWN_COMMANDS[name].load().run(args))


def _load_plugin(argv: Sequence[str]) -> None:
    """Import the plug-in of --user-dir, whose names the parser of the other options may know.

    Raises:
        ConfigError: its folder cannot be imported
    """
    fairseq_recur.register()
    from fairseq_recur.cli import plugin_loading

    plugin_loading.load(itertools.takewhile(lambda word: word != "--", argv))


def _message(error: BaseException) -> str:
    """Return an error's message; of an operating system error its words and what to do."""
    if isinstance(error, OSError) and error.strerror:
        found = f"{error.strerror}: {error.filename or 'the output'}"
        return "; ".join(filter(None, (found, REMEDIES.get(error.errno or 0))))
    if isinstance(error, OSError):
        return f"{type(error).__name__}: {error}"
    return str(error)
