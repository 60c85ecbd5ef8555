"""The three surface tasks, built from any text of one sentence a line, words between spaces.

They follow the descriptions of SentEval's files: labels are balanced, a sentence occurs once in
a task, and what could give a label away without reading (quotes, punctuation that has moved, the
capital of a first word) is kept out.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from fairseq_recur.errors import ConfigError
from fairseq_recur.probing.tasks import SPLITS, read_text

Bins = Sequence[tuple[int, int]]
Pools = dict[str, list[str]]
Splits = dict[str, list[tuple[str, str]]]

LENGTH_BINS: Bins = ((5, 8), (9, 12), (13, 16), (17, 20), (21, 25), (26, 28))
"""SentEval's: words of a sentence, first and last included."""
SHORTEST_TARGET = 4  # letters of a word to look for
QUOTES = ('"', "``", "''", "\u201c", "\u201d", "\u201e", "&quot;")
SHOWN = 5  # labels named in an error


class Plan(NamedTuple):
    """What to build.

    Attributes:
        sizes: sentences of train, valid and test
        words: labels of word content
        bins: labels of length; a sentence outside of them is in no task
        seed: the same seed and corpus give the same files
    """

    sizes: tuple[int, int, int]
    words: int
    bins: Bins
    seed: int


class Corpus(NamedTuple):
    """The different sentences that can be used, as words, and how many lines there were."""

    sentences: list[list[str]]
    lines: int


def read_corpus(path: Path, bins: Bins) -> Corpus:
    """Read the sentences of a length that is in a bin, each once.

    Raises:
        ConfigError: no such file, or not UTF-8
    """
    seen: dict[str, None] = {}
    lines = 0
    for _, line in read_text(path):
        lines += 1
        words = line.split()
        if _bin_of(len(words), bins) is not None:
            seen[" ".join(words)] = None
    return Corpus([sentence.split() for sentence in seen], lines)


def build_tasks(corpus: Corpus, names: Sequence[str], plan: Plan) -> dict[str, Splits]:
    """Build tasks, each with its own random numbers, so that one does not change another.

    Args:
        corpus: from `read_corpus` with the bins of the plan
        names: of BUILDERS

    Returns:
        {task: {"train": [(label, sentence), ...], "valid": ..., "test": ...}}

    Raises:
        ConfigError: the corpus is too small; for each task, what there is and what is needed
    """
    built, problems = {}, []
    for name in names:
        rng = random.Random(f"{name} {plan.seed}")  # a string is hashed the same everywhere
        try:
            built[name] = deal(BUILDERS[name](corpus.sentences, plan, rng), plan.sizes, rng)
        except ConfigError as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise ConfigError(
            f"the corpus is too small: {corpus.lines} lines, {len(corpus.sentences)} different "
            f"sentences of {plan.bins[0][0]} to {plan.bins[-1][1]} words. Give more text or "
            "smaller --sizes, fewer --words, other --bins\n- " + "\n- ".join(problems)
        )
    return built


def length_pools(sentences: list[list[str]], plan: Plan, rng: random.Random) -> Pools:
    """Sentences by the bin of their length."""
    pools: Pools = {str(index): [] for index in range(len(plan.bins))}
    for words in sentences:
        pools[str(_bin_of(len(words), plan.bins))].append(" ".join(words))
    return pools


