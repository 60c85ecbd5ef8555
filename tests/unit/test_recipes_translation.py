"""The parts of the translation recipes: archives, cleaning, tokens, BPE, options."""

import io
import itertools
import os
import signal
import sys
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recipes import bpe, subwords
from recipes.archives import extract
from recipes.fetch import Archive, fetch
from recipes.parallel import chunks, in_order
from recipes.translation import extra_scores, space, write_translations
from recipes.translation_options import Corpus, Options, Recipe, read_options, read_recipe
from recipes.translation_steps import Clean, Cut, text_step
from recipes.translation_text import (
    Rules,
    detokenise_chinese,
    join_chinese,
    length,
    sentences,
    tidy,
    tokeniser,
)
from sacrebleu.metrics import BLEU
from sacremoses import MosesDetokenizer
from subword_nmt.learn_bpe import learn_bpe

from fairseq_recur.errors import ConfigError
from tests.translation_archives import ROOT, german, pack, sgm, tar

RECIPES = {
    name: ROOT / "examples" / name / "recipe.yaml" for name in ("wmt14_en_de", "wmt17_zh_en")
}
MEMBERS = {"a/one.txt": b"one\n" * 5000, "a/two.txt": bytes(range(256)) * 400}


# --- archives ---------------------------------------------------------------------------------


