"""The three surface tasks, built from any text: one sentence per line, tokenised with spaces.

They follow the descriptions of SentEval's files: labels are balanced, and a sentence occurs once
per task. Clues that would reveal a label without reading the sentence are avoided: quotes, moved
punctuation, and the capital letter of a first word.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from fairseq_recur.errors import ConfigError, first_lines
from fairseq_recur.probing.tasks import SPLITS, read_text

Bins = Sequence[tuple[int, int]]
Pools = dict[str, list[str]]
Splits = dict[str, list[tuple[str, str]]]

LENGTH_BINS: Bins = ((5, 8), (9, 12), (13, 16), (17, 20), (21, 25), (26, 28))
"""SentEval's length bins: smallest and largest number of words."""
SHORTEST_TARGET = 4  # letters of a target word
QUOTES = ('"', "``", "''", "\u201c", "\u201d", "\u201e", "&quot;")


class Plan(NamedTuple):
    """What to build.

    Attributes:
        sizes: sentences in train, valid and test
        words: number of labels of WordContent
        bins: labels of Length; no task uses sentences outside the bins
        seed: the same seed and corpus give the same files
    """

    sizes: tuple[int, int, int]
    words: int
    bins: Bins
    seed: int


class Corpus(NamedTuple):
    """The distinct usable sentences, split into words, and the number of lines read."""

    sentences: list[list[str]]
    lines: int


def read_corpus(path: Path, bins: Bins) -> Corpus:
    """Read the distinct sentences whose length is in one of the bins.

    Raises:
        ConfigError: the file is missing or not UTF-8
    """
    lines = [line.split() for _, line in read_text(path)]
    distinct = dict.fromkeys(tuple(w) for w in lines if _bin_of(len(w), bins) is not None)
    return Corpus([list(words) for words in distinct], len(lines))


def build_tasks(corpus: Corpus, names: Sequence[str], plan: Plan) -> dict[str, Splits]:
    """Build tasks, each from its own random generator, so that they do not affect each other.

    Args:
        corpus: from `read_corpus`, with the bins of the plan
        names: keys of BUILDERS
        plan: sizes, labels and seed

    Returns:
        {task: {"train": [(label, sentence), ...], "valid": ..., "test": ...}}

    Raises:
        ConfigError: the corpus is too small; says for each task what was found and expected
    """
    built, problems = {}, []
    for name in names:
        rng = random.Random(f"{name} {plan.seed}")  # strings hash to the same seed everywhere
        try:
            built[name] = deal(BUILDERS[name](corpus.sentences, plan, rng), plan.sizes, rng)
        except ConfigError as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise ConfigError(
            f"the corpus is too small: {corpus.lines} lines, {len(corpus.sentences)} distinct "
            f"sentences of {plan.bins[0][0]} to {plan.bins[-1][1]} words. Give more text, "
            "smaller --sizes, fewer --words or other --bins\n- " + "\n- ".join(problems)
        )
    return built


def length_pools(sentences: list[list[str]], plan: Plan, rng: random.Random) -> Pools:
    """Group sentences by length bin."""
    pools: Pools = {str(index): [] for index in range(len(plan.bins))}
    for words in sentences:
        pools[str(_bin_of(len(words), plan.bins))].append(" ".join(words))
    return pools


def word_pools(sentences: list[list[str]], plan: Plan, rng: random.Random) -> Pools:
    """Group sentences by target word; each sentence has exactly one target, exactly once.

    The targets are the rarest words that occur in enough sentences. A sentence with two targets
    is unusable, so a choice of targets may leave some of them with too few sentences. Those are
    replaced by more frequent words.
    """
    need = sum(-(-size // plan.words) for size in plan.sizes)
    plain = [[_strip(word) for word in words] for words in sentences]
    once = Counter(w for words in plain for w, n in Counter(words).items() if n == 1)
    long = (w for w in once if w.isalpha() and len(w) >= SHORTEST_TARGET)
    ranked = sorted((once[w], w) for w in long if once[w] >= need)
    candidates = {word: None for _, word in ranked}
    plain = [[word for word in words if word in candidates] for words in plain]
    waiting = iter(candidates)
    targets = set(islice(waiting, plan.words))
    while len(targets) == plan.words:
        found = [[word for word in words if word in targets] for words in plain]
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
        f"expected {plan.words} words, each in {need} sentences that contain none of the other "
        f"words; only {len(candidates)} words occur in that many sentences at all. "
        "Give more text, or fewer --words"
    )


def shift_pools(sentences: list[list[str]], plan: Plan, rng: random.Random) -> Pools:
    """Make a pool of original sentences (O) and one with two adjacent words swapped (I).

    Both come from sentences in which two words can be swapped. The first word and punctuation
    never move, and the result is not another sentence of the corpus.
    """
    shiftable = [words for words in sentences if _places(words)]
    needed = sum(plan.sizes)
    if len(shiftable) < needed:
        raise ConfigError(
            f"expected {needed} sentences without quotes in which two adjacent words can be "
            f"swapped; found {len(shiftable)}. Give more text, or smaller --sizes"
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
    """Divide a split evenly among the labels; the remainder goes to the first labels."""
    return [size // labels + (index < size % labels) for index in range(labels)]


def deal(pools: Pools, sizes: Sequence[int], rng: random.Random) -> Splits:
    """Distribute the sentences of each label over the splits, then shuffle each split.

    Raises:
        ConfigError: some labels have too few sentences
    """
    needs = list(zip(*(shares(size, len(pools)) for size in sizes)))
    lacking = [
        f"{sum(need)} for label {label}, found {len(pool)}"
        for need, (label, pool) in zip(needs, pools.items())
        if len(pool) < sum(need)
    ]
    if lacking:
        found = "; ".join(first_lines(lacking))
        raise ConfigError(f"too few sentences, expected {found}")
    splits: Splits = {name: [] for name in SPLITS.values()}
    for need, (label, pool) in zip(needs, pools.items()):
        drawn = iter(rng.sample(pool, sum(need)))
        for name, count in zip(splits, need):
            splits[name] += [(label, sentence) for sentence in islice(drawn, count)]
    for split in splits.values():
        rng.shuffle(split)
    return splits


def _bin_of(length: int, bins: Bins) -> int | None:
    """Find the bin of a sentence length."""
    return next((i for i, (low, high) in enumerate(bins) if low <= length <= high), None)


def _strip(word: str) -> str:
    """Lower-case a word and strip leading and trailing characters other than letters and digits."""
    return word.strip("".join(c for c in word if not c.isalnum())).lower()


def _places(words: list[str]) -> list[int]:
    """List the positions of the words that can be swapped with the next word."""
    if any(quote in word for word in words for quote in QUOTES):
        return []
    plain = [bool(word) and word.lower() == _strip(word) for word in words]
    return [
        i
        for i in range(1, len(words) - 1)
        if plain[i] and plain[i + 1] and words[i] != words[i + 1]
    ]


def _shift(words: list[str], taken: set[str], rng: random.Random) -> str | None:
    """Swap two words at a random position where the result is new; None if there is no such one."""
    places = _places(words)
    for i in rng.sample(places, len(places)):
        shifted = " ".join([*words[:i], words[i + 1], words[i], *words[i + 2 :]])
        if shifted not in taken:
            return shifted
    return None
