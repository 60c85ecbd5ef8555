"""Test sets in WMT's SGML: a sentence is a <seg> of a <doc>."""

import html
import re
from collections.abc import Iterable, Iterator

from fairseq_recur.errors import ConfigError

SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)
OPEN = re.compile(r"<seg\b", re.IGNORECASE)


def sentences(lines: Iterable[str], name: str) -> Iterator[str]:
    """The text of each segment, one line each, with characters in the place of entities.

    White space is that of sacreBLEU, which leaves entities for its tokenizers to replace.

    Args:
        lines: of the file
        name: of the file, for the error

    Raises:
        ConfigError: there is no segment, or one that does not end
    """
    text = "".join(lines)
    found = [re.sub(r"\s+", " ", html.unescape(s)).strip() for s in SEGMENT.findall(text)]
    if not found or len(found) != len(OPEN.findall(text)):
        raise ConfigError(
            f"{name} has {len(OPEN.findall(text))} <seg> and {len(found)} of them end: not WMT's"
            " SGML, or cut off; get it again"
        )
    yield from found
