"""--no-repeat-ngram-size: no hypothesis has an n-gram twice, and all else stays as it was.

--diverse-beam-groups: groups differ from each other, whatever numbers the sentences have.
"""

import random

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.search import DiverseBeamSearch

END = 2


def ngrams(words: list[int], size: int) -> list[tuple[int, ...]]:
    """The n-grams of this size, in their order."""
    return [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_words_that_would_repeat_an_ngram_are_banned(size: int) -> None:
    """All of them and no others; what follows the newest token in the buffer does not count."""
    chance, banned = random.Random(size), 0
    for step in (0, 1, 2, 5, 12):
        hypotheses = [[chance.randrange(3, 5) for _ in range(step)] for _ in range(6)]
        tokens = torch.full((6, 20), 1)
        tokens[:, 0] = END
        tokens[:, 1 : step + 1] = torch.tensor(hypotheses).view(6, step)
        scores = torch.randn(6, 7)
        found = NGramRepeatBlock(size)(tokens, scores.clone(), 2, 3, step)
        for words, before, after in zip(hypotheses, scores.tolist(), found.tolist()):
            for word in range(7):
                repeats = {*ngrams([*words, word], size)[-1:]} & {*ngrams(words, size)}
                assert after[word] == (-float("inf") if repeats else before[word])
                banned += bool(repeats)
    assert banned > 5


def test_a_forced_word_may_repeat() -> None:
    tokens = torch.tensor([[END, 4, 4, 4, 1, 1]])
    scores = torch.full((1, 7), -float("inf"))
    scores[0, 4] = -0.5
    assert NGramRepeatBlock(2)(tokens, scores.clone(), 1, 1, 3).equal(scores)


def diverse_searches(numbers: list[int], steps: int, dictionary: Dictionary) -> list[list[int]]:
    """The words that each sentence's four hypotheses take; the first ends after two steps."""
    search = DiverseBeamSearch(dictionary, num_groups=2, diversity_strength=0.7)
    words: dict[int, list[int]] = {number: [] for number in numbers}
    left = list(numbers)
    for step in range(steps):
        left = left[1:] if step == 2 else left
        chosen = [numbers.index(n) for n in left]
        chance = torch.Generator().manual_seed(step)
        scored = torch.randn(len(numbers), 4, len(dictionary), generator=chance)[chosen]
        before = torch.zeros(len(left), 4, max(step, 1))
        found = search.step(step, scored.log_softmax(-1), before, None, torch.tensor(left))
        for n, indices in zip(left, found[1].tolist()):
            words[n] += indices
    return list(words.values())


def test_diverse_groups_of_sentences_with_any_numbers(dictionary: Dictionary) -> None:
    """Those of a test set, in the order of the batch, which is that of the lengths."""
    expected = diverse_searches([0, 1, 2, 3], 5, dictionary)
    assert diverse_searches([71, 5, 2, 33], 5, dictionary) == expected
    assert diverse_searches([3, 1, 0, 2], 5, dictionary) == expected