def word_pools(sentences: list[list[str]], plan: Plan, rng: random.Random) -> Pools:
    """Sentences by the one target word in them, which is in them once.

    Targets are the rarest words of enough sentences. A sentence with two targets is of no use,
    so that a choice may leave some targets with too few; those make room for commoner ones.
    """
    need = sum(-(-size // plan.words) for size in plan.sizes)
    bare = [[_bare(word) for word in words] for words in sentences]
    once = Counter(w for words in bare for w, n in Counter(words).items() if n == 1)
    ranked = sorted((n, w) for w, n in once.items() if n >= need and _can_be_target(w))
    candidates = {word: None for _, word in ranked}
    bare = [[word for word in words if word in candidates] for words in bare]
    waiting = iter(candidates)
    targets = set(islice(waiting, plan.words))
    while len(targets) == plan.words:
        found = [[word for word in words if word in targets] for words in bare]
        usable = Counter(words[0] for words in found if len(words) == 1)
        lacking = {word for word in targets if usable[word] < need}
        if not lacking:
            pools: Pools = {word: [] for word in sorted(targets)}
            for words, of_one in zip(sentences, found):
                if len(of_one) == 1:
                    pools[of_one[0]].append(" ".join(words))
            return pools
        targets -= lacking
        targets.update(islice(waiting, len(lacking)))
    raise ConfigError(
        f"{plan.words} words are needed, each in {need} sentences without the others; "
        f"{len(candidates)} words are in so many sentences at all; give more text, or fewer --words"
    )


def shift_pools(sentences: list[list[str]], plan: Plan, rng: random.Random) -> Pools:
    """Sentences as they are (O), and others with two neighbouring words exchanged (I).

    Both are drawn from the sentences in which two words could be exchanged. Neither the first
    word moves nor punctuation, and what comes out is no other sentence of the corpus.
    """
    shiftable = [words for words in sentences if _places(words)]
    needed = sum(plan.sizes)
    if len(shiftable) < needed:
        raise ConfigError(
            f"{needed} sentences are needed with two neighbouring words to exchange and without "
            f"quotes; there are {len(shiftable)}. Give more text, or smaller --sizes"
        )
    rng.shuffle(shiftable)
    taken = {" ".join(words) for words in sentences}
    pools: Pools = {"I": [], "O": []}
    wanted = sum(shares(size, 2)[0] for size in plan.sizes)
    for words in shiftable:
        shifted = _shift(words, taken, rng) if len(pools["I"]) < wanted else None
        if shifted is None:
            pools["O"].append(" ".join(words))
        else:
            taken.add(shifted)
            pools["I"].append(shifted)
    return pools


BUILDERS: dict[str, Callable[[list[list[str]], Plan, random.Random], Pools]] = {
    "Length": length_pools,
    "WordContent": word_pools,
    "BigramShift": shift_pools,
}


def shares(size: int, labels: int) -> list[int]:
    """Divide a split among labels; the first ones get what is left over."""
    return [size // labels + (index < size % labels) for index in range(labels)]


def deal(pools: Pools, sizes: Sequence[int], rng: random.Random) -> Splits:
    """Deal the sentences of each label to the splits, then shuffle each split.

    Raises:
        ConfigError: labels with too few sentences
    """
    needs = [[shares(size, len(pools))[index] for size in sizes] for index in range(len(pools))]
    lacking = [
        f"{sum(need)} for label {label}; there are {len(pool)}"
        for need, (label, pool) in zip(needs, pools.items())
        if len(pool) < sum(need)
    ]
    if lacking:
        more = [f"and {len(lacking) - SHOWN} labels more"] if len(lacking) > SHOWN else []
        shown = ", ".join(lacking[:SHOWN] + more)
        raise ConfigError(f"sentences are needed: {shown}")
    splits: Splits = {name: [] for name in SPLITS.values()}
    for need, (label, pool) in zip(needs, pools.items()):
        drawn = iter(rng.sample(pool, sum(need)))
        for name, count in zip(splits, need):
            splits[name] += [(label, sentence) for sentence in islice(drawn, count)]
    for split in splits.values():
        rng.shuffle(split)
    return splits


def _bin_of(length: int, bins: Bins) -> int | None:
    """Find the bin of a number of words."""
    return next((i for i, (low, high) in enumerate(bins) if low <= length <= high), None)


def _bare(word: str) -> str:
    """Write a word in lower case, without what is neither letter nor digit around it."""
    ends = [i for i, character in enumerate(word) if character.isalnum()]
    return word[ends[0] : ends[-1] + 1].lower() if ends else ""


def _can_be_target(word: str) -> bool:
    return word.isalpha() and len(word) >= SHORTEST_TARGET


def _places(words: list[str]) -> list[int]:
    """List the positions whose word can change places with the next one."""
    if any(quote in word for word in words for quote in QUOTES):
        return []
    plain = [bool(word) and word.lower() == _bare(word) for word in words]
    return [
        i
        for i in range(1, len(words) - 1)
        if plain[i] and plain[i + 1] and words[i] != words[i + 1]
    ]


def _shift(words: list[str], taken: set[str], rng: random.Random) -> str | None:
    """Exchange two words at a random place where the outcome is new; None if there is none."""
    places = _places(words)
    for i in rng.sample(places, len(places)):
        shifted = " ".join([*words[:i], words[i + 1], words[i], *words[i + 2 :]])
        if shifted not in taken:
            return shifted
    return None
