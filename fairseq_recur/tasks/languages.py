"""Six regular languages as finite automata, and the targets for their strings.

Languages and targets are those of Bhattamishra et al. (EMNLP 2020), on which Huang et al. (ICLR
2023, section 4.2 and appendix E.2) trained. The target at a position depends only on the state of
the automaton after it has read the string up to there.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from fairseq_recur.errors import ConfigError

Target = tuple[int, int]


@dataclass(frozen=True)
class Language:
    """A regular language over two letters.

    Attributes:
        name: value of ``--language``.
        letters: the alphabet, in the order of `moves`.
        moves: ``moves[state][letter]`` is the next state; the automaton starts in state 0.
        accepting: the states in which a string is a member.
        targets: a key of `TARGETS`, the prediction after each letter.
        longest: longest string of the training set and bin 0; bin 1 has up to twice as many
            letters.
        train_size, bin_size: number of strings in the training set and in each bin.
    """

    name: str
    letters: str
    moves: tuple[tuple[int, int], ...]
    accepting: frozenset[int]
    targets: str
    longest: int = 50
    train_size: int = 10_000
    bin_size: int = 2_000

    def states(self, string: str) -> list[int]:
        """Return the state after each letter of ``string``."""
        state, visited = 0, []
        for letter in string:
            state = self.moves[state][self.letters.index(letter)]
            visited.append(state)
        return visited

    def accepts(self, string: str) -> bool:
        """Whether ``string`` is a member."""
        return (self.states(string) or [0])[-1] in self.accepting

    def live(self) -> frozenset[int]:
        """Return the states from which some continuation, possibly empty, leads to a member."""
        reached, before = set(self.accepting), -1
        while len(reached) != before:
            before = len(reached)
            reached |= {s for s, nexts in enumerate(self.moves) if reached & set(nexts)}
        return frozenset(reached)


def member(language: Language, state: int) -> Target:
    """Return (0, 1) if the prefix is a member of the language, otherwise (1, 0)."""
    inside = int(state in language.accepting)
    return 1 - inside, inside


def next_member(language: Language, state: int) -> Target:
    """Return for each letter whether the prefix with this letter is a member."""
    first, second = (int(s in language.accepting) for s in language.moves[state])
    return first, second


def next_legal(language: Language, state: int) -> Target:
    """Return for each letter whether the prefix with this letter can become a member."""
    alive = language.live()
    first, second = (int(s in alive) for s in language.moves[state])
    return first, second


TARGETS: dict[str, Callable[[Language, int], Target]] = {
    "member": member,
    "next_member": next_member,
    "next_legal": next_legal,
}
"""The kinds of targets: functions from a state to the two desired outputs."""


def counting(name: str, modulus: tuple[int, int]) -> Language:
    """Return the language whose counts of zeros and of ones are 0 modulo the two numbers."""
    zeros, ones = modulus
    moves = tuple(
        ((z + 1) % zeros * ones + o, z * ones + (o + 1) % ones)
        for z in range(zeros)
        for o in range(ones)
    )
    return Language(name, "01", moves, frozenset({0}), "member")


# In Tomita 3 no odd run of ones is followed by an odd run of zeros. States: 0 has no restriction; 1
# is within an odd run of ones; 2 and 3 follow one, within an odd and an even run of zeros; 4 is
# dead, after an odd run of zeros has ended. State 2 is live, but no string may end in it. This is
# where "next_member", the target of the published data, differs from "next_legal". In Tomita 6 the
# numbers of zeros and of ones differ by a multiple of three.
TOMITA_3 = ((0, 1), (2, 0), (3, 4), (2, 1), (4, 4))
TOMITA_6 = ((1, 2), (2, 0), (0, 1))
NAMED = {
    "parity": counting("parity", (1, 2)),
    "tomita_3": Language("tomita_3", "01", TOMITA_3, frozenset({0, 1, 3}), "next_member"),
    "tomita_5": counting("tomita_5", (2, 2)),
    "tomita_6": Language("tomita_6", "01", TOMITA_6, frozenset({0}), "member"),
}


def nested(depth: int) -> Language:
    """Return D_n, ``(a D_{n-1} b)*``: brackets up to a depth; state ``depth + 1`` is dead."""
    dead = depth + 1
    inside = ((min(d + 1, dead), d - 1 if d else dead) for d in range(depth + 1))
    return Language(
        f"d_{depth}", "ab", (*inside, (dead, dead)), frozenset({0}), "next_legal", 100, 5_000, 1_000
    )


NAMES = "parity, tomita_3, tomita_5, tomita_6, or d_N for a depth N from 1, such as d_2 and d_4"


def language(name: str) -> Language:
    """Return a language by its name from `NAMES`; raise ConfigError for any other name."""
    if name in NAMED:
        return NAMED[name]
    if re.fullmatch(r"d_[1-9]\d?", name):
        return nested(int(name[2:]))
    raise ConfigError(f"--language {name}: expected {NAMES}")
