"""Finding the commands in Markdown files, and parsing them with the real parsers."""

import argparse
import re
import shlex
from functools import lru_cache
from pathlib import Path
from typing import Dict, FrozenSet, Iterator, List

import fairseq_recur
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
from fairseq_recur import cli

ROOT = Path(__file__).resolve().parents[2]
USER_DIR = str(Path(fairseq_recur.__file__).parent)

PARSERS = {
    "train": options.get_training_parser,
    "generate": options.get_generation_parser,
    "interactive": options.get_interactive_generation_parser,
    "validate": options.get_validation_parser,
    "preprocess": options.get_preprocessing_parser,
    "eval-lm": options.get_eval_lm_parser,
}


def markdown_files() -> List[Path]:
    """Every Markdown file of the project, not of its environments and results."""
    return sorted(
        path
        for path in ROOT.rglob("*.md")
        if not any(part.startswith(".") or part == "work" for part in path.relative_to(ROOT).parts)
    )


def code_lines(text: str) -> Iterator[str]:
    """The lines of fenced and indented code blocks, continued lines joined."""
    fenced, block = False, []
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            block.append(line.strip())
    yield from "\n".join(block).replace("\\\n", " ").splitlines()


def commands(text: str) -> Iterator[List[str]]:
    """The calls of fairseq, of fairseq-recur and of the project's scripts, as words."""
    for line in code_lines(text):
        line = line.replace("$(fairseq-recur path)", USER_DIR)
        if re.match(r"(fairseq-|torchrun |python -m fairseq_recur|bash |echo .*\| )", line):
            words = shlex.split(line.split("| ")[-1], comments=True)
            yield [w for w in words if w not in ("...", ">")]


def parse(words: List[str]) -> None:
    """Parse one command as the program would; raises or exits if it would not take it."""
    if words[0] == "torchrun":
        assert re.fullmatch(r"torchrun --nproc_per_node \d+ -m fairseq_recur", " ".join(words[:5]))
        words = ["fairseq-recur", *words[5:]]
    if words[:3] == ["python", "-m", "fairseq_recur"]:
        words = ["fairseq-recur", *words[3:]]
    if words[0] == "bash":
        assert (ROOT / words[1]).is_file(), words
    elif words[0] == "fairseq-recur":
        parse_own(words[1], words[2:])
    else:
        parse_fairseq(words[0].removeprefix("fairseq-"), words[1:])


def parse_own(command: str, arguments: List[str]) -> None:
    """A command of fairseq-recur: its own, or one of fairseq's."""
    if command == "hydra-train" or command in PARSERS:
        parse_fairseq(command, arguments)
    else:
        cli.build_parser().parse_args([command, *arguments])


def parse_fairseq(command: str, arguments: List[str]) -> None:
    """A command of fairseq, to the configuration that it would run with."""
    if command == "hydra-train":
        return parse_hydra(arguments)
    if "--help" in arguments:
        return None
    if command == "preprocess":
        PARSERS[command]().parse_args(arguments)
    else:
        args = options.parse_args_and_arch(PARSERS[command](), arguments)
        if command == "train":
            assert args.arch in ARCH_MODEL_REGISTRY
        convert_namespace_to_omegaconf(args)
    return None


def parse_hydra(arguments: List[str]) -> None:
    """A configuration folder and name, and overrides that fit it."""
    from fairseq.dataclass.initialize import hydra_init
    from hydra.core.global_hydra import GlobalHydra
    from hydra.experimental import compose, initialize_config_dir

    settings: Dict[str, str] = {}
    overrides: List[str] = []
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


@lru_cache(maxsize=None)
def known_options() -> FrozenSet[str]:
    """Every option of fairseq's commands, ours and our scripts, whatever --arch or --task it is of."""
    parsers = [get() for get in PARSERS.values()] + [cli.build_parser()]
    found = set()
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
