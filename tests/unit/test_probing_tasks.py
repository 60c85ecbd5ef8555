"""Probing: files in SentEval's format, and the tasks built from a text."""

import random
import re
from collections import Counter
from pathlib import Path

import pytest

from fairseq_recur.errors import ConfigError
from fairseq_recur.probing.building import (
    BUILDERS,
    LENGTH_BINS,
    Corpus,
    Plan,
    build_tasks,
    read_corpus,
)
from fairseq_recur.probing.tasks import TASKS, Examples, choose_tasks, read_task, write_task

TENSE = TASKS["Tense"]
GOOD = "tr\tPAST\tit was .\ntr\tPRES\tit is .\nva\tPAST\tso it was .\nte\tPRES\tso it is .\n"


def test_files_in_senteval_format(tmp_path: Path) -> None:
    text = "\ufeff" + GOOD.replace("it is .", "4\tit  is .") + "\nva\tPAST\tlast\r\n"
    (tmp_path / TENSE.file).write_bytes(text.encode())
    data = read_task(tmp_path, TENSE)
    assert data.labels == ["PAST", "PRES"]
    assert data.splits == {
        "train": Examples(["it was .", "it is ."], [0, 1]),
        "valid": Examples(["so it was .", "last"], [0, 0]),
        "test": Examples(["it is ."], [1]),
    }
    assert data.sentences() == ["it was .", "it is .", "so it was .", "last", "it is ."]


@pytest.mark.parametrize(
    "text, message",
    [
        (GOOD + "tr\tit was .\n", "line 5: 2 fields in 'tr.tit was .'; expected split, label"),
        (GOOD + "tr PAST it was .\n", "line 5: 1 field in "),
        (GOOD + "dev\tPAST\tit was .\n", "line 5: split 'dev'; expected tr, va or te"),
        (GOOD + "tr\t\tit was .\n", "line 5: the label is empty"),
        (GOOD + "tr\tPAST\t \n", "line 5: the sentence is empty"),
        (GOOD + "tr\tPAST\tcaf\xe9\n", "line 5: not UTF-8"),
        (GOOD + "te\tFUT\tit will .\n", "line 5: the label 'FUT' .* 2 labels: PAST, PRES"),
        (GOOD + "va\tFUT\tit will .\n", "line 5: the label 'FUT'"),
        (GOOD.replace("va\t", "tr\t"), "no line of split va"),
        (GOOD.replace("PRES", "PAST"), "every line of split tr has the label 'PAST'"),
        ("", "no line of split tr, va, te"),
    ],
)
def test_invalid_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / TENSE.file).write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=f"{TENSE.file}.*{message}"):
        read_task(tmp_path, TENSE)


def test_tasks_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        choose_tasks(tmp_path / "none", [])
    with pytest.raises(ConfigError, match="has no sentence_length.txt, .* it has no files"):
        choose_tasks(tmp_path, [])
    for name in ("odd_man_out.txt", "word_content.txt"):
        (tmp_path / name).write_text(GOOD)
    assert [task.short for task in choose_tasks(tmp_path, [])] == ["WC", "SoMo"]
    assert choose_tasks(tmp_path, ["OddManOut"]) == [TASKS["OddManOut"]]
    with pytest.raises(ConfigError, match="has no past_present.txt; it has odd_man_out.txt, word"):
        choose_tasks(tmp_path, ["OddManOut", "Tense"])


def test_written_tasks_can_be_read(tmp_path: Path) -> None:
    pairs = {"train": [("a", "x y"), ("b", "é")], "valid": [("a", "z")], "test": [("b", "w")]}
    write_task(tmp_path / TENSE.file, pairs)
    data = read_task(tmp_path, TENSE)
    for name, split in data.splits.items():
        assert [(data.labels[i], s) for s, i in zip(*split)] == pairs[name]


# Building -----------------------------------------------------------------------------

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PLAN = Plan(sizes=(61, 17, 18), words=5, bins=LENGTH_BINS, seed=3)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """Sentences of 60 words, the later ones rarer, with capitals and full stops."""
    rng = random.Random(5)
    words = ["".join(rng.choices(LETTERS, k=rng.randint(2, 7))) for _ in range(60)]
    sentences = {}
    for _ in range(1500):
        drawn = rng.choices(words, weights=[1 / (i + 2) for i in range(60)], k=rng.randint(4, 27))
        sentences[" ".join([drawn[0].capitalize(), *drawn[1:], "."])] = None
    kept = [s.split() for s in sentences if len(s.split()) >= 5]
    return Corpus(kept, 1500)


def check_length(label: str, words: list[str]) -> None:
    """The label is the bin of the sentence length."""
    low, high = LENGTH_BINS[int(label)]
    assert low <= len(words) <= high


