"""Imports point one way: ops <- modules <- models <- tasks; importing only registers."""

import ast
from collections.abc import Iterator
from pathlib import Path

import fairseq_recur

ROOT = Path(fairseq_recur.__file__).parent

# The other layers of the package that each layer may import.
MAY_IMPORT = {
    "version": set(),
    "errors": set(),
    "files": {"errors"},
    "locks": set(),
    "logs": set(),
    "compat": {"errors", "files"},
    "integration": {"compat", "errors"},
    "training_guard": {"compat", "errors", "files", "locks"},
    "search": {"errors"},
    "text": {"errors"},
    "ops": set(),
    "scoring": {"errors", "logs"},
    "modules": {"ops", "compat", "errors"},
    "models": {"modules", "ops", "compat", "integration", "errors"},
    "optim": {"compat", "errors"},
    "conversion": {"compat", "errors"},
    "loading": {"models", "modules", "compat", "errors", "logs"},
    "inspection": {"loading", "models", "modules", "compat", "errors"},
    "pretrained": {
        "loading",
        "conversion",
        "integration",
        "models",
        "inspection",
        "compat",
        "errors",
        "logs",
        "search",
        "text",
    },
    "probing": {
        "loading",
        "text",
        "models",
        "modules",
        "ops",
        "compat",
        "scoring",
        "errors",
        "files",
    },
    "tasks": {"models", "modules", "ops", "scoring", "compat", "errors", "search", "text"},
    "scorers": {"scoring", "errors"},
    "criterions": {"models", "modules", "ops", "compat", "errors"},
    "experiments": {"scoring", "errors", "files", "locks"},
    "planning": {"errors"},
    "plotting": {"experiments", "inspection", "errors", "files"},
    "cli": {
        "experiments",
        "files",
        "locks",
        "loading",
        "text",
        "models",
        "modules",
        "ops",
        "compat",
        "errors",
        "optim",
        "scoring",
        "version",
        "tasks",
        "conversion",
        "inspection",
        "probing",
        "planning",
        "plotting",
        "pretrained",
        "search",
    },
    "__main__": {"cli"},
    "__init__": {
        "integration",
        "training_guard",
        "pretrained",
        "compat",
        "models",
        "optim",
        "version",
        "tasks",
        "criterions",
        "scorers",
    },
}
# Packages that a layer must not import.
MAY_NOT_IMPORT = {"ops": {"fairseq"}, "scoring": {"fairseq", "torch"}}


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names that a module imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def test_imports_point_one_way() -> None:
    wrong, seen = [], set()
    for path, tree in sources():
        layer = layer_of(path)
        seen.add(layer)
        for name in imports(tree):
            first, *rest = name.split(".")
            if first == "fairseq_recur" and rest:
                if rest[0] not in MAY_IMPORT[layer] | {layer}:
                    wrong.append(f"{path.relative_to(ROOT)} imports {name}")
            elif first.replace("_cli", "") in MAY_NOT_IMPORT.get(layer, set()):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []
    assert {"ops", "modules", "models", "compat", "cli", "scoring"} <= seen


def test_compiled_forms_are_independent() -> None:
    """Neither the C code nor the Triton kernels read the other."""
    forms = {"native", "triton"}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path, tree in sources()
        for own in forms & set(path.relative_to(ROOT).parts[1:2])
        for name in imports(tree)
        if f"{name}.".startswith(tuple(f"fairseq_recur.ops.{o}." for o in forms - {own}))
    ]
    assert wrong == []


def test_naive_is_imported_by_tests_only() -> None:
    users = [
        path
        for path, tree in sources()
        if "naive" not in path.parts
        and any(n.startswith("fairseq_recur.ops") and "naive" in n for n in imports(tree))
    ]
    assert users == []


def test_triton_is_imported_on_use() -> None:
    """At the top of a module only by the kernels, and these by one another."""
    kernels = {p for p, _ in sources() if p.parts[-2:-1] == ("triton",) and "_kernels" in p.stem}
    assert kernels
    eager = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path, tree in sources()
        if path not in kernels
        for node in tree.body
        for name in (imports(node) if isinstance(node, (ast.Import, ast.ImportFrom)) else ())
        if name.split(".")[0] == "triton" or "ops.triton" in name and "_kernels" in name
    ]
    assert eager == []


def test_versions_are_known_to_compat_only() -> None:
    """No other part of the package asks which fairseq or torch is installed."""
    asks: set[str] = set()
    for path, _ in sources():
        text = path.read_text(encoding="utf-8")
        if layer_of(path) not in {"compat", "cli"}:
            if "torch.__version__" in text or "fairseq.__version__" in text:
                asks.add(str(path))
    assert asks == set()


def test_modules_do_nothing_at_import_but_define_and_register() -> None:
    """Top-level statements: definitions, constants, imports; calls only to register."""
    allowed_calls = {
        "register_presets", "compat.apply", "LIBRARY.define",
        "LIBRARY.impl", "torch.library.register_fake",
    }  # fmt: skip
    allowed_tests = {"TYPE_CHECKING", "not _starts_command()"}  # the latter registers
    busy = []
    for path, tree in sources():
        if path.name == "__main__.py":
            continue
        for node in tree.body:
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                if ast.unparse(node.value.func) not in allowed_calls:
                    busy.append(f"{path.relative_to(ROOT)}:{node.lineno}")
            for_types = isinstance(node, ast.If) and ast.unparse(node.test) in allowed_tests
            if isinstance(node, (ast.For, ast.While, ast.With, ast.If, ast.Try)) and not for_types:
                busy.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert busy == []
