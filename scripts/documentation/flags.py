"""Generate docs/flags.md and docs/commands.md from the dataclasses and the parsers.

    python scripts/documentation/flags.py

A test fails when a page is out of date.
"""

import argparse
import logging
import re
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, make_dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.registry import REGISTRIES

from fairseq_recur import cli
from fairseq_recur.models import PRESETS, config
from fairseq_recur.models.check import joined
from fairseq_recur.models.monitoring import MonitoringOptions
from fairseq_recur.models.presets import FORECASTERS, LANGUAGE_MODELS, SIZES, SYSTEMS
from fairseq_recur.models.t5 import T5Options
from fairseq_recur.modules.options import LARGEST, flag
from fairseq_recur.modules.stream_memory import SeriesMemory
from fairseq_recur.modules.transformer_xl import TransformerXLOptions
from fairseq_recur.optim.adamw_fused import FusedAdamWConfig
from fairseq_recur.planning import building
from fairseq_recur.scorers.rouge import RougeScorerConfig
from fairseq_recur.tasks.regular_languages import RegularLanguagesConfig
from fairseq_recur.tasks.summarization_config import SummarizationConfig
from fairseq_recur.tasks.time_series import TimeSeriesConfig

DOCS = Path(__file__).resolve().parents[2] / "docs"
MADE = "<!-- made by scripts/documentation/flags.py from the program's own definitions -->\n"
ALL_PRESETS = {**PRESETS, **LANGUAGE_MODELS, **FORECASTERS}
HOSTS, RSA = ("xl_lm", "brt_lm", "tlb_lm"), ("", "rsa_")
GROUPS = {
    **{f"`{system}` and its sizes": {system + size for size in SIZES} for system in SYSTEMS},
    **{
        f"all encoder-decoders with `{size}`": {system + size for system in SYSTEMS}
        for size in SIZES
        if size
    },
    **{
        f"`{model}` and its sizes": sizes
        for model in LANGUAGE_MODELS
        if len(sizes := {n for n in LANGUAGE_MODELS if f"{n}_".startswith(f"{model}_")}) > 1
    },
    **{
        f"all `…_lm{size}` with a memory": {f"{rsa}{host}{size}" for host in HOSTS for rsa in RSA}
        for size in ("", "_tiny", "_text8", "_enwik8", "_wikitext103")
    },
    "all forecasters": {*FORECASTERS},
}
"""Presets that are named together."""
VOCABULARY = 32768
VARIABLES = 7
SLOTS = config.encoder_decoder_slots()
MEMORY_SLOT = config.language_model_slots()[-1]
OWNERS = config.part_options([*SLOTS, MEMORY_SLOT])
"""The parts that declare an option, by their names on the command line."""

# Heading, the page that says more, and the slots whose options the section lists.
SLOT_GROUPS: list[tuple[str, str, list[config.Slot]]] = [
    (title, page, [slot for slot in SLOTS if slot.option.endswith(ends)])
    for title, page, ends in (
        ("Self-attention", "rsa.md", ("self_attention", "self_attention_mixture")),
        ("Cross-attention", "srformer.md", ("cross_attention", "cross_attention_mixture")),
        ("Recurrence encoder", "recurrence_encoder.md", ("recurrence", "recurrence_fusion")),
    )
] + [("Memory of a language model", "language_models.md", [MEMORY_SLOT])]
MODEL_GROUPS: list[tuple[str, str, type]] = [
    ("Host, and T5", "t5_and_bart.md", T5Options),
    ("Host of a language model", "language_models.md", TransformerXLOptions),
    ("Forecasters", "time_series.md", SeriesMemory.Options),
    ("Training statistics", "plotting.md", MonitoringOptions),
]
OTHER_GROUPS: list[tuple[str, str, type]] = [
    ("`--task summarization`", "summarization.md", SummarizationConfig),
    ("`--scoring rouge`", "summarization.md", RougeScorerConfig),
    ("`--optimizer adamw_fused`", "launching.md", FusedAdamWConfig),
    (
        "`--task regular_languages`",
        "../examples/regular_languages/README.md",
        RegularLanguagesConfig,
    ),
    ("`--task time_series_forecasting`", "time_series.md", TimeSeriesConfig),
]
CUT = 267_735
"""Entries of the dictionary of a preset with an adaptive softmax: those of WikiText-103."""

