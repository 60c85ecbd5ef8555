"""The summarization recipes' parts: reading archives, settings, flags."""

import gzip
import io
import json
import shutil
import zipfile
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recipes import archives, summarization, summary_flags
from recipes.archives import json_lines, objects, read_json, tar_members, zip_lines
from recipes.steps import step
from recipes.subwords import KINDS, SPIECE, Gpt2, SentencePieces
from recipes.summary_check import check_prepared, check_texts
from recipes.summary_extracts import (
    average_words,
    lead,
    longest_turns,
    metrics_for,
    write_extracts,
)
from recipes.summary_options import AUTO, SPLITS, Choices, choose, read_data_set
from recipes.summary_prepare import Encode, encode_all, learn_from_documents
from recipes.summary_readers import READERS, Document, arxiv, mediasum, split_story, xsum
from recipes.summary_report import write_results
from recipes.summary_segments import describe, suggest
from recipes.summary_segments import main as print_segments
from recipes.summary_texts import one_line, write_texts

from fairseq_recur.errors import ConfigError
from fairseq_recur.scoring.rouge import VARIANTS
from tests.docs.commands import parse
from tests.summarization_mirror import MAKERS, gpt2, tar_gz

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "examples" / "summarization"
NAMES = tuple(MAKERS)


def chosen(**changes: Any) -> Choices:
    return choose(replace(Choices(), **changes))


def test_a_text_is_one_line_whatever_is_in_it() -> None:
    separators = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
    assert one_line(f" a{separators}b\t\u00a0c ") == "a b c"
    assert one_line("a\ud800b") == "a?b"  # JSON can have half a surrogate, UTF-8 cannot
    assert len(one_line("x".join(separators)).splitlines()) == 1


def test_a_story() -> None:
    text = (
        "(CNN) -- One.\n\nA caption\n\nHe said \u201cno\u201d\n\n@highlight\n\nFirst\n\n"
        "@highlight\n\nSecond!\nand more\n\n@highlight\n"
    )
    article, highlights = split_story(text)
    assert article == "(CNN) -- One. A caption . He said \u201cno\u201d"
    assert highlights == "First . Second! and more ."
    assert split_story("text") == ("text .", "")


def members(count: int = 40) -> list[Any]:
    return [(f"d/{i}.story", f"{i} is {i * i} {'x' * i}\n".encode() * 20) for i in range(count)]


def test_members_of_an_archive(tmp_path: Path) -> None:
    file = tmp_path / "a.tgz"
    tar_gz(file, [*members(3), ("d/._1.story", b"\xff"), ("d/1.other", b"x")])
    assert [name for name, _ in tar_members(file, ".story")] == ["0", "1", "2"]
    assert dict(tar_members(file, ".story"))["2"] == members(3)[2][1].decode()
    tar_gz(file, [("d/1.story", b"\xff")])
    with pytest.raises(ConfigError, match=r"a.tgz, d/1.story: not UTF-8"):
        list(tar_members(file, ".story"))


def test_an_archive_that_is_truncated_anywhere_is_named(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.tgz", tmp_path / "cut.tgz"
    tar_gz(whole, members())
    content = whole.read_bytes()
    for size in [0, 1, 9, 20, *range(50, len(content), 97), len(content) - 9, len(content) - 1]:
        cut.write_bytes(content[:size])
        with pytest.raises(ConfigError, match="cut.tgz is truncated or damaged"):
            list(tar_members(cut, ".story"))


def test_an_archive_that_is_damaged_or_another_kind_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.tgz"
    tar_gz(file, members())
    content = bytearray(file.read_bytes())
    content[-6] ^= 1  # in the checksum
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="CRC"):
        list(tar_members(file, ".story"))
    for other in (b"<html>not found</html>", gzip.compress(b"no tar" * 500)):
        file.write_bytes(other)
        with pytest.raises(
            ConfigError, match="a.tgz is truncated or damaged, or not such an archive"
        ):
            list(tar_members(file, ".story"))


def zipped(file: Path, **content: str) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in content.items():
            archive.writestr(f"d/{name}.txt", text)
    return file


