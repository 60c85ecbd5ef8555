"""Probing: files in SentEval's format, and the tasks that are built from a text."""

import random
import re
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


def test_files_in_sentevals_format(tmp_path: Path) -> None:
    text = GOOD.replace("it is .", "4\tit  is .") + "\nva\tPAST\tlast\r\n"
    (tmp_path / TENSE.file).write_bytes(text.encode())
    data = read_task(tmp_path, TENSE)
    assert data.labels == ["PAST", "PRES"]
    assert data.splits == {
        "train": Examples(["it was .", "it is ."], [0, 1]),
        "valid": Examples(["so it was .", "last"], [0, 0]),
        "test": Examples(["it is ."], [1]),
    }
    assert data.sentences() == ["it was .", "it is .", "so it was .", "last", "it is ."]


WRONG: dict[str, tuple[bytes, str]] = {
    "two fields": (b"tr\tit was .\n", "line 5: 2 fields in 'tr.tit was .'; expected split, label"),
    "spaces": (b"tr PAST it was .\n", "line 5: 1 field in "),
    "split": (b"dev\tPAST\tit was .\n", "line 5: split 'dev'; expected tr, va or te"),
    "no label": (b"tr\t\tit was .\n", "line 5: the label is empty"),
    "no sentence": (b"tr\tPAST\t \n", "line 5: the sentence is empty"),
    "latin-1": (b"tr\tPAST\tcaf\xe9\n", "line 5: not UTF-8"),
    "unknown in test": (b"te\tFUT\tit will .\n", "line 5: the label 'FUT' .* 2: PAST, PRES"),
    "unknown in valid": (b"va\tFUT\tit will .\n", "line 5: the label 'FUT'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_line_is_named(tmp_path: Path, name: str) -> None:
    line, message = WRONG[name]
    (tmp_path / TENSE.file).write_bytes(GOOD.encode() + line)
    with pytest.raises(ConfigError, match=f"{TENSE.file}, {message}"):
        read_task(tmp_path, TENSE)


@pytest.mark.parametrize(
    "text, message",
    [
        (GOOD.replace("va\t", "tr\t"), "no line of split va"),
        (GOOD.replace("PRES", "PAST"), "all of split tr has the label 'PAST'"),
        ("", "no line of split tr, va, te"),
    ],
)
def test_a_file_that_is_no_task(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / TENSE.file).write_text(text)
    with pytest.raises(ConfigError, match=message):
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


def test_what_is_written_is_read(tmp_path: Path) -> None:
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


def texts(corpus: Corpus) -> set[str]:
    return {" ".join(words) for words in corpus.sentences}


@pytest.mark.parametrize("name", BUILDERS)
def test_built_tasks_are_balanced_and_disjoint(corpus: Corpus, name: str) -> None:
    splits = build_tasks(corpus, [name], PLAN)[name]
    assert [len(splits[s]) for s in ("train", "valid", "test")] == [61, 17, 18]
    every = [sentence for split in splits.values() for _, sentence in split]
    assert len(set(every)) == len(every)
    labels = {"Length": 6, "WordContent": 5, "BigramShift": 2}[name]
    for split in splits.values():
        counts = [[l for l, _ in split].count(label) for label in {l for l, _ in split}]
        assert len(counts) == labels and max(counts) - min(counts) <= 1
        assert [l for l, _ in split] != sorted(l for l, _ in split), "shuffled"


def test_built_tasks_follow_the_seed(corpus: Corpus) -> None:
    first = build_tasks(corpus, list(BUILDERS), PLAN)
    assert build_tasks(corpus, list(BUILDERS), PLAN) == first
    for name in BUILDERS:
        assert build_tasks(corpus, [name], PLAN)[name] == first[name], "whatever else is built"
        assert build_tasks(corpus, [name], PLAN._replace(seed=4))[name] != first[name]


def test_length(corpus: Corpus) -> None:
    for split in build_tasks(corpus, ["Length"], PLAN)["Length"].values():
        for label, sentence in split:
            low, high = LENGTH_BINS[int(label)]
            assert low <= len(sentence.split()) <= high and sentence in texts(corpus)


def test_word_content(corpus: Corpus) -> None:
    splits = build_tasks(corpus, ["WordContent"], PLAN)["WordContent"]
    targets = {label for label, _ in splits["train"]}
    assert all(len(word) >= 4 and word.isalpha() and word.islower() for word in targets)
    for split in splits.values():
        for label, sentence in split:
            words = sentence.lower().split()
            assert [word for word in words if word in targets] == [label]
            assert sentence in texts(corpus)


def test_bigram_shift(corpus: Corpus) -> None:
    splits = build_tasks(corpus, ["BigramShift"], PLAN)["BigramShift"]
    every = {sentence for split in splits.values() for _, sentence in split}
    for split in splits.values():
        for label, sentence in split:
            if label == "O":
                assert sentence in texts(corpus)
                continue
            words = sentence.split()
            assert sentence not in texts(corpus)
            undone = {
                " ".join([*words[:i], words[i + 1], words[i], *words[i + 2 :]]): i
                for i in range(len(words) - 1)
            }
            originals = undone.keys() & texts(corpus)
            assert originals and not originals & every, "a sentence is there once, in one form"
            for original in originals:
                i = undone[original]
                assert i >= 1 and "." not in words[i : i + 2] and words[i] != words[i + 1]


def test_what_bigram_shift_leaves_out() -> None:
    """First words, punctuation, equal words and sentences with quotes stay as they are."""
    quoted = ['He " said it " so', "It 's , \u201ewell\u201c so on"]
    fixed = ["One two , three .", "A b b b b", *quoted]
    plan = Plan((2, 2, 2), 2, [(5, 9), (10, 11)], 1)
    small = Corpus([s.split() for s in fixed], len(fixed))
    with pytest.raises(ConfigError, match="BigramShift: 6 sentences .* there are 0"):
        build_tasks(small, ["BigramShift"], plan)
    twins = [f"{word} {pair}".split() for word in ("We", "You", "They") for pair in ("a b", "b a")]
    plan = plan._replace(bins=[(3, 3), (4, 4)])
    with pytest.raises(ConfigError, match="3 for label I; there are 0"):
        build_tasks(Corpus(twins, len(twins)), ["BigramShift"], plan)


def test_a_small_corpus_says_what_there_is(corpus: Corpus) -> None:
    plan = PLAN._replace(sizes=(3000, 60, 60), words=30)
    with pytest.raises(ConfigError) as error:
        build_tasks(corpus, list(BUILDERS), plan)
    lines = str(error.value).split("\n- ")
    assert f"1500 lines, {len(corpus.sentences)} different sentences of 5 to 28 words" in lines[0]
    in_bin = sum(5 <= len(words) <= 8 for words in corpus.sentences)
    assert f"Length: sentences are needed: 520 for label 0; there are {in_bin}" in lines[1]
    frequent = [
        word for word in {w.lower() for words in corpus.sentences for w in words}
        if len(word) >= 4
        and sum([w.lower() for w in words].count(word) == 1 for words in corpus.sentences) >= 104
    ]  # fmt: skip
    assert re.search(rf"30 words .* in 104 sentences .*; {len(frequent)} words are", lines[2])
    assert f"BigramShift: 3120 sentences are needed" in lines[3]


def test_reading_a_corpus(tmp_path: Path) -> None:
    text = "a b c d e\n\na  b c\td e\na b\n" + "x " * 29 + "\nv w x y z\n"
    (tmp_path / "text").write_text(text)
    sentences, lines = read_corpus(tmp_path / "text", LENGTH_BINS)
    assert (sentences, lines) == ([list("abcde"), list("vwxyz")], 5)
    with pytest.raises(ConfigError, match="no such file"):
        read_corpus(tmp_path / "none", LENGTH_BINS)
