"""Collect the text of every error message from the source code.

A message is followed from the statement that raises it back to the strings that it consists of:
through variables, parameters, lists of problems, and functions that return or yield text. In the
collected text, ``[[expression]]`` marks the place of a value. A message that cannot be followed
raises ``Unreadable``, so none escapes the checks by being written in an unusual way.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("fairseq_recur", "scripts", "examples", "benchmarks")
# Exceptions of Python that address a user where the project raises them.
FOR_USERS = {"ValueError", "ArgumentTypeError", "OSError", "ImportError", "FloatingPointError"}
# Exceptions that address a program, not a user; no message is expected of them.
# Of these a user sees at most what another message quotes; torch refuses a file by the last one.
FOR_PROGRAMS = set(
    "NotImplementedError AttributeError KeyError KeyboardInterrupt Stopped UnpicklingError "
    "_Passed".split()
)
OWN_ERROR = "own error"  # a caught exception of ours: its message is checked where it is raised
# It hands on what others added to it, which is read where they add it.
HANDS_ON = "fairseq_recur/errors.py"
Scope = ast.FunctionDef | ast.Module


class Unreadable(Exception):
    """The text of a message cannot be determined from the source."""


@dataclass(frozen=True)
class Message:
    """One text that a user can see, and the line that raises it."""

    place: str
    text: str


@dataclass(frozen=True)
class Parameter:
    """An argument of a function: its texts are those that the callers pass."""

    function: ast.FunctionDef
    index: int


@dataclass(frozen=True)
class Passed:
    """A list that is passed to a function, which may append to it."""

    call: ast.Call
    index: int


def project() -> dict[str, str]:
    """Return the source of every Python file that users run, by its path."""
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in paths
        if "work" not in path.relative_to(ROOT).parts
    }


def last_name(node: ast.AST | None) -> str:
    """Return the last part of a dotted name or of the name that a call calls, or ""."""
    node = node.func if isinstance(node, ast.Call) else node
    return getattr(node, "attr", getattr(node, "id", ""))


class Reader:
    """Follows messages through the source files of a project."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.places: dict[Scope, str] = {}
        self.scope_of: dict[ast.AST, Scope] = {}
        self.bound: dict[tuple[Scope, str], list[ast.AST | Parameter | Passed]] = {}
        self.constants: dict[str, list[ast.AST]] = {}
        self.functions: dict[str, list[ast.FunctionDef]] = {}
        self.results: dict[ast.FunctionDef, list[ast.AST]] = {}
        self.calls: dict[str, list[ast.Call]] = {}
        self.own_errors: set[str] = set()
        self.imported: dict[str, dict[str, str]] = {}
        self.tried: dict[ast.ExceptHandler, list[ast.stmt]] = {}
        self.caught: set[ast.AST] = set()
        self.known: dict[ast.AST, set[str]] = {}
        for place, text in sources.items():
            tree, self.imported[place] = ast.parse(text), {}
            self.enter(tree, tree, place)

    def enter(self, node: ast.AST, scope: Scope, place: str) -> None:
        """Record what a node and the nodes within it define, bind and call."""
        self.scope_of[node] = scope
        self.places[scope] = place
        if isinstance(node, ast.FunctionDef):
            self.functions.setdefault(node.name, []).append(node)
            self.places[node] = place
            for index, argument in enumerate(node.args.args):
                self.bind(node, argument.arg, Parameter(node, index))
            scope_within: Scope = node
        else:
            scope_within = scope
        self.record(node, scope)
        for child in ast.iter_child_nodes(node):
            self.enter(child, scope_within, place)

    def record(self, node: ast.AST, scope: Scope) -> None:
        """Record the bindings of one node."""
        match node:
            case ast.ClassDef(name=name, bases=bases):
                kinds = {last_name(base) for base in bases}
                if name not in FOR_PROGRAMS and any(
                    k.endswith(("Error", "Exception")) for k in kinds
                ):
                    self.own_errors.add(name)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self.bind_target(scope, target, value)
            case (
                ast.AnnAssign(value=value) | ast.NamedExpr(value=value) | ast.AugAssign(value=value)
            ):
                self.bind_target(scope, node.target, value)
            case ast.For() | ast.comprehension():
                self.bind_target(scope, node.target, node.iter)
            case ast.Try(body=body, handlers=handlers):
                self.tried.update((handler, body) for handler in handlers)
                kinds = {last_name(handler.type) for handler in handlers}
                within = [inner for statement in body for inner in ast.walk(statement)]
                self.caught |= {
                    n for n in within if isinstance(n, ast.Raise) and last_name(n.exc) in kinds
                }
            case ast.ExceptHandler(name=str(name)):
                self.bind(scope, name, node)
            case ast.ImportFrom(module=module, names=names):
                path = (module or "").replace(".", "/") + ".py"
                self.imported[self.places[scope]] |= {
                    each.asname or each.name: path for each in names
                }
            case ast.Return(value=value) | ast.Yield(value=value) | ast.YieldFrom(value=value):
                if value is not None and isinstance(scope, ast.FunctionDef):
                    self.results.setdefault(scope, []).append(value)
            case ast.Call():
                self.calls.setdefault(last_name(node), []).append(node)
                for index, argument in enumerate(node.args):
                    if isinstance(argument, ast.Name):
                        self.bind(scope, argument.id, Passed(node, index))
                if last_name(node) in ("append", "extend") and isinstance(node.func, ast.Attribute):
                    self.bind(scope, last_name(node.func.value), node.args[0])

    def bind(self, scope: Scope, name: str, value: ast.AST | Parameter | Passed) -> None:
        """Record that a name of a scope can have a value."""
        self.bound.setdefault((scope, name), []).append(value)
        if isinstance(scope, ast.Module) and isinstance(value, ast.AST):
            self.constants.setdefault(name, []).append(value)

    def bind_target(self, scope: Scope, target: ast.AST, value: ast.AST | None) -> None:
        """Record an assignment; of tuples, name by name."""
        targets = getattr(target, "elts", [target])
        values = getattr(value, "elts", []) if len(targets) > 1 else [value]
        if len(values) != len(targets):
            values = [value] * len(targets)
        for each, part in zip(targets, values):
            if part is not None:
                self.bind(scope, last_name(each), part)

    def messages(self) -> Iterator[Message]:
        """Yield all messages; ``Unreadable`` if one cannot be followed."""
        for node, scope in self.scope_of.items():
            if self.places[scope] == HANDS_ON:
                continue
            argument = self.message_of(node)
            if argument is not None:
                place = f"{self.places[scope]}:{node.lineno}"
                try:
                    texts = self.texts(argument)
                except Unreadable as error:
                    raise Unreadable(f"{place}: {ast.unparse(node)}: {error}") from error
                if not texts:
                    raise Unreadable(f"{place}: {ast.unparse(node)}: no text found")
                yield from (Message(place, text) for text in sorted(texts))

    def message_of(self, node: ast.AST) -> ast.AST | None:
        """Return the expression of a message that this node gives to a user."""
        if isinstance(node, ast.Raise) and node.exc is not None and node not in self.caught:
            name = last_name(node.exc)
            if isinstance(node.exc, ast.Call) and name not in FOR_PROGRAMS | self.own_errors:
                if name not in FOR_USERS or not node.exc.args:
                    raise Unreadable(f"{ast.unparse(node)}: an unknown exception, or no message")
                return node.exc.args[0]
            if not isinstance(node.exc, ast.Call) and name not in FOR_PROGRAMS | {"__context__"}:
                kinds = self.bound.get((self.scope_of[node], name), [])
                if not any(isinstance(kind, ast.ExceptHandler) for kind in kinds):
                    raise Unreadable(f"{ast.unparse(node)}: what does it raise?")
        if isinstance(node, ast.Call):
            name, receiver = last_name(node), last_name(getattr(node.func, "value", None))
            if name in self.own_errors:
                if not node.args:
                    raise Unreadable(f"{ast.unparse(node)}: no message")
                return node.args[0]
            if name == "refuse" and "refuse" in self.imported[self.places[self.scope_of[node]]]:
                heading = ast.BinOp(node.args[0], ast.Add(), ast.Constant(": "))
                return ast.BinOp(heading, ast.Add(), node.args[1])
            reported = (
                name == "add" and "Problems" in self.imported[self.places[self.scope_of[node]]]
            )
            if (receiver in ("parser", "self") and name == "error") or reported:
                return node.args[0]
            if (receiver, name) == ("sys", "exit") and node.args:
                status = (ast.Call, ast.Name, ast.BinOp)
                return None if isinstance(node.args[0], status) else node.args[0]
        return None

    def texts(self, node: ast.AST) -> set[str]:
        """Return the texts of an expression; one that leads back to itself adds nothing."""
        if node not in self.known:
            self.known[node] = set()
            try:
                self.known[node] = self.read(node)
            except Unreadable:
                del self.known[node]
                raise
        return self.known[node]

    def read(self, node: ast.AST) -> set[str]:
        """Return the texts that an expression, or an element of it, can be."""
        match node:
            case ast.Constant(value=value):
                return {value} if isinstance(value, str) and any(map(str.isalpha, value)) else set()
            case ast.JoinedStr(values=values):
                return variants([self.part(value) for value in values])
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return variants([self.part(side) for side in (left, right)])
            case ast.Name(id=name):
                return self.named(node, name)
            case ast.Call():
                return self.called(node)
            case ast.IfExp(body=body, orelse=orelse):
                return self.texts(body) | self.texts(orelse)
            case ast.Subscript(value=value) | ast.Starred(value=value):
                return self.texts(value)
            case ast.ListComp(elt=elt) | ast.GeneratorExp(elt=elt):
                return self.texts(elt)
            case ast.Dict(values=values) | ast.BoolOp(values=values):
                return self.all_texts(values)
            case ast.List(elts=values) | ast.Tuple(elts=values) | ast.Set(elts=values):
                return self.all_texts(values)
        raise Unreadable(f"what is {ast.unparse(node)}?")

    def all_texts(self, nodes: Iterable[ast.AST]) -> set[str]:
        """Return the texts of several expressions."""
        return {text for node in nodes for text in self.texts(node)}

    def part(self, node: ast.AST) -> set[str]:
        """Return the texts of a part of a string, or the mark of a value."""
        if isinstance(node, ast.Constant):
            return {str(node.value)}
        value = node.value if isinstance(node, ast.FormattedValue) else node
        mark = {f"[[{ast.unparse(value)}]]"}
        if isinstance(value, ast.Subscript):
            return mark
        try:
            return self.texts(value) or mark
        except Unreadable:
            if last_name(value) == "join" and "\\n" in ast.unparse(value):  # whole messages
                raise
            return mark

    def named(self, node: ast.AST, name: str) -> set[str]:
        """Return the texts that a variable, a parameter or a constant can be."""
        scope = self.scope_of[node]
        while (scope, name) not in self.bound and not isinstance(scope, ast.Module):
            scope = self.scope_of[scope]
        values = self.bound.get((scope, name)) or self.constants.get(name)
        if not values:
            raise Unreadable(f"what is {name}?")
        found: set[str] = set()
        for value in values:
            if isinstance(value, ast.ExceptHandler):
                found.add(f"[[{OWN_ERROR if self.is_own(value) else name}]]")
            elif isinstance(value, Parameter):
                found |= self.all_texts(self.arguments(value))
            elif isinstance(value, Passed):
                for function in self.functions_of(value.call):
                    parameters = function.args.args[value.index : value.index + 1]
                    for inner in (
                        self.bound.get((function, parameters[0].arg), []) if parameters else []
                    ):
                        if isinstance(inner, ast.AST):
                            found |= self.texts(inner)
            else:
                found |= self.texts(value)
        return found

    def is_own(self, handler: ast.ExceptHandler) -> bool:
        """Does a handler catch exceptions whose messages are read where they are raised?"""
        kinds = {last_name(kind) for kind in getattr(handler.type, "elts", [handler.type])}
        if kinds <= self.own_errors:
            return True
        inside = [node for statement in self.tried[handler] for node in ast.walk(statement)]
        functions = {f for n in inside if isinstance(n, ast.Call) for f in self.functions_of(n)}
        return kinds == {"ValueError"} and any(
            isinstance(node, ast.Raise) and last_name(node.exc) == "ValueError"
            for function in functions
            for node in ast.walk(function)
        )

    def arguments(self, parameter: Parameter) -> Iterator[ast.AST]:
        """Yield what the callers of a function pass for one of its parameters."""
        names = [argument.arg for argument in parameter.function.args.args]
        place = parameter.index - (names[0] == "self")
        for call in self.calls.get(parameter.function.name, []):
            if 0 <= place < len(call.args):
                yield call.args[place]
            yield from (k.value for k in call.keywords if k.arg == names[parameter.index])

    def functions_of(self, call: ast.Call) -> list[ast.FunctionDef]:
        """Return the functions of a call's name: of its file, of an imported one, else of any."""
        name, place = last_name(call), self.places[self.scope_of[call]]
        imported = self.imported[place].get(name, "-")
        found = self.functions.get(name, [])
        own = [each for each in found if self.places[each] == place]
        return own or [each for each in found if self.places[each].endswith(imported)] or found

    def called(self, node: ast.Call) -> set[str]:
        """Return the texts that a call returns or yields."""
        functions = self.functions_of(node)
        if functions:
            results = [result for each in functions for result in self.results.get(each, [])]
            return self.all_texts(results)
        if last_name(node) in ("str", "join", "list", "sorted", "fromkeys", "map"):
            if node.args and isinstance(node.args[0], ast.List):  # a headline, and lines below it
                head, *lines = (self.texts(element) for element in node.args[0].elts)
                return variants([head, {"\n- "}, {text for line in lines for text in line} or {""}])
            return self.texts(node.args[-1]) if node.args else set()
        if last_name(node) == "replace":
            return self.texts(node.func.value)
        raise Unreadable(f"what is {ast.unparse(node)}?")


def variants(parts: list[set[str]]) -> set[str]:
    """Join parts, each with every one of its alternatives at least once."""
    ordered = [sorted(part) for part in parts]
    if not all(ordered):
        return set()
    longest = max(map(len, ordered), default=0)
    return {"".join(part[i % len(part)] for part in ordered) for i in range(longest)}