def check_shift(words: list[str], originals: set[str], used: set[str]) -> None:
    """The sentence differs from unused corpus sentences by one swap of two plain words."""
    undone = {
        " ".join([*words[:i], words[i + 1], words[i], *words[i + 2 :]]): i
        for i in range(len(words) - 1)
    }
    sources = undone.keys() & originals
    assert sources and not sources & used, "each sentence occurs once, in one form"
    for i in (undone[source] for source in sources):
        assert i >= 1 and "." not in words[i : i + 2] and words[i] != words[i + 1]


@pytest.mark.parametrize("name, labels", [("Length", 6), ("WordContent", 5), ("BigramShift", 2)])
def test_built_tasks(corpus: Corpus, name: str, labels: int) -> None:
    """Splits are balanced, disjoint and shuffled, and every label is true."""
    splits = build_tasks(corpus, [name], PLAN)[name]
    assert [len(splits[s]) for s in ("train", "valid", "test")] == list(PLAN.sizes)
    pairs = [pair for split in splits.values() for pair in split]
    originals, used = {" ".join(words) for words in corpus.sentences}, {s for _, s in pairs}
    assert len(used) == len(pairs)
    for split in splits.values():
        counts = Counter(label for label, _ in split).values()
        assert len(counts) == labels and max(counts) - min(counts) <= 1
        assert [label for label, _ in split] != sorted(label for label, _ in split), "shuffled"
    targets = {label for label, _ in splits["train"]}
    if name == "WordContent":
        assert all(len(word) >= 4 and word.isalpha() and word.islower() for word in targets)
    for label, sentence in pairs:
        assert (sentence in originals) == (label != "I")
        if name == "Length":
            check_length(label, sentence.split())
        elif name == "WordContent":
            assert [word for word in sentence.lower().split() if word in targets] == [label]
        elif label == "I":
            check_shift(sentence.split(), originals, used)


def test_built_tasks_depend_on_the_seed_only(corpus: Corpus) -> None:
    first = build_tasks(corpus, list(BUILDERS), PLAN)
    assert build_tasks(corpus, list(BUILDERS), PLAN) == first
    for name in BUILDERS:
        assert build_tasks(corpus, [name], PLAN)[name] == first[name], "whatever else is built"
        assert build_tasks(corpus, [name], PLAN._replace(seed=4))[name] != first[name]


QUOTED = ['He " said it " so', "It 's , \u201ewell\u201c so on"]
TWINS = [f"{word} {pair}" for word in ("We", "You", "They") for pair in ("a b", "b a")]


@pytest.mark.parametrize(
    "sentences, bins, message",
    [
        (["One two , three .", "A b b b b", *QUOTED], [(5, 9), (10, 11)], "expected 6 .* found 0"),
        (TWINS, [(3, 3), (4, 4)], "3 for label I, found 0"),
    ],
)
def test_bigram_shift_exclusions(
    sentences: list[str], bins: list[tuple[int, int]], message: str
) -> None:
    """First words, punctuation, equal words and quoted sentences stay; results must be new."""
    small = Corpus([s.split() for s in sentences], len(sentences))
    with pytest.raises(ConfigError, match=f"BigramShift: .*{message}"):
        build_tasks(small, ["BigramShift"], Plan((2, 2, 2), 2, bins, 1))


def test_a_small_corpus_is_described(corpus: Corpus) -> None:
    plan = PLAN._replace(sizes=(3000, 60, 60), words=30)
    with pytest.raises(ConfigError) as error:
        build_tasks(corpus, list(BUILDERS), plan)
    lines = str(error.value).split("\n- ")
    assert f"1500 lines, {len(corpus.sentences)} distinct sentences of 5 to 28 words" in lines[0]
    in_bin = sum(5 <= len(words) <= 8 for words in corpus.sentences)
    assert f"Length: too few sentences, expected 520 for label 0, found {in_bin}" in lines[1]
    lower = [[word.lower() for word in words] for words in corpus.sentences]
    frequent = [
        word
        for word in {word for words in lower for word in words}
        if len(word) >= 4 and sum(words.count(word) == 1 for words in lower) >= 104
    ]
    assert re.search(rf"30 words.* 104 sentences .* only {len(frequent)} words occur", lines[2])
    assert "BigramShift: expected 3120 sentences" in lines[3]


def test_reading_a_corpus(tmp_path: Path) -> None:
    text = "a b c d e\n\na  b c\td e\na b\n" + "x " * 29 + "\nv w x y z\n"
    (tmp_path / "text").write_text(text)
    sentences, lines = read_corpus(tmp_path / "text", LENGTH_BINS)
    assert (sentences, lines) == ([list("abcde"), list("vwxyz")], 5)
    with pytest.raises(ConfigError, match="no such file"):
        read_corpus(tmp_path / "none", LENGTH_BINS)
