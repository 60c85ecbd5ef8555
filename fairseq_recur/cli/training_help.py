"""``train --help`` with the options of the chosen parts, and ``train --list``.

fairseq prints its help before it knows which model, task, criterion or optimizer was chosen, so
that help lacks their options.
"""

import textwrap
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Sequence
from typing import Any

from fairseq import options
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_REGISTRY

from fairseq_recur.cli.check import WIDTH, is_ours, registered
from fairseq_recur.modules.options import flag


def help_text(argv: Sequence[str]) -> str:
    """Return the help of ``train`` for what *argv* chooses, this plug-in's options first.

    Args:
        argv: the command line; --arch, --task, --criterion and the like are read from it

    Raises:
        ConfigError: --arch names no architecture
    """
    from fairseq_recur.cli.preflight import check_architecture

    general = options.get_training_parser()
    chooser = ArgumentParser(add_help=False, allow_abbrev=False)
    chooser.add_argument("--arch", "-a")
    for name in ("task", *REGISTRIES):
        chooser.add_argument(flag(name), default=general.get_default(name))
    chosen = vars(chooser.parse_known_args(argv)[0])
    usage = "fairseq-recur train DATA --arch NAME [OPTION ...]"
    special = ArgumentParser(usage=usage, add_help=False, conflict_handler="resolve")
    if chosen["arch"] is None:
        special.description = (
            "Train a model. --arch NAME adds the options of its model; --list shows the names."
        )
    else:
        check_architecture(argv)
        _add_model(special, chosen["arch"])
    parts: list[tuple[str, str, Any]] = [("task", chosen["task"], TASK_REGISTRY)]
    parts += [(kind, chosen[kind], REGISTRIES[kind]["registry"]) for kind in REGISTRIES]
    parts = [part for part in parts if part[1] in part[2]]
    # A stable sort: this plug-in's parts come first.
    for kind, name, registry in sorted(parts, key=lambda part: not is_ours(part[2][part[1]])):
        _add_part(special.add_argument_group(f"{flag(kind)} {name}"), registry[name])
    general.usage = SUPPRESS
    return f"{special.format_help()}\n{general.format_help()}"


def _add_part(group: Any, cls: Any) -> None:
    """Declare the options of a registered class."""
    if hasattr(cls, "add_args"):
        cls.add_args(group)
    elif hasattr(cls, "__dataclass"):
        gen_parser_from_dataclass(group, getattr(cls, "__dataclass")())


def _add_model(parser: ArgumentParser, arch: str) -> None:
    """Declare a model's options: first those that fairseq's Transformer lacks, then the others."""
    model = ARCH_MODEL_REGISTRY[arch]
    every, stock = (ArgumentParser(add_help=False, conflict_handler="resolve") for _ in range(2))
    _add_part(every, model)
    if is_ours(model):
        _add_part(stock, ARCH_MODEL_REGISTRY["transformer"])
    own = parser.add_argument_group(f"--arch {arch}")
    shared = parser.add_argument_group(f"--arch {arch}, options of fairseq's Transformer")
    for action in every._actions:
        known = any(name in stock._option_string_actions for name in action.option_strings)
        (shared if known else own)._add_action(action)


def list_text() -> str:
    """Return this plug-in's registered names by kind, then fairseq's architectures."""
    kinds = registered()
    ours = kinds.get("architectures", [])
    kinds["fairseq's architectures"] = sorted(set(ARCH_MODEL_REGISTRY) - set(ours))
    lines: list[str] = []
    for kind, names in kinds.items():
        if names:
            text = textwrap.fill(", ".join(names), WIDTH, break_on_hyphens=False)
            lines += [kind, textwrap.indent(text, "  "), ""]
    return "\n".join(lines).rstrip()
