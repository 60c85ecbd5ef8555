"""Reading from the source every message that an error of ours can have.

A message is followed back from where it becomes an error to the texts that it is made of: through
f-strings, variables, helper functions, lists in which problems are gathered, and functions that
yield them. What cannot be followed is Unreadable, so that no message escapes by being written in
another way.
"""

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("fairseq_recur", "scripts", "examples")
# Exceptions of Python that tell a user something where we raise them ...
TELLING = {"ValueError", "ArgumentTypeError", "OSError", "ImportError", "FloatingPointError"}
# ... and those that tell a program: a method to write, an attribute, a key, the end.
SILENT = {"NotImplementedError", "AttributeError", "KeyError", "KeyboardInterrupt", "Stopped"}
ERROR, OURS = "error", "error of ours"
BINDING = (ast.AnnAssign, ast.NamedExpr, ast.For, ast.comprehension, ast.AugAssign)
HANDS_ON = "fairseq_recur/scoring/problems.py"  # what others add to it
MOST = 200  # texts that one message can have


class Unreadable(Exception):
    """What a message says cannot be told from the source."""


@dataclass(frozen=True)
class Message:
    """A text that a user can meet, and where it is raised; [[...]] stands for a value."""

    place: str
    text: str


class Module:
    """A source file, with the parents of its nodes."""

    def __init__(self, place: str, text: str) -> None:
        self.place, self.tree = place, ast.parse(text)
        self.nodes: list[ast.AST] = [self.tree]
        self.parents: dict[ast.AST, ast.AST] = {}
        for node in self.nodes:  # which grows
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
                self.nodes.append(child)
        self.name = place.removesuffix(".py").removeprefix("scripts/").replace("/", ".")
        self.imported: dict[str, str] = {}  # the module behind a name: of a function, or itself
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom):
                for each in node.names:
                    self.imported[each.asname or each.name] = node.module or ""

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """What a node is in, from within."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def catches(self, node: ast.AST, kind: str) -> bool:
        """Is an error of that kind caught by the function that raises it?"""
        for outer in self.above(node):
            if isinstance(outer, ast.FunctionDef):
                return False
            if isinstance(outer, ast.Try) and kind in {called(h.type) for h in outer.handlers}:
                return not any(part in outer.handlers for part in self.above(node))
        return False


def called(node: ast.AST) -> str:
    """The last part of the name that a call calls; empty where it has none."""
    function = node.func if isinstance(node, ast.Call) else node
    return getattr(function, "attr", getattr(function, "id", ""))


@cache
def own(function: ast.AST) -> list[ast.AST]:
    """The nodes of a function without those of the functions within."""
    found = list(ast.iter_child_nodes(function))
    for node in found:  # which grows
        if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
            found += ast.iter_child_nodes(node)
    return found


@cache
def uses(scope: ast.AST) -> dict[str, list[ast.AST]]:
    """Where a name of a function may get a value, or its list a text."""
    found: dict[str, list[ast.AST]] = {}
    for node in own(scope):
        names: list[ast.AST] = []
        if isinstance(node, ast.Assign):
            names = [n for t in node.targets for n in getattr(t, "elts", [t])]
        elif isinstance(node, BINDING):
            names = [node.target]
        elif isinstance(node, ast.Call):
            names = [getattr(node.func, "value", node.func), *node.args]
        for name in {called(each) for each in names} - {""}:
            found.setdefault(name, []).append(node)
    return found


def hole(node: ast.AST) -> str:
    """What stands for a value in a text."""
    return f"[[{ast.unparse(node)}]]"


def project() -> list[Module]:
    """Every Python file that users run."""
    return [
        Module(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "work" not in path.relative_to(ROOT).parts
    ]


Read = Callable[[Module, ast.AST], list[str]]


class Reader:
    """Follows messages back through the modules of a project."""

    def __init__(self, modules: Sequence[Module]) -> None:
        self.modules = modules
        self.functions: dict[str, list[tuple[Module, ast.FunctionDef]]] = {}
        self.calls: dict[str, list[tuple[Module, ast.Call]]] = {}
        self.ours: set[str] = set()
        self.read: dict[tuple[str, ast.AST], list[str]] = {}
        for module in modules:
            for node in module.nodes:
                if isinstance(node, ast.FunctionDef):
                    self.functions.setdefault(node.name, []).append((module, node))
                elif isinstance(node, ast.Call):
                    self.calls.setdefault(called(node), []).append((module, node))
                elif isinstance(node, ast.ClassDef) and node.name not in SILENT:
                    if any(called(base).endswith(("Error", "Exception")) for base in node.bases):
                        self.ours.add(node.name)

    def messages(self) -> Iterator[Message]:
        """All messages; Unreadable if one cannot be followed."""
        for module in self.modules:
            for node in module.nodes:
                if self.tells(module, node):
                    place = f"{module.place}:{node.lineno}"
                    try:
                        found = self.texts(module, node.args[0]) if node.args else []
                    except Unreadable as error:
                        raise Unreadable(f"{place}: {ast.unparse(node)}: {error}") from error
                    texts = [text for text in dict.fromkeys(found) if text]
                    if not texts:
                        raise Unreadable(f"{place}: {ast.unparse(node)} says nothing")
                    yield from (Message(place, text) for text in texts)

    def tells(self, module: Module, node: ast.AST) -> bool:
        """Does this node give a message to a user? Unreadable if it raises what we do not know."""
        if isinstance(node, ast.Raise) and node.exc is not None:
            name = called(node.exc)
            if name not in self.ours | TELLING | SILENT | {"__context__"}:
                raise Unreadable(f"{module.place}:{node.lineno}: what is {ast.unparse(node)}?")
        if not isinstance(node, ast.Call):
            return False
        name, receiver = called(node), called(getattr(node.func, "value", node.func))
        if module.place == HANDS_ON:
            return False
        if name in TELLING:
            return isinstance(module.parents[node], ast.Raise) and not module.catches(node, name)
        if name == "exit":
            return bool(node.args) and not isinstance(node.args[0], (ast.Call, ast.Name))
        return (
            name in self.ours
            or (receiver, name) == ("parser", "error")
            or (name == "add" and "Problems" in module.imported)
        )

    def texts(self, module: Module, node: ast.AST) -> list[str]:
        """The texts that an expression can be."""
        return self.follow(self._texts, module, node)

    def items(self, module: Module, node: ast.AST) -> list[str]:
        """The texts that can be in a list, or that an iterator can yield."""
        return self.follow(self._items, module, node)

    def follow(self, read: Read, module: Module, node: ast.AST) -> list[str]:
        """Read an expression once; one that leads back to itself adds nothing."""
        key = (read.__name__, node)
        if key not in self.read:
            self.read[key] = []
            try:
                self.read[key] = list(dict.fromkeys(read(module, node)))
            except Unreadable:
                del self.read[key]
                raise
            if len(self.read[key]) > MOST:
                raise Unreadable(f"{ast.unparse(node)} can be more than {MOST} texts")
        return self.read[key]

    def _texts(self, module: Module, node: ast.AST) -> list[str]:
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, type(None))):
            return [] if node.value is None else [node.value]
        if isinstance(node, ast.JoinedStr):
            parts = [self.part(module, value) for value in node.values]
            return ["".join(chosen) for chosen in product(*parts)]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            sides = self.texts(module, node.left), self.texts(module, node.right)
            return [left + right for left, right in product(*sides)]
        if isinstance(node, ast.IfExp):
            return self.texts(module, node.body) + self.texts(module, node.orelse)
        if isinstance(node, ast.BoolOp):
            return [text for value in node.values for text in self.texts(module, value) if text]
        if isinstance(node, ast.Subscript):
            return self.items(module, node.value)
        if isinstance(node, ast.Name):
            return self.named(module, node, self.texts)
        if isinstance(node, ast.Call):
            return self.result(module, node)
        raise Unreadable(f"what is {ast.unparse(node)}?")

    def part(self, module: Module, node: ast.AST) -> list[str]:
        """The texts that a part of an f-string can be, or the hole for a value."""
        if isinstance(node, ast.FormattedValue):
            node = node.value
            if isinstance(node, ast.Call) and called(node) == "join" and "\n" not in hole(node):
                return [hole(node)]
            if isinstance(node, ast.Subscript):
                return [hole(node)]
        try:
            return self.texts(module, node) or [hole(node)]
        except Unreadable:
            return [hole(node)]

    def result(self, module: Module, node: ast.Call) -> list[str]:
        """The texts that a call returns."""
        name, receiver = called(node), getattr(node.func, "value", None)
        if name == "str" and isinstance(node.args[0], ast.Name):
            return self.texts(module, node.args[0])
        if name == "join" and isinstance(node.args[0], ast.List):  # a headline, and lines
            head, *lines = (self.item(module, each) for each in node.args[0].elts)
            under = [line for each in lines for line in each] or [""]
            return [f"{first}\n- {line}" for first in head for line in under]
        if name == "join":
            return self.items(module, node.args[0])
        if name == "replace":
            old, new = (ast.literal_eval(each) for each in node.args)
            return [text.replace(old, new) for text in self.texts(module, receiver)]
        return [text for there, each in self.defined(module, node)
                for text in self.returned(there, each, self.texts)]  # fmt: skip

    def defined(self, module: Module, node: ast.Call) -> list[tuple[Module, ast.FunctionDef]]:
        """The function of ours that a call means."""
        found = self.meant(module, node)
        if not found:
            raise Unreadable(f"what is {ast.unparse(node)}?")
        return found

    def meant(self, module: Module, node: ast.Call) -> list[tuple[Module, ast.FunctionDef]]:
        """The same, of the module itself or imported; nothing if it is none of ours."""
        known = self.functions.get(called(node), [])
        receiver = called(getattr(node.func, "value", node.func))
        source = module.imported.get(receiver)
        places = {source, f"{source}.{receiver}", None if source else module.name}
        found = [each for each in known if each[0].name in places]
        is_method = isinstance(node.func, ast.Attribute) and len(known) == 1
        return found or (known if is_method else [])

    def returned(self, module: Module, function: ast.FunctionDef, read: Read) -> list[str]:
        """What a function returns or yields, one by one."""
        found: list[str] = []
        for node in own(function):
            if isinstance(node, ast.Yield) and node.value is not None:
                found += self.texts(module, node.value)
            elif isinstance(node, ast.YieldFrom):
                found += self.items(module, node.value)
            elif isinstance(node, ast.Return) and node.value is not None:
                if not (isinstance(node.value, ast.Constant) and node.value.value is None):
                    found += read(module, node.value)
        return found

    def _items(self, module: Module, node: ast.AST) -> list[str]:
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return [text for item in node.elts for text in self.item(module, item)]
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            return self.texts(module, node.elt)
        if isinstance(node, ast.IfExp):
            return self.items(module, node.body) + self.items(module, node.orelse)
        if isinstance(node, ast.BoolOp):
            return [text for value in node.values for text in self.items(module, value)]
        if isinstance(node, ast.BinOp):
            return self.items(module, node.left) + self.items(module, node.right)
        if isinstance(node, ast.Subscript):
            return self.items(module, node.value)
        if isinstance(node, ast.Name):
            return self.named(module, node, self.items)
        if isinstance(node, ast.Call) and called(node) in ("list", "sorted", "fromkeys", "map"):
            return self.items(module, node.args[-1]) if node.args else []
        if isinstance(node, ast.Call):
            return [text for there, each in self.defined(module, node)
                    for text in self.returned(there, each, self.items)]  # fmt: skip
        raise Unreadable(f"what is in {ast.unparse(node)}?")

    def item(self, module: Module, node: ast.AST) -> list[str]:
        """The texts that an element of a list can be."""
        if isinstance(node, ast.Starred):
            return self.items(module, node.value)
        return self.texts(module, node)

    def named(self, module: Module, node: ast.Name, read: Read) -> list[str]:
        """What a variable, a parameter, a caught error or a constant can be."""
        for scope in module.above(node):
            if isinstance(scope, ast.ExceptHandler) and scope.name == node.id:
                return [f"[[{OURS if self.from_us(module, scope) else ERROR}]]"]
            if isinstance(scope, (ast.FunctionDef, ast.Module)):
                values = list(self.assigned(module, scope, node.id, read))
                arguments = getattr(scope, "args", None)
                names = [a.arg for a in arguments.args] if arguments else []
                if node.id in names:
                    values.append(self.given(scope, names.index(node.id), read))
                if values:
                    return [text for value in values for text in value]
        for other in self.modules:  # an imported constant
            if other.name == module.imported.get(node.id):
                values = list(self.assigned(other, other.tree, node.id, read))
                return [text for value in values for text in value]
        raise Unreadable(f"what is {node.id}?")

    def assigned(
        self, module: Module, scope: ast.AST, name: str, read: Read
    ) -> Iterator[list[str]]:
        """What becomes the value of a name, or is put into the list of that name."""
        for node in uses(scope).get(name, []):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    value = element(target, node.value, name)
                    if value is not None:
                        yield read(module, value)
            elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and called(node.target) == name:
                if node.value is not None:
                    yield read(module, node.value)
            elif isinstance(node, (ast.For, ast.comprehension)) and called(node.target) == name:
                yield self.items(module, node.iter)
            elif isinstance(node, ast.AugAssign) and called(node.target) == name:
                yield read(module, node.value)
            elif isinstance(node, ast.Call):
                yield from self.put(module, node, name)

    def put(self, module: Module, node: ast.Call, name: str) -> Iterator[list[str]]:
        """What a call puts into the list of that name: as its method, or given the list."""
        if called(getattr(node.func, "value", node.func)) == name:
            if called(node) == "append":
                yield self.texts(module, node.args[0])
            elif called(node) == "extend":
                yield self.items(module, node.args[0])
        for index, argument in enumerate(node.args):
            if called(argument) == name and isinstance(argument, ast.Name):
                for there, each in self.meant(module, node):
                    parameter = each.args.args[index].arg
                    for inner in own(each):
                        if isinstance(inner, ast.Call) and is_append(inner, parameter):
                            yield self.texts(there, inner.args[0])

    def given(self, function: ast.FunctionDef, index: int, read: Read) -> list[str]:
        """What the callers of a function give as one of its arguments."""
        found: list[str] = []
        is_method = function.args.args[0].arg == "self"
        for module, call in self.calls.get(function.name, []):
            by_name = {word.arg: word.value for word in call.keywords}
            place = index - is_method
            if place < len(call.args):
                found += read(module, call.args[place])
            elif function.args.args[index].arg in by_name:
                found += read(module, by_name[function.args.args[index].arg])
        return found

    def from_us(self, module: Module, handler: ast.ExceptHandler) -> bool:
        """Is a caught error one whose message is ours, and read where it is raised?"""
        kinds = getattr(handler.type, "elts", [handler.type])
        if all(called(kind) in self.ours for kind in kinds):
            return True
        if [called(kind) for kind in kinds] != ["ValueError"]:
            return False
        inside = [n for part in module.parents[handler].body for n in ast.walk(part)]
        functions = [f for n in inside if isinstance(n, ast.Call)
                     for _, f in self.meant(module, n)]  # fmt: skip
        return any(
            isinstance(n, ast.Raise) and called(n.exc) == "ValueError"
            for function in functions
            for n in own(function)
        )


def element(target: ast.AST, value: ast.AST, name: str) -> ast.AST | None:
    """What of a value an assignment gives to a name; None if nothing."""
    if isinstance(target, ast.Name):
        return value if target.id == name else None
    if isinstance(target, ast.Tuple):
        values: Sequence[ast.AST] = getattr(value, "elts", [value] * len(target.elts))
        for inner, part in zip(target.elts, values):
            if called(inner) == name:
                return part
    return None


def is_append(node: ast.Call, name: str) -> bool:
    """Does the call add to the list of that name?"""
    return called(node) == "append" and called(getattr(node.func, "value", node.func)) == name
