"""What the types and ranges of an experiment's single settings cannot tell."""

from collections.abc import Collection, Iterator
from typing import Any

from fairseq_recur.experiments.schema import in_file
from fairseq_recur.experiments.settings import Experiment, Flags, misread, normal

# The experiment passes these to fairseq's commands itself.
TRAIN_FLAGS = {"save-dir", "seed", "log-file", "restore-file", "finetune-from-model"}
GENERATE_FLAGS = {"path", "results-path"}

# The experiment writes these into its folder, beside the folders of the systems.
RESERVED = {
    "lock", "command.json", "results.json", "table.md", "run.log", "other_sets", "speed.json",
    "speed.log", "speed.out",
}  # fmt: skip


def settings_problems(experiment: Experiment) -> Iterator[str]:
    """Yield what is wrong, one message each."""
    seeds, checkpoint, score = experiment.seeds, experiment.checkpoint, experiment.score
    if len(set(seeds)) < len(seeds):
        yield in_file("seeds", seeds, "a list of different whole numbers, at least 0")
    if checkpoint not in ("best", "last") and not (type(checkpoint) is int and checkpoint > 0):
        yield in_file("checkpoint", checkpoint, "a number above 0, best or last")
    if not all(score.reference):
        yield in_file("score.reference", score.reference, "a file, or a list of files")
    if "comet" in score.metrics and score.source is None:
        yield "score.source is missing: expected the translated file, which comet reads"
    if normal(experiment.generate).get("quiet"):
        yield in_file("generate.quiet", True, "false, for the output has the translations")
    systems = experiment.systems
    if experiment.baseline not in systems:
        known = ", ".join(map(str, systems))
        yield f"baseline: there is no system {experiment.baseline}; choose one of {known}"
    for name, system in systems.items():
        yield from _misnamed(name)
        yield from _owned(f"systems.{name}.flags", system.flags, TRAIN_FLAGS)
        if {**normal(experiment.train), **normal(system.flags)}.get("log-format") == "none":
            yield (
                f"systems.{name}: log-format none; expected json, simple or tqdm, for progress and "
                "results are read from the log"
            )
        control = system.compare_with
        if control is not None and (control == name or control not in systems):
            yield f"systems.{name}.compare_with: {control} is not another system; choose another"
        if system.start is not None and system.start_from is not None:
            yield f"systems.{name} has both start and start_from; remove one of them"
        seen, other = [name], system.start_from
        while other is not None:
            if other in seen or other not in systems:
                why = "itself" if other in seen else "not a system of this experiment"
                yield f"systems.{name}.start_from leads to {other}, which is {why}; name another"
                break
            seen.append(other)
            other = systems[other].start_from
    starts = {f"systems.{name}.start": system.start for name, system in systems.items()}
    for where, path in {"data": experiment.data, "start": experiment.start, **starts}.items():
        if path is not None and (mark := misread(path)):
            yield f"{where}: fairseq misreads {mark!r} in {path}; rename the file or folder"
    yield from _owned("train", experiment.train, TRAIN_FLAGS)
    yield from _owned("generate", experiment.generate, GENERATE_FLAGS)


def _misnamed(name: Any) -> Iterator[str]:
    """Yield why a system, and its folder, cannot have a name."""
    if not isinstance(name, str):
        yield f"systems: {name!r} is not a text; put the name in quotes"
    elif not name or "/" in name or name.startswith("."):
        yield f"systems: {name!r} cannot be the name of a folder; choose another name"
    elif name in RESERVED:
        yield f"systems: {name} is a name that the experiment itself uses; choose another name"
    elif mark := misread(name):
        yield f"systems: fairseq misreads {mark!r} in {name}; choose another name"


def _owned(where: str, flags: Flags, owned: Collection[str]) -> Iterator[str]:
    """Yield the flags that the experiment sets itself."""
    for name in flags:
        if name.replace("_", "-") == "user-dir":
            yield f"{where}.{name}: user_dir is a key of the experiment; move it there"
        elif name.replace("_", "-") in owned:
            yield f"{where}.{name} is set by the experiment itself; remove it"
