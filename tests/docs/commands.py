"""Finding the commands in Markdown files, and parsing them with the real parsers."""

import argparse
import ast
import importlib
import os
import re
import shlex
import subprocess
from argparse import Namespace
from collections.abc import Iterator
from functools import cache
from itertools import groupby, takewhile
from pathlib import Path
from textwrap import dedent

from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
from omegaconf import DictConfig, OmegaConf

import fairseq_recur
from fairseq_recur import cli
from fairseq_recur.models import config
from fairseq_recur.models.check import check_config
from fairseq_recur.models.language_model import RecurrentLanguageModel
from fairseq_recur.models.model import RecurrentTransformerModel

ROOT = Path(__file__).resolve().parents[2]
USER_DIR = str(Path(fairseq_recur.__file__).parent)

OURS = ("fairseq-\\S+", "torchrun", "python", "bash")
HERE_DOCUMENT = re.compile(r"^ *cat > (\S+\.py) <<'?(\w+)'?\n(.*?)\n *\2$", re.M | re.S)
SHELL = ("for", "done", "cd", "source", "export", "echo", "mkdir", "cp", "head", "sed")

PARSERS = {
    "train": options.get_training_parser,
    "generate": options.get_generation_parser,
    "interactive": options.get_interactive_generation_parser,
    "validate": options.get_validation_parser,
    "preprocess": options.get_preprocessing_parser,
    "eval-lm": options.get_eval_lm_parser,
}


def markdown_files() -> list[Path]:
    """Every Markdown file of the project, except in environments and results."""
    return sorted(
        path
        for path in ROOT.rglob("*.md")
        if not any(part.startswith(".") or part == "work" for part in path.relative_to(ROOT).parts)
    )


def code_lines(text: str) -> Iterator[tuple[bool, str]]:
    """The lines of bash blocks, and of others that may be a program's output: (is bash, line).

    Continued lines are joined. A block of another language has no commands.
    """
    language, blocks = None, []
    for line in text.splitlines():
        fence = re.match(r"\s*```(\w*)", line)
        if fence:
            language = fence[1] if language is None else None
        elif language in ("bash", "") or (language is None and line.startswith("    ")):
            blocks.append((language == "bash", line.strip()))
    joined = ""
    for is_bash, line in blocks:
        joined += line.removesuffix("\\")
        if not line.endswith("\\"):
            yield is_bash, joined
            joined = ""