# What fairseq says of the options of its tokenizers and subword encoders, which some commands take.
FAIRSEQS = {
    option.metadata.get("help")
    for kind in ("tokenizer", "bpe")
    for declaration in REGISTRIES[kind]["dataclass_registry"].values()
    for option in fields(declaration)
    if declaration is not None and option.metadata.get("help")
}


def cell(text: Any) -> str:
    """Text that does not end a table's cell or become an HTML element."""
    return str(text).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def literal(text: Any) -> str:
    """Text in backquotes, within a table's cell; nothing for none."""
    return f"`{text}`".replace("|", "\\|") if text != "" else ""


def code(value: Any) -> str:
    """A value as it is written on the command line; nothing for none."""
    text = getattr(value, "value", value)
    if text is None or text == "" or isinstance(text, bool):
        return {True: "on", False: "off"}.get(text, "") if isinstance(text, bool) else ""
    if isinstance(text, float):
        text = f"{text:.6g}"
    follows = re.fullmatch(r"\$\{(?:model|task)\.(\w+)\}", str(text))
    return f"as `{flag(follows[1])}`" if follows else literal(text)


def values_of(option: Any) -> str:
    """The choices of an option, or the type of its value."""
    if hasattr(option.type, "__members__"):
        return ", ".join(f"`{choice.value}`" for choice in option.type)
    if isinstance(option.default, bool):
        return "a flag without a value"
    named = getattr(option.type, "__name__", "") or str(option.type)
    if option.name.endswith("_cutoff"):  # fairseq's converters make a list of it
        return "whole numbers, separated by commas"
    for part, text in (("str", "text"), ("float", "number"), ("int", "whole number")):
        if part in (named if named != "Optional" else str(option.type)):
            return text
    return "text"


def default_of(option: Any) -> str:
    """An option's default, as a cell."""
    if str(option.default) in (f"${{task.{option.name}}}", f"${{model.{option.name}}}"):
        return "that of the task"
    return code(option.default)


def read_by(option: Any, values: Mapping[str, Any]) -> bool:
    """Whether a preset with these values reads an option; one of a memory, by its own memory."""
    memory = f"{flag(MEMORY_SLOT.option)} {values.get(MEMORY_SLOT.option)}"
    owners = OWNERS.get(option.name, [])
    of_memories = [owner for owner in owners if owner.startswith(flag(MEMORY_SLOT.option))]
    return memory in owners or not of_memories


def set_by(option: Any) -> str:
    """The presets that have another default, and which."""
    found: dict[str, list[str]] = {}
    for preset, values in ALL_PRESETS.items():
        own = option.name in values and read_by(option, values)
        if own and values[option.name] != option.default:
            found.setdefault(code(values[option.name]), []).append(preset)
    return "; ".join(f"{value}: {', '.join(grouped(names))}" for value, names in found.items())


def grouped(presets: list[str]) -> Iterator[str]:
    """Yield the names of presets, all sizes of a system as one, and a size of all systems too."""
    left = list(presets)
    for name, members in GROUPS.items():
        if members <= set(left):
            yield name
            left = [preset for preset in left if preset not in members]
    yield from map(literal, left)


def range_of(option: Any) -> str:
    """The smallest and the largest value that a part's option accepts; nothing for other types."""
    whole = option.type is int
    limits = option.metadata.get("within", (0, LARGEST) if whole else None)
    if limits is None:
        return ""
    low, high = limits
    return f"{low:,g} or more" if high >= LARGEST else f"{low:,.9g} to {high:,.9g}"


def needed_by(option: Any) -> str:
    """The choices under which an option has an effect; nothing if it always has."""
    owners = joined(OWNERS.get(option.name, [])).split(", or ")
    conditions = [" or ".join(literal(owner) for owner in owners)]
    for other, values in option.metadata.get("needs", {}).items():
        if values == (False,):
            conditions.append(f"without {literal(flag(other))}")
        else:
            conditions.append(literal(f"{flag(other)} {' or '.join(map(str, values))}"))
    return "; ".join(condition for condition in conditions if condition)


def meaning(option: Any) -> str:
    """What an option does, with which others it acts, and the presets with another default."""
    needed, presets = needed_by(option), set_by(option)
    said = [cell(option.metadata["help"]), needed and f"Acts with {needed}"]
    return ". ".join(filter(None, [*said, presets and f"Presets: {presets}"]))