def test_lines_of_a_zip(tmp_path: Path) -> None:
    file = zipped(tmp_path / "a.zip", train="a\u2028b\r\n\nc", val="x")
    assert [line for _, line in zip_lines(file, "train.txt")] == ["a\u2028b\r\n", "c"]
    with pytest.raises(ConfigError, match="expected one test.txt in it, found 0"):
        list(zip_lines(file, "test.txt"))
    content = zipped(tmp_path / "b.zip", train="".join(map(str, range(9999)))).read_bytes()
    for size in (0, 100, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:size])
        with pytest.raises(ConfigError, match="a.zip is truncated or damaged"):
            list(zip_lines(file, "train.txt"))
    damaged = bytearray(content)
    damaged[len(content) // 2] ^= 255
    file.write_bytes(damaged)
    with pytest.raises(ConfigError, match="a.zip is truncated or damaged"):
        list(zip_lines(file, "train.txt"))


def test_a_wrong_line_of_a_paper_is_named(tmp_path: Path) -> None:
    texts = {"article_text": ["a", "b ."], "abstract_text": ["<S> c </S>"]}
    good = json.dumps({"article_id": "1", **texts})
    file = zipped(tmp_path / "a.zip", train=f"{good}\n", val=f"{good}\n{good[:-9]}\n", test="")
    papers = arxiv({"papers": file}, {})
    first = next(papers)
    assert (first.split, first.source, one_line(first.summary)) == ("train", "a b .", "c")
    with pytest.raises(ConfigError, match=r"a.zip, d/val.txt, line 2: not JSON"):
        list(papers)
    file = zipped(tmp_path / "b.zip", train='{"article_text": "x"}', val="", test="")
    with pytest.raises(ConfigError, match="train.txt, line 1: expected a list of texts as artic"):
        list(arxiv({"papers": file}, {}))


ITEMS: list[dict[str, Any]] = [
    {"id": "a", "utt": ["x]", "\u2028,{"], "n": 12.5},
    {"id": "b", "deep": {"l": [[{}, {"}": "]"}]]}, "t": 'quote " \\ back'},
    {"id": "c" * 50},
]


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
def test_objects_of_an_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, indent: Any
) -> None:
    monkeypatch.setattr(archives, "JSON_BLOCK", block)
    file = tmp_path / "a.json"
    text = json.dumps(ITEMS, indent=indent, ensure_ascii=False)
    file.write_text(f" \n{text}\n\n", encoding="utf-8")
    found = list(objects(file))
    assert [item for _, item in found] == ITEMS
    lines = text.split("\n")
    begins = [i + 2 for i, line in enumerate(lines) if line == "  {"] if indent else [2, 2, 2]
    assert [where for where, _ in found] == [f"{file}, line {begin}" for begin in begins]


def test_a_byte_order_mark_is_no_damage(tmp_path: Path) -> None:
    file, item = tmp_path / "a.json", {"a": "\ufeffb"}
    file.write_text(json.dumps(item, ensure_ascii=False), encoding="utf-8-sig")
    assert read_json(file) == item
    assert list(json_lines(file)) == [(f"{file}, line 1", item)]
    file.write_text(json.dumps([item], ensure_ascii=False), encoding="utf-8-sig")
    assert list(objects(file)) == [(f"{file}, line 1", item)]


def test_an_array_that_is_truncated_anywhere_is_named(tmp_path: Path) -> None:
    file, text = tmp_path / "a.json", json.dumps(ITEMS, indent=1)
    for size in range(len(text)):
        file.write_text(text[:size])
        with pytest.raises(ConfigError, match="a.json, line"):
            list(objects(file))
    for wrong in (text + "]", text + text, text[1:], text.replace("},", "}", 1), "[1]", "[[]]"):
        file.write_text(wrong)
        with pytest.raises(ConfigError, match="a.json, line"):
            list(objects(file))
    file.write_bytes(b'[{"a": "\xff"}]')
    with pytest.raises(ConfigError, match="a.json: not UTF-8"):
        list(objects(file))


def test_an_object_without_an_end_is_not_looked_for_in_gigabytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "JSON_BLOCK", 10)
    monkeypatch.setattr(archives, "LARGEST", 100)
    text = io.StringIO('{"a" 1}' + " " * 10_000)
    with pytest.raises(ConfigError, match="no complete object begins here"):
        archives._parse(json.JSONDecoder(), text, "", "here")
    assert text.tell() < 500


def interviews(tmp_path: Path, items: list[dict[str, Any]], **splits: list[str]) -> dict[str, Path]:
    files = {"interviews": tmp_path / "i.json", "splits": tmp_path / "s.json"}
    files["interviews"].write_text(json.dumps(items))
    files["splits"].write_text(json.dumps({"train": [], "val": [], "test": [], **splits}))
    return files


