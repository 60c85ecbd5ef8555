"""A text with its summary."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    """A text with its summary, as found; line breaks and all.

    Attributes:
        split: train, valid or test
        name: what the data set calls it
        source: the text
        summary: its summary
    """

    split: str
    name: str
    source: str
    summary: str
