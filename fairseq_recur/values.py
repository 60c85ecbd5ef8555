"""What a text that is the value of an option stands for, in place of fairseq's eval()."""

import ast
import operator
from collections.abc import Callable
from typing import Any

from fairseq_recur.errors import ConfigError

LONGEST = 2_000
"""Characters of a text, and entries of the value that it stands for."""

CONTAINERS: dict[type, Callable] = {ast.Tuple: tuple, ast.List: list, ast.Set: set}
SIGNS: dict[type, Callable] = {ast.USub: operator.neg, ast.UAdd: operator.pos}
OPERATIONS: dict[type, Callable] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv
}  # fmt: skip


def evaluate(text: Any) -> Any:
    """What a text of numbers, texts, lists and their sums and products stands for.

    fairseq's options are such as "[(512, 3)] * 20"; `ast.literal_eval` reads no products.

    Raises:
        ConfigError: the text asks for anything else, or for more than `LONGEST` entries
    """
    try:
        _refuse_long(len(text))
        return _value(ast.parse(text.strip(), mode="eval").body)
    except Exception as error:  # also what a sum of a text and a number raises
        shown = text if len(str(text)) <= 80 else f"{str(text)[:80]}..."
        raise ConfigError(
            f"the value {shown!r} of an option is no list, number or text ({str(error)[:200]}). "
            "Nothing in it was executed; correct it, or use no checkpoint whose configuration has it"
        ) from None


def _value(node: ast.AST) -> Any:
    """What a part of a text stands for."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return CONTAINERS[type(node)](map(_value, node.elts))
    if isinstance(node, ast.Dict):
        return {_value(key): _value(value) for key, value in zip(node.keys, node.values)}
    if isinstance(node, ast.UnaryOp) and type(node.op) in SIGNS:
        return SIGNS[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Mult):  # before there is a list that fills the memory
            _refuse_long(_entries(left) * right if _entries(left) else _entries(right) * left)
        value = OPERATIONS[type(node.op)](left, right)
        _refuse_long(_entries(value))
        return value
    raise ValueError(f"it has a {type(node).__name__}, expected numbers and lists; leave it out")


def _entries(value: Any) -> int:
    """How many entries a value has, and they have; a number has none."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, (tuple, list)):
        return len(value) + sum(map(_entries, value))
    return 0


def _refuse_long(entries: int) -> None:
    if entries > LONGEST:
        raise ValueError(f"its length is {entries}, expected at most {LONGEST}; shorten it")
