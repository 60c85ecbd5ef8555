"""Option values that are Python expressions, read without eval()."""

import ast
import operator
import sys
import types
from typing import Any

from fairseq_recur.compat.registry import Function, mend
from fairseq_recur.errors import ConfigError

LONGEST = 2_000
"""The most entries of a list, or bits of a number, that a sum or a product makes."""

LONGEST_TEXT = 200_000
"""The most characters of an option's text, such as the sampling weights of many language pairs."""

CONTAINERS: dict[type, Function] = {ast.Tuple: tuple, ast.List: list, ast.Set: set}
SIGNS: dict[type, Function] = {ast.USub: operator.neg, ast.UAdd: operator.pos}
OPERATIONS: dict[type, Function] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv
}  # fmt: skip


def evaluate(text: str | bytes) -> Any:
    """Return the value of a text of numbers, strings and lists, and of their sums and products.

    fairseq's options are such as "[(512, 3)] * 20"; `ast.literal_eval` does not read products.

    Raises:
        ConfigError: the text contains anything else, or is too long, or makes too long a value
        TypeError: *text* is not text; fairseq relies on this error of eval()
    """
    # The unbound method raises the TypeError.
    text = text.strip() if isinstance(text, bytes) else str.strip(text)
    try:
        _refuse_long(len(text), LONGEST_TEXT)
        return _value(ast.parse(text, mode="eval").body)
    except Exception as error:  # includes what a sum of a string and a number raises
        raise ConfigError(_refusal(text, error)) from None


def evaluate_data(line: str) -> Any:
    """Return the value of a line of data: any literal of any length.

    Raises:
        ConfigError: the line is not a literal
    """
    try:
        return ast.literal_eval(line)
    except Exception as error:
        raise ConfigError(_refusal(line, error)) from None


def _refusal(text: str | bytes, error: Exception) -> str:
    shown = repr(text) if len(text) <= 80 else f"{text[:80]!r}..."
    return (
        f"the value {shown} is not a list, number or text ({str(error)[:200]}). Nothing in it was "
        "executed; correct it, or do not use the checkpoint or data that it is from"
    )


def _value(node: ast.AST) -> Any:
    """Return the value of a part of a text."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return CONTAINERS[type(node)](map(_value, node.elts))
    if isinstance(node, ast.Dict) and None not in node.keys:
        return {_value(k): _value(v) for k, v in zip(node.keys, node.values) if k is not None}
    if isinstance(node, ast.UnaryOp) and type(node.op) in SIGNS:
        return SIGNS[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Mult):  # before a list exists that fills the memory
            _refuse_long(_entries(left) * right if _entries(left) else _entries(right) * left)
        value = OPERATIONS[type(node.op)](left, right)
        _refuse_long(value.bit_length() if isinstance(value, int) else _entries(value))
        return value
    raise ValueError(
        f"it has a {type(node).__name__}, expected only numbers, strings and lists; remove it"
    )


def _entries(value: Any) -> int:
    """Count the entries of a value, nested ones included; a number has none."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, (tuple, list)):
        return len(value) + sum(map(_entries, value))
    return 0


def _refuse_long(length: int, most: int = LONGEST) -> None:
    if length > most:
        raise ValueError(f"its length is {length}, expected at most {most}; shorten it")


evaluated = mend(
    "evaluated options",
    reason="fairseq passes options that hold lists or numbers as text to eval(), even those in a "
    "checkpoint: --encoder-xformers-att-config, the --encoder-layers of fconv",
    until="a fairseq that reads them without eval()",
    required=True,
)

DATA_MODULES = {"fairseq.data.codedataset"}
"""Modules that pass lines of data to eval(), not options."""


@evaluated.action
def replace_eval() -> None:
    """Give fairseq's modules that call eval() a global of this name that runs no code."""
    # A copy is made at once; while a list of the items grows, another import may add modules.
    for name, module in sys.modules.copy().items():
        if name.split(".")[0] in ("fairseq", "fairseq_cli") and type(module) is types.ModuleType:
            replacement = evaluate_data if name in DATA_MODULES else evaluate
            vars(module).setdefault("eval", replacement)