def test_interviews(tmp_path: Path) -> None:
    item = {"id": "1", "utt": ["Hi.", "Yes."], "speaker": ["A, host", "B"], "summary": "s"}
    files = interviews(tmp_path, [item, {"id": "2"}], val=["1"])
    (found,) = mediasum(files, {"speakers": True})
    assert found == Document("valid", "1", "A, host: Hi. B: Yes.", "s")
    (found,) = mediasum(files, {"speakers": False})
    assert found.source == "Hi. Yes."
    with pytest.raises(ConfigError, match="1 of 2 listed interviews are missing, the first is 3"):
        list(mediasum(interviews(tmp_path, [item], val=["1"], test=["3"]), {"speakers": True}))
    with pytest.raises(ConfigError, match="an interview exists twice"):
        list(mediasum(interviews(tmp_path, [item], val=["1"], test=["1"]), {"speakers": True}))
    files = interviews(tmp_path, [{**item, "speaker": ["A"]}], val=["1"])
    with pytest.raises(ConfigError, match="line 1: 2 utterances and 1 speakers"):
        list(mediasum(files, {"speakers": True}))


def articles(tmp_path: Path, found: list[Any], **splits: list[str]) -> dict[str, Path]:
    files = {"articles": tmp_path / "a.tar.gz", "splits": tmp_path / "s.json"}
    tar_gz(files["articles"], [(f"bbc-summary-data/{n}.summary", t.encode()) for n, t in found])
    files["splits"].write_text(json.dumps({"train": [], "validation": [], "test": [], **splits}))
    return files


def test_articles(tmp_path: Path) -> None:
    options = read_data_set(RECIPES / "xsum" / "data.yaml").options
    text = (
        "[SN]URL[SN]\nu\n[SN]TITLE[SN]\nt\n[SN]FIRST-SENTENCE[SN]\nfirst\n"
        "[SN]RESTBODY[SN]\nShare this with\nEmail\nShare this with us.\n\nrest\n"
    )
    (found,) = xsum(articles(tmp_path, [("7", text), ("8", "")], test=["7"]), options)
    assert (found.split, one_line(found.source)) == ("test", "Share this with us. rest")
    assert one_line(found.summary) == "first"
    for found_, splits, message in (
        ([("7", text)], {"test": ["7", "9"]}, "1 of 2 listed documents are missing, .* is 9"),
        ([("7", text)] * 2, {"test": ["7"]}, "7 exists twice"),
        ([("7", "[SN]URL[SN]")], {"test": ["7"]}, "expected the sections .* found URL"),
        ([("7", text)], {"test": ["7"], "train": ["7"]}, "7 is in train and in test"),
    ):
        with pytest.raises(ConfigError, match=message):
            list(xsum(articles(tmp_path, found_, **splits), options))


def test_dialogues(tmp_path: Path) -> None:
    files = {split: tmp_path / f"{split}.json" for split in SPLITS}
    item = {"id": "1", "dialogue": "A: x\r\n\r\nB: y ", "summary": "z"}
    for file in files.values():
        file.write_text(json.dumps([item]))
    found = list(READERS["samsum"](files, {}))
    assert [(d.split, d.source, d.summary) for d in found] == [
        (split, "A: x <n> B: y", "z") for split in SPLITS
    ]
    files["test"].write_text(json.dumps([item, {"id": "2", "dialogue": "A: x"}]))
    with pytest.raises(ConfigError, match="line 1: expected texts as dialogue, id, summary"):
        list(READERS["samsum"](files, {}))


def test_calls(tmp_path: Path) -> None:
    file = tmp_path / "a.zip"
    paths = [f"E-1/data/final/{s}/{k}/B_q1.txt" for s in ("train", "val", "test")
             for k in ("ects", "gt_summaries")]  # fmt: skip
    for lacking in (None, *paths):
        with zipfile.ZipFile(file, "w") as archive:
            for path in (*paths, "E-1/data/final/val/ects/A.md", "E-1/other/val/ects/C_q1.txt"):
                if path != lacking:
                    archive.writestr(path, path.split("/")[3] + "\n" + path.split("/")[4])
        read = READERS["ectsum"]({"repository": file}, {})
        if lacking is None:
            assert [(d.split, d.name, one_line(d.source), one_line(d.summary)) for d in read] == [
                (split, "B_q1", f"{name} ects", f"{name} gt_summaries")
                for split, name in (("train", "train"), ("valid", "val"), ("test", "test"))
            ]
        else:
            with pytest.raises(
                ConfigError, match=f"expected files {lacking.rpartition('/')[0][4:]}"
            ):
                list(read)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("E-1/data/final/test/gt_summaries/D_q1.txt", "x")
        archive.writestr("E-1/data/final/test/gt_summaries/B_q1.txt", "x")
        archive.writestr(paths[-1].replace("B_q1", "A_q1"), "x")
    with pytest.raises(ConfigError, match="of data/final/test A_q1 is not in both"):
        list(READERS["ectsum"]({"repository": file}, {}))


