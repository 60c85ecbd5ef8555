"""The command ``fairseq-recur``: one file a command, chosen here."""

import argparse
import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, List, Optional

from fairseq_recur.cli import (
    average,
    check,
    compare,
    convert,
    experiment,
    path,
    plan,
    plot,
    plot_attention,
    probe,
    score,
    wrap,
)
from fairseq_recur.errors import CheckpointError, ConfigError, ProcessError
from fairseq_recur.version import __version__

PROG = "fairseq-recur"
TRACEBACK = "FAIRSEQ_RECUR_TRACEBACK"

# What a user's input can cause; every other exception is a defect and keeps its traceback.
INPUT_ERRORS = (
    ConfigError,
    CheckpointError,
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)

OWN_COMMANDS = {
    "check": check,
    "path": path,
    "average": average,
    "convert": convert,
    "score": score,
    "compare": compare,
    "plot": plot,
    "probe": probe,
    "plot attention": plot_attention,
    "experiment": experiment,
    "plan": plan,
}


class _Parser(argparse.ArgumentParser):
    """A parser to which a command of two words is one word."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's; the first two words joined where they are a command."""
        args = list(sys.argv[1:] if args is None else args)
        if " ".join(args[:2]) in OWN_COMMANDS:
            args[:2] = [" ".join(args[:2])]
        return super().parse_known_args(args, namespace)


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Show the defaults that say something: not those of flags and of required options."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.required or action.default in (None, False):
            return action.help
        return super()._get_help_string(action)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of everything that is not passed on to fairseq."""
    parser = _Parser(
        prog=PROG,
        description="Recurrence for fairseq's Transformer: fairseq's commands with the plug-in "
        "loaded, and tools around them.",
        epilog=f"{PROG} COMMAND --help explains a command. Exit status: 0 done, "
        "1 check found a problem, or another process of a training has gone, 2 wrong input, "
        "75 a signal stopped a training, which is saved.",
    )
    parser.add_argument("--version", action="version", version=f"{PROG} {__version__}")
    parser.add_argument(
        "--debug",
        action="store_true",
        help=f"show the traceback of an error in the input (also: {TRACEBACK}=1)",
    )
    commands = parser.add_subparsers(
        dest="command",
        metavar="COMMAND",
        required=True,
        parser_class=argparse.ArgumentParser,
    )
    for name, help_text in wrap.COMMANDS.items():
        commands.add_parser(name, add_help=False, help=help_text)
    for name, module in OWN_COMMANDS.items():
        description = module.__doc__.strip()
        command = commands.add_parser(
            name,
            help=module.HELP,
            description=description,
            formatter_class=_Help,
            allow_abbrev=False,
        )
        module.add_arguments(command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments after the program's name; those of this process if None.

    Returns the exit status: 0, 1 (`check` found a problem, or another process of a training has
    gone), 2 (wrong input, explained in one message on stderr) or 75 (a training was stopped by a
    signal, and saved).
    argparse leaves by SystemExit, also with 2.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    debug = os.environ.get(TRACEBACK, "") not in ("", "0")
    while argv[:1] == ["--debug"]:
        debug = True
        argv = argv[1:]
    try:
        return _dispatch(argv)
    except INPUT_ERRORS as error:
        if debug:
            traceback.print_exc()
        print(f"{PROG}: error: {_message(error)}", file=sys.stderr)
        return 2
    except ProcessError as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of the output has gone (`| head`); Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        print(f"{PROG}: error: {_message(error)}", file=sys.stderr)
        return 2


def _dispatch(argv: list[str]) -> int:
    """Pass fairseq's commands on untouched; parse the arguments of the others."""
    if argv and argv[0] in wrap.COMMANDS:
        return wrap.run(argv[0], argv[1:])
    args = build_parser().parse_args(argv)
    wrap.set_up_logging(sys.stderr)
    return OWN_COMMANDS[args.command].run(args)


def _message(error: BaseException) -> str:
    """Say in words what an operating system error says in numbers."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}"
    if isinstance(error, OSError):
        return f"{type(error).__name__}: {error}"
    return str(error)
