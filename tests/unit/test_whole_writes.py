"""Every command writes its files whole or not at all: whatever writes does so by files.py."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fairseq_recur

PACKAGE = Path(fairseq_recur.__file__).parent

CONTEXTS = {"whole_file", "whole_checkpoint"}
"""Contexts whose file gets its name at the end."""

APART: dict[str, str] = {
    "files.py": "whole_file itself",
    "locks.py": "the file that is locked",
    "ops/native/build.py store": "renames after it has synced, with a folder's descriptor",
    # Into the folder of cli/new_folder.py whole_or_nothing, which gets its name at the end.
    "conversion/byte_bpe.py write": "a folder of whole_or_nothing",
    "conversion/huggingface.py copy_tokenizer": "a folder of whole_or_nothing",
    "conversion/huggingface.py write_model": "a folder of whole_or_nothing",
    "conversion/t5.py tokenizer_files": "a folder of whole_or_nothing",
    "conversion/vocabulary.py write": "a folder of whole_or_nothing",
    "pretrained/huggingface.py export": "a folder of whole_or_nothing",
    "pretrained/huggingface.py write_text_files": "a folder of whole_or_nothing",
    # What a process of an experiment prints, line by line.
    "cli/experiment_run.py in_background": "a log",
    "experiments/runner.py start": "a log and an output, of which a state says if it is complete",
    "experiments/speed.py _call": "an output that is read at once",
    "experiments/other_sets.py write_binary": "written anew at each start, by fairseq",
}
"""What may write otherwise, and why: a module, or a function of one."""

METHODS = {"write_text", "write_bytes", "savefig", "save_pretrained", "tofile", "to_csv"}
FUNCTIONS = {
    "torch.save", "shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.copytree",
    "json.dump", "pickle.dump", "yaml.dump", "numpy.save", "numpy.savez", "np.save", "save_file",
    "safetensors.torch.save_file", "indexed_dataset.make_builder",
}  # fmt: skip
STREAMS = {"torch.save": 1, "json.dump": 1, "pickle.dump": 1, "yaml.dump": 1, "savefig": 0}
"""Of what also writes into an open file: the place of this argument."""


def mode_of(call: ast.Call, place: int) -> str:
    """The mode of an open() or a .open(), "r" by default; "w" if it is computed."""
    given = [*call.args[place : place + 1], *(k.value for k in call.keywords if k.arg == "mode")]
    if not given:
        return "r"
    return given[0].value if isinstance(given[0], ast.Constant) else "w"


def writes(call: ast.Call) -> str | None:
    """The name of what writes a file by itself, or None."""
    name, last = ast.unparse(call.func), ast.unparse(call.func).rpartition(".")[2]
    method = isinstance(call.func, ast.Attribute)
    if last == "open" and name not in ("os.open", "tarfile.open"):
        mode = mode_of(call, 0 if method and name not in ("io.open", "gzip.open") else 1)
        return name if {*str(mode)} & {*"wax+"} else None
    if (method and last in METHODS) or name in FUNCTIONS or name.endswith("dictionary.save"):
        return name
    return None


def direct_writes(text: str) -> Iterator[tuple[str, int, str]]:
    """Every write that does not go through `CONTEXTS`: its function, its line and its name."""

    def walk(node: ast.AST, function: str, files: frozenset[str]) -> Iterator[tuple[str, int, str]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        if isinstance(node, ast.With):
            for item in node.items:
                call, target = item.context_expr, item.optional_vars
                if isinstance(call, ast.Call) and isinstance(target, ast.Name):
                    if ast.unparse(call.func).rpartition(".")[2] in CONTEXTS:
                        files |= {target.id}
        if isinstance(node, ast.Call) and (name := writes(node)) is not None:
            place = STREAMS.get(name, STREAMS.get(name.rpartition(".")[2]))
            given = node.args[place : place + 1] if place is not None else []
            if not (given and isinstance(given[0], ast.Name) and given[0].id in files):
                yield function, node.lineno, name
        for child in ast.iter_child_nodes(node):
            yield from walk(child, function, files)

    yield from walk(ast.parse(text), "", frozenset())


def test_only_a_few_functions_write_otherwise() -> None:
    found: dict[str, list[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        module = str(file.relative_to(PACKAGE))
        for function, line, name in direct_writes(file.read_text(encoding="utf-8")):
            place = module if module in APART else f"{module} {function}"
            found.setdefault(place, []).append(f"{file}:{line}: {name}")
    unknown = [line for place, lines in found.items() if place not in APART for line in lines]
    assert not unknown, "\n".join(["use files.whole_file or files.write_text:", *unknown])
    assert not APART.keys() - found.keys(), "these no longer write"


@pytest.mark.parametrize(
    "line",
    [
        "open(p, 'w').write(x)", "open(p, mode='ab')", "p.open('wb')", "p.write_text(x)",
        "Path(p).write_bytes(x)", "torch.save(x, p)", "figure.savefig(p)", "open(p, mode)",
        "shutil.copyfile(a, b)", "json.dump(x, file)",
    ],
)  # fmt: skip
def test_a_direct_write_is_found(line: str) -> None:
    assert list(direct_writes(f"def f():\n    {line}"))
    with_file = f"def f():\n    with whole_file(p) as other:\n        {line}"
    assert list(direct_writes(with_file))


@pytest.mark.parametrize(
    "line",
    [
        "open(p)", "open(p, 'rb')", "p.open(encoding='utf-8')", "write_text(p, x)",
        "with whole_file(p) as file: torch.save(x, file)",
        "with whole_file(p) as file, quiet(): figure.savefig(file, dpi=150)",
    ],
)  # fmt: skip
def test_another_call_is_none(line: str) -> None:
    assert not list(direct_writes(line))