def table(options: Iterable[Any], of_parts: bool = True) -> Iterator[str]:
    """Yield the rows of a Markdown table of options; those of parts have a range."""
    yield "| flag | values | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for option in options:
        values = ", ".join(filter(None, [values_of(option), of_parts and range_of(option)]))
        row = [f"`{flag(option.name)}`", values, default_of(option), meaning(option)]
        yield f"| {' | '.join(row)} |"


def own_fields(declaration: type) -> Iterator[Any]:
    """The options that a dataclass itself defines."""
    for option in fields(declaration):
        own = option.name in vars(declaration).get("__annotations__", {})
        if own and option.metadata.get("help"):
            yield option


def slot_fields(slots: list[config.Slot]) -> list[Any]:
    """The options of slots and of their parts, as dataclass fields."""
    return list(fields(make_dataclass("Listed", config.part_fields(slots))))


def parameters(arch: str) -> tuple[int, int]:
    """Numbers of parameters: the embeddings with the output matrix, and all others.

    A forecaster's are those for `VARIABLES`, on whose number convolution and output depend.
    """
    if arch in FORECASTERS:
        task = Namespace(
            series=Namespace(names=["x"] * VARIABLES), features=torch.zeros(1, 4),
            cfg=Namespace(label_length=0),
        )  # fmt: skip
        config_class = ARCH_MODEL_REGISTRY[arch].config_class
        forecaster = ARCH_MODEL_REGISTRY[arch].build_model(config_class(), task)
        ends = ("convolution.weight", "projection.weight", "projection.bias")
        sizes = {name: p.numel() for name, p in forecaster.named_parameters()}
        own = sum(size for name, size in sizes.items() if name.endswith(ends))
        return own, sum(sizes.values()) - own
    cut = LANGUAGE_MODELS.get(arch, {}).get("adaptive_softmax_cutoff")
    vocabulary = CUT if cut else VOCABULARY
    model = building.build(arch, [], vocabulary, vocabulary, "fp32").model
    total = sum(p.numel() for p in model.parameters())
    if cut:
        ends = "embed_tokens.", "adaptive_softmax."
        words = sum(p.numel() for n, p in model.named_parameters() if any(e in n for e in ends))
    else:
        words = sum(p.numel() for p in model.parameters() if vocabulary in p.shape)
    return words, total - words


def preset_rows() -> Iterator[str]:
    """A row for each architecture; sizes that are the same under another name share one."""
    names: dict[str, list[str]] = {}
    for arch, model in ARCH_MODEL_REGISTRY.items():
        if model.__module__.split(".")[0] == "fairseq_recur":
            same_as = {**PRESETS, **LANGUAGE_MODELS}.get(arch, {arch: 0})
            defaults = repr(sorted(same_as.items()))
            names.setdefault(defaults, []).append(arch)
    slots = [*(slot.option for slot in SLOTS), MEMORY_SLOT.option, "encoder_memory", "host"]
    for same in names.values():
        words, others = parameters(same[0])
        chosen = ALL_PRESETS.get(same[0], {})
        parts = [f"`{flag(slot)} {chosen[slot]}`" for slot in slots if slot in chosen]
        listed = ", ".join(f"`{name}`" for name in same)
        yield f"| {listed} | {', '.join(parts)} | {others:,} | {words:,} |"


def flags_page() -> str:
    """docs/flags.md."""
    lines = [
        MADE,
        "# Flags and presets\n",
        "These are the flags that this project adds to `fairseq-train`. In hydra, an option has "
        "the",
        "same name with underscores: `--recurrence-steps 4` is `model.recurrence_steps=4`. An",
        "unusable value is an error before the model is built, and so is an option without effect.",
        "One message lists all of them.\n",
        "## Presets\n",
        "`--arch NAME`. A preset sets the flags of its parts and sizes; what is given on the",
        "command line counts instead. The last column is what depends on the dictionaries, here of",
        f"{VOCABULARY:,} entries each (with an adaptive softmax {CUT:,}), and the one before it",
        "all other parameters. For a forecaster it is what depends on the number of variables,",
        f"here {VARIABLES}.\n",
        "| `--arch` | its parts | parameters | embeddings and output |",
        "| --- | --- | ---: | ---: |",
        *preset_rows(),
    ]
    sections = [
        *((title, page, table(slot_fields(slots))) for title, page, slots in SLOT_GROUPS),
        *((title, page, table(own_fields(own))) for title, page, own in MODEL_GROUPS),
        *((title, page, table(own_fields(own), False)) for title, page, own in OTHER_GROUPS),
    ]
    for title, page, rows in sections:
        lines += [f"\n## {title}\n", f"More: [{page}]({page}).\n", *rows]
    lines += [
        "\n## fairseq's Transformer\n",
        "These are the options of fairseq's Transformer, with its names and meanings. To read "
        "about",
        "them, run `fairseq-recur train --arch transformer_biarn --help`. The defaults are those",
        "without a preset's sizes.\n",
        "| flag | values | default | in presets |",
        "| --- | --- | --- | --- |",
        *(
            f"| `{flag(f.name)}` | {values_of(f)} | {default_of(f)} | {set_by(f)} |"
            for f in fields(config.HostConfig)
            if f.name != "_name"
        ),
    ]
    return "\n".join(lines) + "\n"


def arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Rows of Markdown for a command's arguments."""
    if len(parser._actions) == 1:
        return
    yield "| argument | default | meaning |"
    yield "| --- | --- | --- |"
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction) or action.help in FAIRSEQS:
            continue
        names = ", ".join(f"`{name}`" for name in action.option_strings)
        metavar = action.metavar or ("" if action.nargs == 0 else action.dest.upper())
        metavar = " ".join(metavar) if isinstance(metavar, tuple) else metavar
        values = ", ".join(map(literal, action.choices or [])) or literal(metavar)
        several = " ..." if action.nargs in ("+", "*") else ""
        named = f"{names} {values}{several}".strip()
        default = action.default
        required = action.required and action.nargs not in ("*", "?")
        if default in (None, False, argparse.SUPPRESS) or action.required:
            default = ""
        elif isinstance(default, (list, tuple)):
            default = " ".join(map(str, default))
        text = re.sub(r"%\(default\)s", str(default), action.help or "").replace("%%", "%")
        default = "required" if required else literal(default)
        yield f"| {named} | {default} | {cell(text)} |"
    if any(action.help in FAIRSEQS for action in parser._actions):
        yield "\nThe options of `--tokenizer` and `--bpe` of `fairseq-interactive` apply as well."


def subparsers(
    parser: argparse.ArgumentParser,
) -> dict[str, tuple[argparse.ArgumentParser, str]]:
    """The commands of a parser by name, each with what it does."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {listed.dest: listed.help or "" for listed in action._choices_actions}
            return {name: (inner, helps[name]) for name, inner in action.choices.items()}
    return {}


def command_sections(
    name: str, parser: argparse.ArgumentParser, about: str, level: int
) -> Iterator[str]:
    """A section for a command, and one for each of those within it."""
    yield f"\n{'#' * level} fairseq-recur {name}\n"
    yield f"{about[0].upper()}{about[1:]}.\n"
    inner = subparsers(parser)
    if not inner:
        yield from arguments(parser)
    for word, (command, of_command) in inner.items():
        yield from command_sections(f"{name} {word}", command, of_command, level + 1)


def commands_page() -> str:
    """docs/commands.md."""
    passed_on = ", ".join(f"`{name}`" for name in cli.fairseq_commands.COMMANDS)
    lines = [
        MADE,
        "# Commands\n",
        f"`fairseq-recur` passes {passed_on}",
        "on to fairseq's command of the same name, with this plug-in loaded. Their arguments are",
        "fairseq's and those in [the list of flags](flags.md).",
        "The commands below belong to `fairseq-recur` itself. The exit status is 0 on success, and",
        "2 for wrong input, which one message explains. It is 1 if `check` found a problem, a run",
        "of an experiment failed, another process of a training died, or the reader of the output",
        "ended before the work did. It is 75 if a signal stopped a training, which is then saved.",
        "Ctrl-C ends the other commands with 130; an experiment that a signal stops also ends with",
        "130.\n",
        "`fairseq-recur --version` prints the version. `fairseq-recur --debug COMMAND` adds the",
        "traceback to the message about wrong input. `fairseq-recur train --list` shows all",
        "architectures and parts.",
    ]
    own = subparsers(cli.build_parser())
    for name in dict.fromkeys(name.split()[0] for name in cli.OWN_COMMANDS):
        lines += command_sections(name, *own[name], 2)
    return "\n".join(lines) + "\n"


PAGES = {"flags.md": flags_page, "commands.md": commands_page}


def main() -> None:
    """Write the pages."""
    logging.disable(logging.WARNING)
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