def test_meetings(tmp_path: Path) -> None:
    files = {split: tmp_path / f"{split}.jsonl" for split in SPLITS}
    turns = [("Al", "{vocalsound} Hello {gap} all ."), ("Bo", "{disfmarker}"), ("Bo", "Bye")]
    meeting: dict[str, Any] = {
        "meeting_transcripts": [{"speaker": s, "content": c} for s, c in turns],
        "general_query_list": [{"query": "All?", "answer": "a"}],
        "specific_query_list": [{"query": "Who?", "answer": "b"}, {"query": "1?", "answer": "c"}],
    }
    for file in files.values():
        file.write_text(json.dumps(meeting) + "\n\n")
    found = [(d.source, d.summary) for d in READERS["qmsum"](files, {}) if d.split == "valid"]
    said = "</q> Al: Hello all . Bo: Bye"
    assert found == [(f"All? {said}", "a"), (f"Who? {said}", "b"), (f"1? {said}", "c")]
    del meeting["general_query_list"][0]["answer"]
    files["test"].write_text("\n" + json.dumps(meeting))
    with pytest.raises(ConfigError, match="l, line 2: expected a list .* query and answer"):
        list(READERS["qmsum"](files, {}))


def test_extracts(tmp_path: Path) -> None:
    """Neither a query nor the marks between turns are words of a text: ROUGE would read them."""
    (tmp_path / "train.target").write_text("a b c\nd e f\n")
    (tmp_path / "test.target").write_text("x y\nx\n")
    (tmp_path / "test.source").write_text(
        "A: a <n> B: b b b <n> A: c c <n> A: d d\nq? a b </q> B: x y\n"
    )
    (out := tmp_path / "out").mkdir()
    write_extracts(tmp_path, out)
    assert (out / "lead-3.txt").read_text() == "A: a B:\nB: x y\n"
    assert (out / "longest-3.txt").read_text() == "B: b b b A: c c A: d d\nB: x y\n"
    scores = json.loads((out / "scores.json").read_text())
    assert list(scores) == ["lead-3", "longest-3"]
    assert [s["metric"] for s in scores["lead-3"]][:2] == ["rouge1", "rouge2"]


WEATHER = "\u4eca\u5929\u7684\u5929\u6c14"  # five Chinese characters


