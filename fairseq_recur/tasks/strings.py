"""Sampling strings of a regular language: a training set and two bins of test strings."""

import random
from collections.abc import Callable, Iterator
from functools import lru_cache

from fairseq_recur.errors import ConfigError
from fairseq_recur.tasks.languages import Language

SHORTEST = 2
PATIENCE = 10_000
"""Number of consecutive draws without a new string after which sampling stops."""

Draw = Callable[[random.Random], str | None]
"""Draws a string, or None if the draw is not a member of a valid length."""


def members_by_length(language: Language, longest: int) -> list[list[int]]:
    """Return ``counts[n][state]``, the number of strings of n letters that complete a member."""
    counts = [[int(s in language.accepting) for s in range(len(language.moves))]]
    for _ in range(longest):
        counts.append([sum(counts[-1][s] for s in nexts) for nexts in language.moves])
    return counts


def draw_uniform(language: Language, shortest: int, longest: int) -> Draw:
    """Draw lengths that have members uniformly, and members of a length uniformly."""
    counts = members_by_length(language, longest)
    lengths = [n for n in range(shortest, longest + 1) if counts[n][0]]

    def draw(rng: random.Random) -> str | None:
        state, string = 0, []
        for left in range(rng.choice(lengths) - 1, -1, -1):
            first, second = language.moves[state]
            letter = int(rng.randrange(counts[left + 1][state]) >= counts[left][first])
            state = (first, second)[letter]
            string.append(language.letters[letter])
        return "".join(string)

    return draw


def draw_letters(language: Language, shortest: int, longest: int) -> Draw:
    """Draw zeros and ones with equal probability, and the end of the string after each letter.

    The probability of the end is 1 / (1 + the mean of the lengths). A string that reaches
    ``longest`` ends there, so in bin 1 (51 to 100 letters) one third (Parity) to two thirds
    (Tomita 5) of the strings have 99 or 100 letters. For Parity, a final 1 turns other strings
    into members.
    """
    stop = 1 / (1 + (shortest + longest) // 2)

    def draw(rng: random.Random) -> str | None:
        string = ""
        while len(string) < longest and rng.random() >= stop:
            string += rng.choice(language.letters)
        if language.name == "parity" and not language.accepts(string):
            string += "1"
        fits = shortest <= len(string) <= longest
        return string if fits and language.accepts(string) else None

    return draw


def draw_runs(language: Language, shortest: int, longest: int) -> Draw:
    """Draw a length, then runs up to the remaining length, legal for Tomita 3."""

    def draw(rng: random.Random) -> str | None:
        length, string, state = rng.randint(shortest, longest), "", 0
        while len(string) < length:
            left = length - len(string)
            if rng.random() < 0.5:
                string += "1" * rng.randint(0, left)
            else:
                restricted = state in (1, 3)  # an even run of zeros must follow an odd run of ones
                string += "0" * rng.randrange(0, left + 1, 2 if restricted else 1)
            state = (language.states(string) or [0])[-1]
        return string

    return draw


def draw_published(language: Language, shortest: int, longest: int) -> Draw:
    """Draw like the published generator, except for D_n, which is drawn uniformly.

    The published strings of D_n have few shapes: 4,310 draws of D_2 up to 100 letters gave 158
    different strings, but 6,000 are needed.
    """
    if language.name == "tomita_3":
        return draw_runs(language, shortest, longest)
    if language.letters == "01":
        return draw_letters(language, shortest, longest)
    return draw_uniform(language, shortest, longest)


SAMPLING: dict[str, Callable[[Language, int, int], Draw]] = {
    "published": draw_published,
    "uniform": draw_uniform,
}


def different(draw: Draw, rng: random.Random) -> Iterator[str]:
    """Yield different strings until `PATIENCE` draws give no new one."""
    seen: set[str] = set()
    missed = 0
    while missed < PATIENCE:
        string = draw(rng)
        if string is None or string in seen:
            missed += 1
            continue
        seen.add(string)
        missed = 0
        yield string


def draw_corpus(
    language: Language, size: int, lengths: tuple[int, int], sampling: str, seed: int
) -> list[str]:
    """Draw different members of a language, in random order.

    Args:
        language: whose members to draw.
        size: number of strings.
        lengths: the shortest and the longest length.
        sampling: a key of `SAMPLING`.
        seed: the same seed gives the same strings.

    Raises:
        ConfigError: fewer than ``size`` strings exist, or are found.
    """
    shortest, longest = lengths
    if not any(members[0] for members in members_by_length(language, longest)[shortest:]):
        raise ConfigError(
            f"{language.name} has no strings of {shortest} to {longest} letters; "
            "raise --longest-string"
        )
    rng = random.Random(f"{language.name} {lengths} {seed}")
    strings = []
    for string in different(SAMPLING[sampling](language, shortest, longest), rng):
        strings.append(string)
        if len(strings) == size:
            rng.shuffle(strings)  # rare short strings come first
            return strings
    raise ConfigError(
        f"only {len(strings)} different strings of {language.name} with {shortest} to {longest} "
        f"letters were found, expected {size}: lower --train-size and --bin-size, or raise "
        "--longest-string"
    )


@lru_cache(maxsize=1)  # a comparison of systems draws the same strings for each
def draw_splits(
    language: Language,
    train_size: int,
    bin_size: int,
    longest: int,
    sampling: str = "published",
    seed: int = 1,
) -> dict[str, list[str]]:
    """Draw the training set and the bins; no string occurs twice.

    Args:
        train_size: strings in ``train``.
        bin_size: strings in each of ``bin0`` and ``bin1``.
        longest: ``train`` and ``bin0`` have 2 to ``longest`` letters, ``bin1`` has
            ``longest + 1`` to ``2 * longest``.
        language, sampling, seed: as for `draw_corpus`, which raises the errors.
    """
    near = draw_corpus(language, train_size + bin_size, (SHORTEST, longest), sampling, seed)
    far = draw_corpus(language, bin_size, (longest + 1, 2 * longest), sampling, seed)
    return {"train": near[:train_size], "bin0": near[train_size:], "bin1": far}