def settings_and_commands(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """Every simple command of the bash blocks, and those of ours elsewhere.

    Yields:
        the names of the variables that it is given, and its words
    """
    for is_bash, line in code_lines(HERE_DOCUMENT.sub("", text)):
        line = line.replace("$(fairseq-recur path)", USER_DIR)
        if not (is_bash or re.match(rf"((\w+=\S+|echo .*\|) *)*({'|'.join(OURS)})( |$)", line)):
            continue
        lexer = shlex.shlex(line, posix=True, punctuation_chars="<>|&;")
        lexer.whitespace_split = True
        for is_end, part in groupby(lexer, lambda word: word in ("|", "&&", ";")):
            words = [] if is_end else [word for word in part if word not in ("do", "...")]
            words = [w for place, w in enumerate(words)
                     if not {"<", ">"} & {w, *words[max(0, place - 1) : place]}]  # fmt: skip
            assigned = list(takewhile(lambda word: re.match(r"[A-Z][A-Z0-9_]*=", word), words))
            if words:
                yield [word.split("=")[0] for word in assigned], words[len(assigned) :]


def commands(text: str) -> Iterator[list[str]]:
    """The words of every command that a page shows, but those of programs that it writes itself."""
    written = {name: ast.parse(dedent(body)) for name, _, body in HERE_DOCUMENT.findall(text)}
    for _, words in settings_and_commands(text):
        if words and words[0] not in SHELL and not written.keys() & set(words[1:2]):
            yield words


def parse(words: list[str]) -> None:
    """Parse one command as its program would; raise or exit if the program would refuse it."""
    if words[:2] == ["bash", "scripts/launch/node.sh"]:
        settings = {**os.environ, "PRINT": "1", "GPUS": "1", "PYTHON": "python"}
        said = subprocess.run(words, cwd=ROOT, env=settings, capture_output=True, text=True)
        words = shlex.split(said.stdout)
    if words[0] == "torchrun":
        assert re.fullmatch(r"torchrun --nproc_per_node \d+ -m fairseq_recur", " ".join(words[:5]))
        words = ["fairseq-recur", *words[5:]]
    if words[:3] == ["python", "-m", "fairseq_recur"]:
        words = ["fairseq-recur", *words[3:]]
    if words[0] == "fairseq-recur":
        parse_own(words[1], words[2:])
    elif words[0].startswith("fairseq-"):
        parse_fairseq(words[0].removeprefix("fairseq-"), words[1:])
    elif words[0] in ("bash", "python"):
        parse_script(words)
    else:
        parse_others(words)


def parse_script(words: list[str]) -> None:
    """A script of the project: the file exists, and it has the options."""
    if words[:2] == ["python", "-m"]:
        assert words[2] in ("venv", "tests.freeze"), f"what is {' '.join(words)}?"
        return
    assert (ROOT / words[1]).is_file(), f"there is no {words[1]}"
    if "--" in words:  # behind it stands another script of the same folder, with its options
        end = words.index("--")
        parse_script(["python", str(Path(words[1]).with_name(words[end + 1])), *words[end + 2 :]])
        words = words[:end]
    known = (program_options if words[0] == "python" else script_options)(ROOT / words[1])
    for word in words[2:]:
        if word.startswith("--") and " " not in word:  # with one it is a value, options of fairseq
            assert word in known, f"{words[1]} has no {word}"


def program_options(path: Path) -> set[str]:
    """The options of a program in Python, those that it shares with its neighbours included."""
    text = path.read_text(encoding="utf-8")
    for name in re.findall(r"^from (\w+) import", text, re.M):
        beside = path.with_name(f"{name}.py")
        text += beside.read_text(encoding="utf-8") if beside.is_file() else ""
    return set(re.findall(r'"(--[\w-]+)"', text))


def script_options(path: Path) -> set[str]:
    """The options of what a shell script starts with those that it is given.

    That is a program beside it, an experiment, or a training, whose own ones depend on its model:
    there each of fairseq's is known.
    """
    text = path.read_text(encoding="utf-8")
    places = (path.parent, path.parent.parent, ROOT / "scripts", ROOT / "scripts" / "recipes")
    for name in re.findall(r'^source .*\b(\w+\.sh)"$', text, re.M):
        text += next(p / name for p in places if (p / name).is_file()).read_text(encoding="utf-8")
    known = {"--help"}
    for name in re.findall(r'/(\w+\.py)" .*"\$@"', text):
        known |= program_options(path.with_name(name))
    if re.search(r"fairseq-recur experiment run ", text):
        known |= program_options(ROOT / "fairseq_recur" / "cli" / "experiment_run.py")
    if re.search(r'^ +launch "', text, re.M):
        known |= known_options()
    return known


def parse_others(words: list[str]) -> None:
    """An external program, used in a known way."""
    if words[0] == "subword-nmt":
        command = importlib.import_module("subword_nmt." + words[1].replace("-", "_"))
        known = {o for action in command.create_parser()._actions for o in action.option_strings}
        given = {word for word in words[2:] if word.startswith("-")}
        assert given <= known, f"subword-nmt {words[1]} has no {given - known}"
    elif words[:2] == ["pip", "install"]:
        for extra in re.findall(r"\[(\w+)\]", " ".join(words)):
            assert f'"{extra}": [' in (ROOT / "setup.py").read_text(), f"there is no [{extra}]"
    elif words[0] != "ct2-fairseq-converter":
        assert words[:2] == ["git", "clone"], f"what is {' '.join(words)}?"


def parse_own(command: str, arguments: list[str]) -> None:
    """A command of fairseq-recur: its own, or one of fairseq's."""
    if command == "hydra-train" or command in PARSERS:
        parse_fairseq(command, arguments)
    else:
        cli.build_parser().parse_args([command, *arguments])


def parse_fairseq(command: str, arguments: list[str]) -> None:
    """A command of fairseq, parsed up to the configuration that it would run with."""
    if command == "hydra-train":
        return parse_hydra(arguments)
    if "--help" in arguments:
        return None
    if command == "preprocess":
        PARSERS[command]().parse_args(arguments)
    else:
        args = options.parse_args_and_arch(PARSERS[command](), arguments)
        cfg = convert_namespace_to_omegaconf(args)
        if command == "train":
            check_model(args.arch, cfg.model)
    return None


def check_model(arch: str, model: DictConfig | Namespace) -> None:
    """Check the options as one of our models would; raise ConfigError if it would refuse them."""
    if isinstance(model, Namespace):  # fairseq's own
        return
    given = Namespace(**OmegaConf.to_container(model, resolve=True, enum_to_str=True))
    kind = ARCH_MODEL_REGISTRY[arch]
    if issubclass(kind, RecurrentTransformerModel):
        slots, assemble = config.encoder_decoder_slots(), config.encoder_decoder_config
    elif issubclass(kind, RecurrentLanguageModel):
        slots, assemble = config.language_model_slots(), config.language_model_config
    else:
        return
    check_config(given, slots, [assemble()(), kind.config_class()], loaded=False)


def parse_hydra(arguments: list[str]) -> None:
    """A configuration folder and name, and overrides that fit it."""
    from fairseq.dataclass.initialize import hydra_init
    from hydra.core.global_hydra import GlobalHydra
    from hydra.experimental import compose, initialize_config_dir

    settings: dict[str, str] = {}
    overrides: list[str] = []
    words = iter(arguments)
    for word in words:
        if word.startswith("--"):
            settings[word] = next(words)
        else:
            overrides.append(word)
    hydra_init(settings["--config-name"])
    GlobalHydra.instance().clear()
    with initialize_config_dir(config_dir=settings["--config-dir"]):
        compose(settings["--config-name"], overrides=overrides)


@cache
def known_options() -> frozenset[str]:
    """Every option of fairseq's commands, of ours and of our scripts."""
    parsers = [get() for get in PARSERS.values()] + [cli.build_parser()]
    found = {"--list"}  # of train, whose parser is fairseq's
    for parser in parsers:  # which grows
        for action in parser._actions:
            found |= set(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
    registries = [each["dataclass_registry"] for each in REGISTRIES.values()]
    for registry in (*registries, TASK_DATACLASS_REGISTRY, MODEL_DATACLASS_REGISTRY):
        for kind in registry.values():
            names = getattr(kind, "__dataclass_fields__", {})
            found |= {"--" + name.replace("_", "-") for name in names}
    for model in (*ARCH_MODEL_REGISTRY.values(), *TASK_REGISTRY.values()):
        parser = argparse.ArgumentParser(conflict_handler="resolve")
        model.add_args(parser)
        found |= {word for action in parser._actions for word in action.option_strings}
    for folder in ("scripts", "examples", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            found |= set(re.findall(r'add_argument\(\s*"(--[\w-]+)', path.read_text("utf-8")))
    return frozenset(found)