@pytest.mark.parametrize(
    "lines, score",
    [
        (["\u0434\u0430 \u043d\u0435\u0442 \u0434\u0430"], 100.0),
        ([f"{WEATHER} 2024"] * 2, 100.0),  # a year in each line
        (["...", "!"], 100.0),
    ],
)
def test_summaries_that_rouge_does_not_read_are_scored_with_chrf(
    tmp_path: Path, lines: list[str], score: float, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("train.target", "test.source", "test.target"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    write_extracts(tmp_path, tmp_path)
    (scores,) = json.loads((tmp_path / "scores.json").read_text()).values()
    assert [(one["metric"], one["score"]) for one in scores] == [("chrF2", score)]
    assert "these summaries are scored with chrf" in capsys.readouterr().out


def test_accents_and_single_foreign_summaries_are_no_other_script() -> None:
    assert metrics_for(["\u00c9t\u00e9 \u00e0 Z\u00fcrich", "\u0434\u0430"]) == VARIANTS


def test_results_have_the_metric_of_the_extracts(tmp_path: Path) -> None:
    """Also where a training is compared with another."""
    choices, line = chosen(pieces="sentencepiece"), "\u0434\u0430 \u043d\u0435\u0442"
    model, run = tmp_path / choices.folder / "model", tmp_path / "run"
    for folder in (model, run, tmp_path / "text", tmp_path / "extracts"):
        folder.mkdir(parents=True)
    for name in ("train.source", "train.target", "test.source", "test.target"):
        (tmp_path / "text" / name).write_text(f"{line}\n" * 20, encoding="utf-8")
    (tmp_path / "text" / "counts.json").write_text("{}")
    write_extracts(tmp_path / "text", tmp_path / "extracts")
    learn_from_documents(tmp_path / "text", model, 12)
    pieces = " ".join(SentencePieces(model / SPIECE).encode(line))
    (run / "generate.out").write_text("".join(f"H-{i}\t-0.1\t{pieces}\n" for i in range(20)))
    data = read_data_set(RECIPES / "samsum" / "data.yaml")
    for baseline in (None, run):
        write_results(data, choices, tmp_path, run, "checkpoint_best.pt", [], baseline)
        report = json.loads((run / "results.json").read_text())
        assert [(one["metric"], one["score"]) for one in report["scores"]] == [("chrF2", 100.0)]
        assert {one["metric"] for one in report["extracts"]["lead-2"]} == {"chrF2"}


def test_words_of_scripts_without_blanks_are_characters(tmp_path: Path) -> None:
    (tmp_path / "train.target").write_text(f"{WEATHER} X11\n{WEATHER}\n", encoding="utf-8")
    assert average_words(tmp_path) == 6  # 5.5, rounded to even
    assert lead(f"{WEATHER}X11\u3002{WEATHER}", 7) == f"{WEATHER}X11\u3002"
    assert lead(f"  {WEATHER[:2]}  {WEATHER} <n> {WEATHER}", 7) == f"{WEATHER[:2]} {WEATHER}"
    turns = ["A: " + WEATHER[:n] for n in (1, 5, 2, 4)]
    assert longest_turns(" <n> ".join(turns)) == " ".join(turns[1:])
    # A face of Japanese signs in a text with blanks is one word.
    assert lead("so happy (\uff3e\u03c9\uff3e) today, thank you", 4) == (
        "so happy (\uff3e\u03c9\uff3e) today,"
    )


def test_segments_that_are_never_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lengths include the end symbol; the proposed values are those that give no warning."""
    sources, targets = [160] * 9 + [1600], [30] * 10
    report, warning = describe(sources, targets, 16, 24)
    assert "have 19.0 on average, at most 100; 10.0% have more than 24, the target" in report
    assert "with segments of 64 and a target length of 30 there would be 5.2" in warning
    assert describe([160] * 10, targets, 16, 10)[1] == ""
    assert "100.0% have more" in describe([161] * 10, targets, 16, 10)[0]
    for lengths, summaries in (([161] * 10, [3]), ([9000, 20] * 50, [5]), ([5], [2])):
        size, length = suggest(lengths, summaries)
        assert describe(lengths, summaries, size, length)[1] == ""
        assert 4 <= sum(-(-n // size) for n in lengths) / len(lengths) <= 8
    for side in ("source", "target"):
        (tmp_path / f"train.{side}").write_text(" ".join("a" * 16) + "\n")
    assert print_segments([str(tmp_path), "16", "1"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("segments of 16 pieces: the training texts have 2.0 on average")
    assert printed.err.startswith("warning: there should be 4 to 16 segments")
    assert print_segments([str(tmp_path / "none"), "16", "1"]) == 2
    assert "train.source'; prepare the data first" in capsys.readouterr().err


def documents(*splits: str) -> list[Document]:
    return [Document(s, str(i), f"text\n{i}", f"summary {i}") for i, s in enumerate(splits)]


def test_incomplete_documents_leave_training_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = documents("train", "valid", "test", "train")
    given += [Document("train", "x", "\u2028", "a"), Document("train", "y", "a", "")]
    given += [Document("test", "z", "", "b")]
    write_texts(given, tmp_path, {"train": 4, "valid": 1, "test": 2})
    assert (tmp_path / "train.source").read_text() == "text 0\ntext 3\n"
    assert (tmp_path / "test.source").read_text() == "text 2\n\n"
    assert (tmp_path / "test.target").read_text() == "summary 2\nb\n"
    counts = json.loads((tmp_path / "counts.json").read_text())
    assert counts["train"] == {"documents": 4, "without_text": 1, "without_summary": 1, "lines": 2}
    assert "1 without text, left out" in (out := capsys.readouterr().out)
    assert "1 without text, kept" in out
    write_texts(given, tmp_path, {"train": 4, "valid": 1, "test": 2}, sample=1)
    assert (tmp_path / "train.target").read_text() == "summary 0\n"
    assert len((tmp_path / "test.target").read_text().splitlines()) == 2


def test_a_set_of_another_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="has 1 documents, expected 2\n- test has no text; remove"
    ):
        write_texts(documents("train", "valid"), tmp_path, {"train": 2, "valid": 1, "test": 0})
    with pytest.raises(ConfigError, match="- valid has no text; give.*\n- test has no text; g"):
        write_texts(documents("train"), tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_data_sets_are_described(name: str) -> None:
    data = read_data_set(RECIPES / name / "data.yaml")
    assert data.format in READERS and set(data.documents) == set(SPLITS)
    archives = [source.archive for source in data.files.values()]
    assert len({a.name for a in archives}) == len(archives)
    assert all(source.archive.urls or source.how for source in data.files.values())
    assert all(a.sha256 is None or len(a.sha256) == 64 for a in archives)
    for script in ("prepare.sh", "train.sh", "evaluate.sh"):
        assert f"{name}/{script}" in (RECIPES / name / script).read_text()


@pytest.mark.parametrize(
    "arch, pieces, start, settings",
    [
        ("srformer_bart_base", "gpt2", "bart.base", "fairseq"),
        ("bart_base", "gpt2", "bart.base", "fairseq"),
        ("srformer_bart_large", "gpt2", "bart.large", "fairseq"),
        ("srformer_t5_small", "t5", "t5-small", "paper"),
        ("transformer_biarn_wmt_en_de", "sentencepiece", "none", "scratch"),
    ],
)
def test_what_follows_from_the_architecture(
    arch: str, pieces: str, start: str, settings: str
) -> None:
    found = chosen(arch=arch)
    assert (found.pieces, found.start, found.settings) == (pieces, start, settings)


def test_other_pieces_or_no_start() -> None:
    assert chosen(pieces="sentencepiece").start == "none"
    assert chosen(start="none").pieces == "sentencepiece"
    assert chosen(start="none", pieces="gpt2").settings == "scratch"
    assert chosen(arch="transformer", start="bart.base").pieces == "gpt2"


def test_all_wrong_settings_are_reported_together() -> None:
    with pytest.raises(ConfigError) as error:
        chosen(
            arch="srformer_bart_bass", pieces="bpe", start="bart", max_source=1, max_target=0,
            vocabulary=1, settings="best", generation="x", workers=0, average=-1,
        )  # fmt: skip
    lines = str(error.value).split("\n")[1:]
    names = "ARCH PIECES START MAX_SOURCE MAX_TARGET VOCABULARY SETTINGS GENERATION WORKERS AVERAGE"
    assert [line[2:].split("=")[0] for line in lines] == names.split()
    assert "did you mean srformer_bart_base?" in lines[0]
    with pytest.raises(ConfigError) as error:  # as text, which the scripts pass on
        chosen(max_source="abc", settings="foo", pieces="bar", seed="x", average="1.5")
    lines = str(error.value).split("\n")[1:]
    names = "PIECES MAX_SOURCE SETTINGS SEED AVERAGE"
    assert [line[2:].split("=")[0] for line in lines] == names.split()
    assert chosen(max_source="0512", seed="7") == chosen(max_source=512, seed=7)
    for wrong, message in (
        ({"start": "bart.base", "pieces": "t5"}, "START=bart.base needs PIECES=gpt2, not t5"),
        ({"max_source": 2048}, "START=bart.base has 1024 positions"),
    ):
        with pytest.raises(ConfigError, match=message):
            chosen(**wrong)


def prepared(work: Path, choices: Choices, lines: int = 1001) -> Path:
    """The folders that train.sh checks, without the data."""
    (work / "text").mkdir(parents=True, exist_ok=True)
    (work / "text" / "counts.json").write_text(json.dumps({"train": {"lines": lines}}))
    folder = work / choices.folder
    (folder / "data-bin").mkdir(parents=True, exist_ok=True)
    (folder / "model").mkdir(exist_ok=True)
    gpt2(folder / "model")
    if choices.start != "none":
        (work / choices.start).mkdir(exist_ok=True)
        (work / choices.start / "model.pt").touch()
    return folder


@pytest.mark.parametrize(
    "arch, settings",
    [("bart_base", "paper"), ("srformer_bart_large", "fairseq"), ("transformer", "scratch")],
)
def test_fairseq_trains_with_the_flags(tmp_path: Path, arch: str, settings: str) -> None:
    data = read_data_set(RECIPES / "cnn_dm" / "data.yaml")
    choices = chosen(arch=arch, settings=settings)
    folder = prepared(tmp_path, choices)
    prefix = "" if choices.pieces == "sentencepiece" else AUTO
    words = summary_flags.training(data, choices, tmp_path, tmp_path / "run", prefix)
    parse(["fairseq-recur", "train", str(folder / "data-bin"), *words, "--optimizer", "adam"])


@pytest.mark.parametrize(
    "name, generation", [*((name, "usual") for name in NAMES), ("xsum", "paper")]
)
def test_fairseq_searches_with_the_flags(name: str, generation: str) -> None:
    data = read_data_set(RECIPES / name / "data.yaml")
    words = summary_flags.generation(data, chosen(generation=generation))
    parse(["fairseq-recur", "generate", "data", "--path", "x", *words])


def flag(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def test_the_papers_settings(tmp_path: Path) -> None:
    data = read_data_set(RECIPES / "cnn_dm" / "data.yaml")
    choices = chosen(settings="paper", seed=3)
    prepared(tmp_path, choices)
    words = summary_flags.training(data, choices, tmp_path, tmp_path / "run", AUTO)
    assert flag(words, "--max-update") == flag(words, "--total-num-update") == str(25 * 126)
    assert flag(words, "--lr") == "5e-5" and flag(words, "--clip-norm") == "0"
    assert {flag(words, f"--{place}dropout") for place in ("", "attention-", "activation-")} == {
        "0.1"
    }
    assert flag(words, "--finetune-from-model") == str(tmp_path / "bart.base" / "model.pt")
    assert summary_flags.batch(data, choices) == ("documents", 8)
    assert summary_flags.batch(data, chosen(arch="srformer_t5_small")) == ("documents", 16)
    prefix = flag(words, "--source-prefix").split()
    assert Gpt2(tmp_path / choices.folder / "model").decode(prefix) == "summarize: "
    words = summary_flags.training(data, choices, tmp_path, tmp_path / "run", "")
    assert "--source-prefix" not in words and flag(words, "--seed") == "3"


def test_fairseqs_settings(tmp_path: Path) -> None:
    for name, updates, tokens in (("cnn_dm", "20000", 65536), ("xsum", "15000", 32768)):
        data = read_data_set(RECIPES / name / "data.yaml")
        choices = chosen(settings="fairseq", average=3)
        prepared(tmp_path, choices)
        words = summary_flags.training(data, choices, tmp_path, tmp_path / "run", AUTO)
        assert flag(words, "--total-num-update") == updates and "--source-prefix" not in words
        assert flag(words, "--keep-last-epochs") == "3"
        assert summary_flags.batch(data, choices) == ("tokens", tokens)


@pytest.mark.parametrize("name", NAMES)
def test_a_usual_summary_reads_all_segments(name: str, tmp_path: Path) -> None:
    """Its writer has gone through all of them at the target length; 1,024 is the default source."""
    data = read_data_set(RECIPES / name / "data.yaml")
    choices = chosen(settings="fairseq")
    prepared(tmp_path, choices)
    words = summary_flags.training(data, choices, tmp_path, tmp_path / "run", AUTO)
    length, size = (int(flag(words, f"--{of}")) for of in ("target-length", "segment-size"))
    assert length == data.target_length <= choices.max_target and "--srformer-clamp" not in words
    usual = 160 if name == "samsum" else 1024
    assert usual / size <= min(16, length)
    words = summary_flags.training(data, chosen(settings="paper"), tmp_path, tmp_path, AUTO)
    assert flag(words, "--target-length-mode") == "reference" and "--segment-size" not in words
    assert flag(words, "--target-length") == str(length) and flag(words, "--srformer-clamp") == "2"
    words = summary_flags.training(data, chosen(arch="bart_base"), tmp_path, tmp_path, AUTO)
    assert "--target-length" not in words


def test_training_without_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no .*/data-bin and no .*/model.pt; run prepare.sh"):
        check_prepared(chosen(), tmp_path)


def test_data_of_other_texts_are_refused(tmp_path: Path) -> None:
    """Those of all kinds of subwords share the folder of the texts."""
    choices = chosen(start="none", pieces="sentencepiece")

    def nothing(folder: Path) -> None:
        return

    def prepare(texts: str, limits: dict[str, int]) -> None:
        folder = tmp_path / choices.folder
        text, model = step(tmp_path, "text", [texts], nothing), step(folder, "model", [], nothing)
        pieces = step(folder, "pieces", [text, model, limits], nothing)
        step(folder, "data-bin", [pieces, model], nothing)

    prepare("first", choices.limits)
    check_prepared(choices, tmp_path)
    step(tmp_path, "text", ["second"], nothing)
    with pytest.raises(ConfigError, match="was not made from the texts that are now in .*/text;"):
        check_prepared(choices, tmp_path)
    with pytest.raises(ConfigError, match="was not made from the texts"):
        check_texts(choices, tmp_path)
    prepare("second", choices.limits)
    check_texts(choices, tmp_path)


@pytest.mark.parametrize("arch", ["codet5_small", "rsa_codet5_small", "mbart_base"])
def test_a_model_of_another_name_has_no_start(arch: str) -> None:
    """Its name contains that of a model whose weights are not its own."""
    assert chosen(arch=arch).start == "none"
    assert chosen(arch="srformer_bart_large").start == "bart.large"


def test_gpt2_pieces_are_the_text_again(tmp_path: Path) -> None:
    gpt2(tmp_path)
    pieces, text = Gpt2(tmp_path), "the other héron \u4f60 in\u00a0a then"
    encoded = pieces.encode(text)
    assert pieces.decode(encoded) == text and len(encoded) < len(text.encode())
    assert pieces.decode([*encoded, "<unk>", "madeupword0001", "99999"]) == text
    (tmp_path / "encoder.json").write_text("{")
    with pytest.raises(ConfigError, match="no usable GPT-2 BPE"):
        Gpt2(tmp_path)


def texts_in(folder: Path) -> None:
    for split in SPLITS:
        for side in ("source", "target"):
            lines = [f"{side} {split} {i}" + " in the other" * i for i in range(9)]
            (folder / f"{split}.{side}").write_text("\n".join(["", *lines]) + "\n")


@pytest.mark.parametrize("workers", [1, 2])
def test_texts_are_cut_where_a_model_reads_them(tmp_path: Path, workers: int) -> None:
    gpt2(tmp_path)
    texts_in(tmp_path)
    (out := tmp_path / "out").mkdir()
    encode_all("gpt2", tmp_path, tmp_path, out, {"source": 40, "target": 30}, workers)
    pieces = Gpt2(tmp_path)
    for split in SPLITS:
        for side, limit in (("source", 40), ("target", 30 if split == "train" else None)):
            lines = (tmp_path / f"{split}.{side}").read_text().split("\n")[:-1]
            expected = [" ".join(pieces.encode(line)[:limit]) for line in lines]
            assert (out / f"{split}.{side}").read_text().split("\n")[:-1] == expected


def test_words_beyond_the_limit_are_not_encoded(tmp_path: Path) -> None:
    gpt2(tmp_path)
    encode = Encode("gpt2", tmp_path, 5)
    assert encode(["in the", "a b c d e f g"]) == [
        (" ".join(Gpt2(tmp_path).encode("in the")), False),
        (" ".join(Gpt2(tmp_path).encode("a b c d e f g")[:5]), True),
    ]


@pytest.mark.parametrize("line", ["lorem ipsum dolor sit amet " * 900, WEATHER * 900])
def test_sentencepiece_learns_from_long_texts(tmp_path: Path, line: str) -> None:
    """Lines longer than its limit of 4192 bytes would be left out."""
    for side in ("source", "target"):
        (tmp_path / f"train.{side}").write_text(line, encoding="utf-8")
    learn_from_documents(tmp_path, tmp_path, 30)
    assert "<unk>" not in SentencePieces(tmp_path / SPIECE)(line[:5])


def test_a_text_with_fewer_subwords_than_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It gets those that there are; fewer than its characters are still an error."""
    for side in ("source", "target"):
        (tmp_path / f"train.{side}").write_text("ab abc\n" * 20)
    learn_from_documents(tmp_path, tmp_path, 9)
    assert capsys.readouterr().err == ""
    learn_from_documents(tmp_path, tmp_path, 9999)
    reached = SentencePieces(tmp_path / SPIECE).processor.get_piece_size()
    assert f"has only {reached} subwords, not 9,999" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="cannot learn 5 subwords.*required_chars"):
        learn_from_documents(tmp_path, tmp_path, 5)


def prepare(work: Path, name: str, *words: Any) -> int:
    return summarization.main(
        ["prepare", "--recipe", str(RECIPES / name), "--work-dir", str(work), *map(str, words)]
    )


def test_no_room_is_reported_before_anything_is_got(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(9, 0, int(25e9)))

    def never(*args: Any) -> None:
        raise AssertionError("nothing may be got")

    monkeypatch.setattr("recipes.summary_prepare.fetch", never)
    assert prepare(tmp_path, "arxiv", "--arch", "transformer") == 2
    # 7.6 GB of text 3.5 times, and the archive
    assert "the data set arxiv needs 30.2 GB and the disk of" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize("name, mark", [("w:x", ":"), ("${w}", "${")])
def test_a_folder_that_fairseq_misreads_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, mark: str
) -> None:
    texts_in(tmp_path)
    assert prepare(tmp_path / name, "samsum", "--texts", tmp_path, "--arch", "transformer") == 2
    assert f"{name}: fairseq misreads {mark!r} in its path; choose" in capsys.readouterr().err
    assert [file.name for file in (tmp_path / name).iterdir()] == [".lock"]


def test_a_file_without_an_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare(tmp_path, "mediasum") == 2
    error = capsys.readouterr().err
    assert "news_dialogue.json: download the zip that" in error and "SUMMARIZATION_MIRROR" in error
    assert prepare(tmp_path, "mediasum", "--mirror", tmp_path / "none") == 2
    assert "there is no such folder" in capsys.readouterr().err


def test_kinds_of_pieces_are_known() -> None:
    assert set(KINDS) == {"gpt2", "t5", "sentencepiece"}
