"""Which recurrence encoding matrix each head has."""

from collections.abc import Mapping
from dataclasses import dataclass

KINDS = (
    "regular", "cosine", "sine", "dilated regular", "dilated cosine", "dilated sine",
)  # fmt: skip
"""The kinds of heads, in the order of ``--rsa-heads``."""

ALL = "all"
"""In place of a number of heads: as many as the layer has."""

LARGEST = 10**6
"""A dilation, and an initial value of a curve that is flat long before."""


@dataclass(frozen=True)
class RemHeads:
    """The numbers (k1, ..., k6) of heads of each kind, and the dilations of the dilated ones.

    Heads come in the order of `KINDS`. Huang et al. 2023, section 3, "Hyperparameters".
    """

    counts: tuple[int, ...]
    dilations: tuple[int, ...]

    @property
    def total(self) -> int:
        """H', the number of heads that have a matrix."""
        return sum(self.counts)

    @property
    def all_dilations(self) -> tuple[int, ...]:
        """The dilation of each head, 1 where there is none."""
        return (1,) * sum(self.counts[:3]) + self.dilations


def parse_rem_heads(heads: str, dilations: str, total: int) -> RemHeads:
    """Read ``--rsa-heads`` and ``--rsa-dilations``.

    Args:
        heads: six numbers with commas between, "all" for *total*; "" for as many regular heads
            as there are
        dilations: a number for each dilated head, with commas between, or one number for all
        total: H, the heads of the layer

    Raises:
        ValueError: if they do not fit each other or *total*; the message says what to do
    """
    counts = numbers(heads, "--rsa-heads", {ALL: total}) if heads else (total, 0, 0, 0, 0, 0)
    factors = numbers(dilations, "--rsa-dilations", {}) if dilations else ()
    if len(counts) != 6 or min(counts) < 0:
        raise ValueError(
            f"--rsa-heads {heads}: six numbers are needed, of {', '.join(KINDS)} heads"
        )
    if not 1 <= sum(counts) <= total:
        raise ValueError(
            f"--rsa-heads {heads}: {sum(counts)} heads, but the layer has {total}; "
            f"choose 1 to {total}"
        )
    if len(factors) == 1 and any(counts[3:]):
        factors *= sum(counts[3:])
    if len(factors) != sum(counts[3:]):
        raise ValueError(
            f"--rsa-dilations {dilations or '(none)'}: {len(factors)} numbers for "
            f"{sum(counts[3:])} dilated heads (the last three of --rsa-heads {heads}); "
            "give one for each, or one number for all"
        )
    if factors and not 1 <= min(factors) <= max(factors) <= LARGEST:
        raise ValueError(
            f"--rsa-dilations {dilations}: a dilation is at least 1 and at most {LARGEST}"
        )
    return RemHeads(counts, factors)


def numbers(text: str, flag: str, named: Mapping[str, int]) -> tuple[int, ...]:
    """Whole numbers with commas between; some words may stand for numbers.

    Raises:
        ValueError: if they are something else
    """
    try:
        return tuple(named[word] if word in named else int(word) for word in text.split(","))
    except ValueError:
        raise ValueError(f"{flag} {text}: expected whole numbers with commas between") from None


def parse_range(text: str) -> tuple[float, float]:
    """Read "LOW,HIGH" of ``--rsa-eta-init`` and ``--rsa-nu-init``.

    Raises:
        ValueError: if it is not two numbers, the first not above the second
    """
    try:
        low, high = (float(word) for word in text.split(","))
        if not (abs(low) <= LARGEST and abs(high) <= LARGEST):  # also where they are nan
            raise ValueError(text)
    except ValueError:
        raise ValueError(
            f"{text}: expected two numbers with a comma between, from {-LARGEST:g} to {LARGEST:g}"
        ) from None
    if low > high:
        raise ValueError(
            f"{text}: the first number is above the second; give the smaller one first"
        )
    return low, high