def make_archive(folder: Path, kind: str) -> Path:
    file = folder / f"archive.{kind}"
    if kind == "zip":
        pack(file, MEMBERS)
    elif kind == "tgz":
        tar(file, MEMBERS)
    else:
        with tarfile.open(file, f"w:{kind.partition('.')[2]}") as archive:
            for name, data in MEMBERS.items():
                info = tarfile.TarInfo(f"./{name}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return file


KINDS = ["tgz", "zip", "tar", "tar.xz", "tar.bz2"]


@pytest.mark.parametrize("kind", KINDS)
def test_members_are_taken_out(tmp_path: Path, kind: str) -> None:
    file = make_archive(tmp_path, kind)
    wanted = {name: tmp_path / f"{i}" for i, name in enumerate(reversed(list(MEMBERS)))}
    extract(file, wanted)
    assert {name: path.read_bytes() for name, path in wanted.items()} == MEMBERS
    with pytest.raises(ConfigError, match="has no a/three.txt; it has: a/one.txt, a/two.txt"):
        extract(file, {"a/three.txt": tmp_path / "3"})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", [0.0, 0.3, 0.6, 0.9])
def test_truncated_archives_are_named(tmp_path: Path, kind: str, part: float) -> None:
    file = make_archive(tmp_path, kind)
    content = file.read_bytes()
    file.write_bytes(content[: int(part * len(content))])
    with pytest.raises(ConfigError, match=rf"archive\.{kind} (is truncated|has no a/)"):
        extract(file, dict.fromkeys(MEMBERS, tmp_path / "out"))


@pytest.mark.parametrize("kind", ["tgz", "zip"])
def test_an_error_page_is_no_archive(tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"archive.{kind}"
    file.write_text("<html><body>404 Not Found</body></html>\n" * 100)
    with pytest.raises(ConfigError, match="truncated or damaged, or not such an archive"):
        extract(file, {"a/one.txt": tmp_path / "out"})


def test_a_damaged_member_is_detected(tmp_path: Path) -> None:
    file = tmp_path / "archive.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/one.txt", "text " * 100)
    file.write_bytes(file.read_bytes().replace(b"text text", b"text_text", 1))
    with pytest.raises(ConfigError, match="CRC"):
        extract(file, {"a/one.txt": tmp_path / "out"})


def test_what_the_disk_does_is_not_blamed_on_the_archive(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        extract(make_archive(tmp_path, "tgz"), {"a/one.txt": tmp_path / "no" / "folder"})


def test_md5_of_an_archive(tmp_path: Path) -> None:
    (tmp_path / "a.tgz").write_bytes(b"abc")
    right = Archive("a.tgz", (), md5="900150983cd24fb0d6963f7d28e17f72")
    assert fetch(right, tmp_path, str(tmp_path), "X_MIRROR") == tmp_path / "a.tgz"
    with pytest.raises(ConfigError, match="md5 900150983cd24fb0d6963f7d28e17f72, expected 000"):
        fetch(Archive("a.tgz", (), md5="0" * 32), tmp_path, str(tmp_path), "X_MIRROR")


# --- text -------------------------------------------------------------------------------------


def test_sentences_of_sgm() -> None:
    lines = ["a & b <c>", 'say "no"', "it's  5 > 4", ""]
    text = sgm("ref", "de", lines).decode()
    assert list(sentences([text], "x")) == ["a & b <c>", 'say "no"', "it's 5 > 4", ""]
    odd = '<SEG id="1"> &quot;caf&#233;&quot;&#x2028;\n and </SEG><seg id="2">more</seg>'
    assert list(sentences(odd.splitlines(keepends=True), "x")) == ['"café" and', "more"]
    for wrong in (text[: text.rindex("</seg>")], "plain text\n"):
        with pytest.raises(ConfigError, match="test.sgm has"):
            list(sentences([wrong], "test.sgm"))


def test_tidy_text_is_one_line_for_every_reader() -> None:
    every = "".join(map(chr, itertools.chain(range(0x3000), range(0xF900, 0x10000))))
    text = tidy(f"begin{every}end")
    assert len(text.splitlines()) == 1 and "  " not in text and text == " ".join(text.split())
    assert not set(text) & set("\x00\x1b\x7f\x85\u00ad\u200b\u200e\u2028\ufeff")
    assert tidy(" a\tb\u00a0c\r\n") == "a b c" and tidy("\ufeff\x00 \n") == ""


def test_blanks_in_chinese() -> None:
    assert (
        join_chinese("他们 也 审议 2017 年 的 GDP ， 是 吗 ？")
        == "他们也审议 2017 年的 GDP ，是吗？"
    )
    assert (
        detokenise_chinese("他们 审议 2017 年 的 GDP data ， “ 是 ”")
        == "他们审议2017年的GDP data，“是”"
    )
    assert join_chinese("a b") == detokenise_chinese("a b") == "a b"


def test_lengths() -> None:
    texts = ("", "one", "two words", "他们 审议GDP，", "他 a")
    assert [length(t) for t in texts] == [0, 1, 2, 6, 2]


@pytest.mark.parametrize(
    "one, other, fault",
    [("a", "", "empty"), ("", "b", "empty"), ("a b", "a b", "identical"),
     ("a\ufffd", "b", "not UTF-8"), ("a", "b", None)],
)  # fmt: skip
def test_faults(one: str, other: str, fault: str) -> None:
    assert Rules(1, 9, 2).fault(one, other) == fault


@pytest.mark.parametrize(
    "one, other, misfit",
    [(1, 5, "short"), (5, 1, "short"), (11, 10, "long"), (10, 11, "long"), (2, 5, "ratio"),
     (7, 3, "ratio"), (10, 5, None), (2, 4, None)],
)  # fmt: skip
def test_misfits(one: int, other: int, misfit: str) -> None:
    assert Rules(2, 10, 2).misfit(one, other) == misfit


def corpus(folder: Path, english: bytes, deutsch: bytes, pairs: Any = None) -> list[Any]:
    tar(folder / "a.tgz", {"x.en": english, "y.en": b"", "x.de": deutsch, "y.de": b""})
    members = {"en": ("x.en", "y.en"), "de": ("x.de", "y.de")}
    return [folder, Corpus("c", Archive("a.tgz", ()), members, pairs), folder / "a.tgz"]


def test_text_of_a_corpus_keeps_its_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    english = "one\u2028long\rline\x0b\r\n\ntwo\x85\nlast".encode()
    made = text_step(*corpus(tmp_path, english, b"eins\n\xffzwei\n\nende\n", pairs=9))
    assert (made.folder / "text.en").read_bytes() == b"one long line\n\ntwo\nlast\n"
    assert (made.folder / "text.de").read_text() == "eins\n\ufffdzwei\n\nende\n"
    assert sorted(p.name for p in made.folder.iterdir()) == [".key", "text.de", "text.en"]
    assert "warning: c has 4 pairs, expected 9" in capsys.readouterr().err


def test_languages_of_different_lengths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a.tgz has 2 lines of en and 1 of de"):
        text_step(*corpus(tmp_path, b"one\ntwo\n", b"eins\n"))
    assert not (tmp_path / "text" / "c").exists()


# --- tokens -----------------------------------------------------------------------------------


def test_moses() -> None:
    split = tokeniser("en", normalise=True, dashes=True, chinese="")
    assert split("“Well-known” isn’t it?") == "&quot; Well @-@ known &quot; isn &apos;t it ?"
    kept = tokeniser("de", normalise=False, dashes=False, chinese="")
    assert kept("„E-Mail“") == "„ E-Mail “"
    for line in (one for one, _ in german("test", 30) if "/" not in one and '"' not in one):
        back = MosesDetokenizer("en").detokenize(split(line).split())
        assert back.replace(" ", "") == line.replace("–", "-").replace("…", "...").replace(" ", "")


def test_words_of_chinese() -> None:
    words = tokeniser("zh", True, True, "jieba")("我们在北京讨论经济 问题，2017年GDP增长。")
    assert {"北京", "经济", "2017", "GDP", "，"} <= set(words.split())
    assert words.replace(" ", "") == "我们在北京讨论经济问题，2017年GDP增长。"


def test_characters_of_chinese() -> None:
    cut = tokeniser("zh", True, True, "characters")
    assert cut("我们 有3.5%的GDP-增长，“是”！") == "我 们 有 3.5 % 的 GDP - 增 长 ， “ 是 ” ！"
    assert cut("New York's 纽约 ８") == "New York's 纽 约 ８"


def test_without_jieba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jieba", None)
    tokeniser.cache_clear()
    with pytest.raises(ConfigError, match="pip install jieba.*SEGMENTATION=characters"):
        tokeniser("zh", True, True, "jieba")


def options(**given: Any) -> Options:
    defaults: dict[str, Any] = {
        "source": "en",
        "target": "de",
        "work": Path("/none"),
        "max_length": 20,
        "ratio": 2.0,
        "bpe": "joint",
    }
    return Options(**{**defaults, **given})


def test_cleaning_counts_what_it_drops() -> None:
    pairs = [
        ("One well-known house.", "Ein Haus, bekannt."), ("a", "a"), ("", "b"), ("one", "ein" * 2),
        ("one two three", "eins"), ("a " * 21, "b " * 21), ("bad \ufffd", "gut"),
    ]  # fmt: skip
    kept, faults, words = Clean(["en", "de"], options())(pairs)
    assert kept == [("One well @-@ known house .", "Ein Haus , bekannt ."), ("one", "einein")]
    assert faults == {"identical": 1, "empty": 1, "ratio": 1, "long": 1, "not UTF-8": 1}
    assert words[0] == Counter("One well @-@ known house . one".split())
    kept, _, words = Clean(["en", "de"], options(tokenizer="sentencepiece"))(pairs)
    assert kept == [("One well-known house.", "Ein Haus, bekannt."), ("one", "einein")]
    assert words == [Counter(), Counter()]


# --- processes --------------------------------------------------------------------------------


def shifted(by: int) -> Any:
    """The work of the processes."""

    def work(items: list[int]) -> list[int]:
        if -1 in items:
            raise ConfigError("found -1")
        return [item + by for item in items]

    return work


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_order_is_kept_and_little_is_read_ahead(workers: int) -> None:
    taken = 0

    def numbers() -> Iterator[int]:
        nonlocal taken
        for taken in range(3000):  # noqa: UP028 (counts what is read)
            yield taken

    found = in_order(shifted, (5,), chunks(numbers(), 10), workers, "test")
    assert next(found) == list(range(5, 15)) and taken <= 10 * (4 * workers + 2)
    assert [n for chunk in found for n in chunk] == list(range(15, 3005))


@pytest.mark.parametrize("workers", [1, 2])
def test_errors_come_out_of_the_processes(workers: int) -> None:
    with pytest.raises(ConfigError, match="found -1"):
        list(in_order(shifted, (1,), [[1], [-1], [2]], workers, "test"))


def killing() -> Any:
    """The work of a process that the system kills for lack of memory."""
    return lambda item: os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_is_reported() -> None:
    with pytest.raises(ConfigError, match="one of the 2 processes was killed.*fewer WORKERS"):
        list(in_order(killing, (), [1, 2], 2, "test"))


# --- pieces -----------------------------------------------------------------------------------


def test_bpe_of_counts_is_bpe_of_text(tmp_path: Path) -> None:
    lines = [one for one, _ in german("train", 200)]
    counts = Counter(word for line in lines for word in line.split())
    bpe.learn_codes(counts, 120, tmp_path / "codes")
    expected = io.StringIO()
    learn_bpe(io.StringIO("\n".join(lines)), expected, 120)
    assert (tmp_path / "codes").read_text() == expected.getvalue()
    bpe.write_counts(bpe.count_subwords(counts, tmp_path / "codes"), tmp_path / "vocabulary")
    cut = bpe.ApplyBpe(tmp_path / "codes", tmp_path / "vocabulary", 0)
    pieces = Counter(piece for line in lines for piece in cut(line).split())
    assert pieces == bpe.read_counts([tmp_path / "vocabulary"])
    assert cut(lines[0]).replace("@@ ", "") == lines[0] and cut("") == ""


def test_a_joint_bpe_makes_no_piece_that_the_language_lacks(tmp_path: Path) -> None:
    bpe.learn_codes({"haus": 10, "house": 10}, 9, tmp_path / "codes.en")
    english = bpe.count_subwords({"house": 10}, tmp_path / "codes.en")
    bpe.write_counts(english, tmp_path / "vocabulary.en")
    free = Cut(tmp_path, "en", options(bpe_threshold=0), raw=False)
    bound = Cut(tmp_path, "en", options(bpe_threshold=5), raw=False)
    assert free(["haus house"]) == ["haus house"]
    (cut,) = bound(["haus house"])
    assert cut.endswith("@@ s house") and "haus" not in cut


def test_no_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no pair of the corpora was kept"):
        bpe.learn_codes({}, 10, tmp_path / "codes")


def test_sentencepiece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [one for one, _ in german("train", 200)]
    subwords.learn_from_lines(lines, len(lines), 150, 1.0, tmp_path / "model")
    cut = subwords.SentencePieces(tmp_path / "model")
    assert cut(lines[0]).replace(" ", "").replace("▁", " ").strip() == lines[0]
    monkeypatch.setattr(subwords, "MOST_LINES", 50)
    subwords.learn_from_lines(lines, len(lines), 120, 1.0, tmp_path / "every-fourth")
    subwords.learn_from_lines(lines[::4], 50, 120, 1.0, tmp_path / "same")
    assert subwords.SentencePieces(tmp_path / "every-fourth")(lines[1]) == subwords.SentencePieces(
        tmp_path / "same"
    )(lines[1])
    with pytest.raises(ConfigError, match="cannot learn 5 subwords.*BPE_SIZE"):
        subwords.learn_from_lines(lines, len(lines), 5, 1.0, tmp_path / "none")


# --- recipes and options ----------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_complete(name: str) -> None:
    recipe = read_recipe(RECIPES[name])
    one, other = recipe.languages
    for first, second in ((one, other), (other, one)):
        for corpus in recipe.used(
            read_options(recipe, {"WORK": "w", "SOURCE": first, "TARGET": second})
        ):
            assert set(corpus.members) == {first, second}
            assert len(corpus.members[first]) == len(corpus.members[second])
    options = read_options(recipe, {"WORK": "w", "SOURCE": one, "TARGET": other})
    used = {corpus.archive.name for corpus in recipe.used(options)}
    assert used == {archive.name for archive in recipe.archives}
    for archive in recipe.archives:
        assert archive.urls and archive.urls[0].endswith(archive.name)
        assert archive.sha256 or archive.md5
        assert len(archive.sha256 or "0" * 64) == 64 and len(archive.md5 or "0" * 32) == 32
    assert read_options(recipe, {"WORK": "w"}).direction == f"{one}-{other}"


def test_wmt14_is_the_data_of_2014() -> None:
    train = read_recipe(RECIPES["wmt14_en_de"]).train
    assert [corpus.name for corpus in train] == ["europarl-v7", "commoncrawl", "news-commentary-v9"]
    assert sum(corpus.pairs or 0 for corpus in train) == 4_520_620


@pytest.mark.parametrize(
    "old, new, message",
    [("languages:", "tongues:", "languages"), ("archive: dev.tgz", "archive: d.tgz", "d.tgz"),
     ("disk: 5", "disk: [", "while parsing"), ("[en, de]", "[en, en]", "two different language"),
     ("  de-en:", "  de-fr:", "valid.de-en is missing(.|\n)*test.de-en is missing")],
)  # fmt: skip
def test_incomplete_recipes(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = RECIPES["wmt14_en_de"].read_text()
    assert old in text
    (tmp_path / "recipe.yaml").write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=f"recipe.yaml is not complete(.|\n)*{message}"):
        read_recipe(tmp_path / "recipe.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_recipe(tmp_path / "none.yaml")


def test_options_come_from_variables() -> None:
    recipe = read_recipe(RECIPES["wmt14_en_de"])
    given = {"SOURCE": "de", "TARGET": "en", "BPE": "separate", "BPE_SIZE": "500", "RATIO": "1.5",
             "WORK": "w", "WMT_MIRROR": "m", "WORKERS": "", "HOME": "/x"}  # fmt: skip
    found = read_options(recipe, given)
    assert (found.direction, found.bpe, found.bpe_size, found.rules) == (
        "de-en", "separate", 500, Rules(1, 250, 1.5)
    )  # fmt: skip
    assert found.wmt_mirror == "m" and found.work.is_absolute() and found.workers >= 1


def test_all_wrong_options_are_named_at_once() -> None:
    recipe = read_recipe(RECIPES["wmt14_en_de"])
    given = {"TOKENIZER": "spacy", "WORKERS": "0", "BPE_SIZE": "many", "RATIO": "nan",
             "DASHES": "no"}  # fmt: skip
    with pytest.raises(ConfigError) as error:
        read_options(recipe, given)
    for text in (
        "TOKENIZER=spacy: expected one of moses, sentencepiece", "WORKERS=0: expected a whole",
        "BPE_SIZE=many", "RATIO=nan", "DASHES=no: expected one of 0, 1", "WORK is missing",
    ):  # fmt: skip
        assert text in str(error.value)
    with pytest.raises(ConfigError) as error:
        read_options(recipe, {
            "WORK": "w", "SOURCE": "fr", "DICTIONARY": "joined", "BPE": "separate",
            "MIN_LENGTH": "300",
        })  # fmt: skip
    for text in ("SOURCE=fr TARGET=de: expected en and de", "DICTIONARY=joined", "MIN_LENGTH=300"):
        assert text in str(error.value)
    with pytest.raises(ConfigError, match="WORK=.*/12:30: fairseq misreads ':' in its path"):
        read_options(recipe, {"WORK": "12:30"})


@pytest.mark.parametrize("other", [{"TOKENIZER": "sentencepiece"}, {"BPE": "separate"}])
def test_threshold_is_of_joint_bpe(other: dict[str, str]) -> None:
    recipe = read_recipe(RECIPES["wmt14_en_de"])
    assert read_options(recipe, {"WORK": "w"}).bpe_threshold == 50
    assert read_options(recipe, {"WORK": "w", **other}).bpe_threshold == 0
    with pytest.raises(ConfigError, match="BPE_THRESHOLD has no effect without BPE=joint"):
        read_options(recipe, {"WORK": "w", "BPE_THRESHOLD": "5", **other})


def test_packages_that_options_need(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    recipe = read_recipe(RECIPES["wmt17_zh_en"])
    with pytest.raises(ConfigError, match="sacremoses(.|\n)*jieba"):
        read_options(recipe, {"WORK": "w"})
    with pytest.raises(ConfigError) as error:
        read_options(recipe, {"WORK": "w", "SEGMENTATION": "characters"})
    assert "jieba" not in str(error.value)
    read_options(recipe, {"WORK": "w", "TOKENIZER": "sentencepiece"})


def test_space_that_is_needed(tmp_path: Path) -> None:
    recipe: Recipe = read_recipe(RECIPES["wmt14_en_de"])
    train = 657632379 + 918311367 + 80418416
    work = tmp_path / "work"
    assert space(recipe, options(work=work)) == 6 * train
    (work / "downloads").mkdir(parents=True)
    (work / "downloads" / "training-parallel-nc-v9.tgz").write_bytes(bytes(100))
    (work / "text").mkdir()
    (work / "text" / "made").write_bytes(bytes(1000))
    rest = train - 80418416
    assert space(recipe, options(work=work)) == 6 * rest + 500 - 1000
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    for archive in recipe.archives:
        (mirror / archive.name).write_bytes(bytes(1000))
    assert space(recipe, options(work=work, wmt_mirror=str(mirror))) == 5 * 3000 - 1000


# --- translations -----------------------------------------------------------------------------


def test_translations_are_in_order(tmp_path: Path) -> None:
    (tmp_path / "out").write_text(
        "S-1\tx\nH-1\t-0.5\t他 们 @@\nD-1\t-0.5\t他们 说 GDP 。\nH-0\t-0.1\ta\nD-0\t-0.1\tb c\n"
    )
    for language, second in (("zh", "他们说GDP。"), ("de", "他们 说 GDP 。")):
        write_translations(tmp_path / "out", tmp_path / "text", language)
        assert (tmp_path / "text").read_text() == f"b c\n{second}\n"


def test_extra_scores(tmp_path: Path) -> None:
    reference = [other for _, other in german("test", 40)]
    guess = [line.replace("die", "der") for line in reference]
    (tmp_path / "ref").write_text("\n".join(reference) + "\n")
    (tmp_path / "hyp").write_text("\n".join(guess) + "\n")
    shown = extra_scores(tmp_path / "ref", tmp_path / "hyp", "de").splitlines()
    assert len(shown) == 2 and all(line.startswith("(not comparable") for line in shown)
    tokenise = tokeniser("de", True, False, "")
    plain = [[tokenise(tidy(line)) for line in side] for side in (guess, reference)]
    expected = BLEU(tokenize="none", smooth_method="none").corpus_score(plain[0], [plain[1]]).score
    assert float(shown[0].rsplit(" ", 1)[1]) == pytest.approx(expected, abs=0.005)
    assert 0 < expected < 100
    (tmp_path / "hyp").write_text("good-bye z a b c\n" * 2)
    (tmp_path / "ref").write_text("bad-bye z a b c\n" * 2)
    shown = extra_scores(tmp_path / "ref", tmp_path / "hyp", "de").splitlines()
    assert float(shown[1].rsplit(" ", 1)[1]) > float(shown[0].rsplit(" ", 1)[1])
