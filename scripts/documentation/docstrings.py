"""For the site: a docstring's line for several arguments is one for each of them.

An extension of griffe, which reads the docstrings; see mkdocs.yml. ``key, value: (B, S, C)`` is
how this project writes it, and griffe knows one name per line.
"""

import re
from typing import Any

import griffe

SHARED = re.compile(r"(?P<indent> +)(?P<names>\w+(, \w+)+): (?P<text>.*)")


class SharedArguments(griffe.Extension):
    """Write such lines out, in the docstrings of everything that is read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called by griffe for each object, once it is complete."""
        if obj.docstring is not None:
            obj.docstring.value = written_out(obj.docstring.value)


def written_out(docstring: str) -> str:
    """Repeat a line about several arguments, with its continuation lines, for each of them."""
    lines: list[str] = []
    rest = docstring.splitlines()
    while rest:
        shared = SHARED.fullmatch(rest[0])
        if shared is None:
            lines.append(rest.pop(0))
            continue
        rest.pop(0)
        deeper = shared["indent"] + " "
        text = [shared["text"]]
        while rest and rest[0].startswith(deeper):
            text.append(rest.pop(0))
        for name in shared["names"].split(", "):
            lines += [f"{shared['indent']}{name}: {text[0]}", *text[1:]]
    return "\n".join(lines)
