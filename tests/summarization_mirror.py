"""A mirror of the summarization recipes' archives: their layouts and formats, little text.

The texts are those of the example in examples/summarization/data.
"""

import argparse
import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import build_model
from recipes.fetch import sha256

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "examples" / "summarization" / "data"
COUNTS = {"train": 60, "valid": 6, "test": 6}
SHAPE = (
    "--encoder-embed-dim 16 --encoder-ffn-embed-dim 16 --encoder-layers 1 --decoder-layers 1"
    " --encoder-attention-heads 2 --decoder-attention-heads 2"
).split()
"""Of the model in the mirror's bart.base.tar.gz, and of the tests' others."""

MERGES = ("\u0120 t", "h e", "i n", "\u0120t he", "e r", "a n", "\u0120 a", "o n", "r e")
Pairs = dict[str, list[tuple[str, str]]]


def pairs(counts: dict[str, int] = COUNTS) -> Pairs:
    """Texts and summaries of each split; the training set starts with the difficult cases.

    A line separator and a carriage return within them, and one text, one summary that is empty.
    """
    found: Pairs = {}
    for split, count in counts.items():
        sides = [
            (DATA / f"{split}.{side}").read_text(encoding="utf-8").split("\n")[:count]
            for side in ("source", "target")
        ]
        found[split] = list(zip(*sides))
    text, summary = found["train"][0]
    found["train"][0] = (text.replace(" ", "\u2028", 1).replace(". ", ".\x85", 1), summary)
    found["train"][1] = (found["train"][1][0].replace(" ", "\r", 1), "a\u2029b\x1cc")
    return found


def tar_gz(file: Path, members: Iterable[tuple[str, bytes]]) -> None:
    """Write an archive that is the same each time."""
    with gzip.GzipFile(file, "wb", mtime=0) as raw, tarfile.open(fileobj=raw, mode="w|") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def add_sums(folder: Path) -> None:
    """Write SHA256SUMS for the files of a folder."""
    files = sorted(f for f in folder.iterdir() if f.is_file() and f.name != "SHA256SUMS")
    (folder / "SHA256SUMS").write_text("".join(f"{sha256(f)}  {f.name}\n" for f in files))


def cnn_dm(folder: Path, found: Pairs) -> None:
    """Stories by the SHA-1 of their addresses, half of them CNN's, and the lists of addresses."""
    stories: dict[str, list[tuple[str, bytes]]] = {"cnn": [], "dailymail": []}
    for split, name in (("train", "all_train"), ("valid", "all_val"), ("test", "all_test")):
        urls = []
        for i, (text, summary) in enumerate(found[split]):
            part = ("cnn", "dailymail")[i % 2]
            urls.append(f"http://web.archive.org/web/2010id_/http://{part}.com/{split}/{i}")
            paragraphs = text.replace(". ", ".\n\n")
            highlights = f"\n\n@highlight\n\n{summary}" if summary else ""
            name_ = hashlib.sha1(urls[-1].encode()).hexdigest()
            content = f"{paragraphs}{highlights}{highlights}\n".encode()
            stories[part].append((f"{part}/stories/{name_}.story", content))
        (folder / f"{name}.txt").write_text("".join(f"{url}\n" for url in urls))
    for part, members in stories.items():
        extra = [(f"{part}/stories/._x.story", b"\xff"), (f"{part}/stories/0.story", b"unlisted\n")]
        tar_gz(folder / f"{part}_stories.tgz", sorted(members + extra))


def xsum(folder: Path, found: Pairs) -> None:
    """BBC articles by number, and the splits."""
    members, splits, number = [], {}, 10_000_000
    for split, name in (("test", "test"), ("valid", "validation"), ("train", "train")):
        splits[name] = []
        for text, summary in found[split]:
            number += 7
            splits[name].append(str(number))
            content = (
                f"[SN]URL[SN]\nhttp://web.archive.org/web/2017/http://bbc.co.uk/{number}\n\n"
                f"[SN]TITLE[SN]\nA title\n\n[SN]FIRST-SENTENCE[SN]\n{summary}\n\n"
                f"[SN]RESTBODY[SN]\nShare this with\nEmail\n{text.replace('. ', '.' + chr(10))}\n"
            )
            members.append((f"bbc-summary-data/{number}.summary", content.encode()))
    tar_gz(folder / "XSUM-EMNLP18-Summary-Data-Original.tar.gz", members)
    (folder / "XSum-TRAINING-DEV-TEST-SPLIT-90-5-5.json").write_text(json.dumps(splits))


def arxiv(folder: Path, found: Pairs) -> None:
    """Papers as lists of sentences, those of abstracts in marks."""
    with zipfile.ZipFile(folder / "arxiv-dataset.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for split, name in (("train", "train"), ("valid", "val"), ("test", "test")):
            lines = [
                json.dumps(
                    {
                        "article_id": f"{split}{i}",
                        "article_text": text.split(". ") if text else [],
                        "abstract_text": [f"<S> {summary} </S>"] if summary else None,
                        "labels": None,
                        "section_names": ["introduction"],
                        "sections": [[text]],
                    },
                    ensure_ascii=i % 2 == 0,
                )
                for i, (text, summary) in enumerate(found[split])
            ]
            archive.writestr(f"arxiv-dataset/{name}.txt", "\n".join(lines) + "\n")
        archive.writestr("__MACOSX/arxiv-dataset/._train.txt", b"\x00\x05")
        archive.writestr("arxiv-dataset/vocab", "the 1\n")


def mediasum(folder: Path, found: Pairs) -> None:
    """Interviews of all splits in one array, and the splits."""
    interviews, splits = [], {}
    for split, name in (("train", "train"), ("valid", "val"), ("test", "test")):
        splits[name] = []
        for i, (text, summary) in enumerate(found[split]):
            utterances = text.split(". ") if text else []
            splits[name].append(f"NPR-{split}-{i}")
            interviews.append(
                {
                    "id": splits[name][-1], "program": "A program", "date": "2008-06-10",
                    "url": "https://www.npr.org/", "summary": summary, "utt": utterances,
                    "speaker": [f"SPEAKER {j % 2}, host" for j in range(len(utterances))],
                }
            )  # fmt: skip
    interviews.insert(3, {"id": "CNN-unlisted", "summary": "x", "utt": ["x"], "speaker": ["y"]})
    (folder / "news_dialogue.json").write_text(json.dumps(interviews[::-1], indent=2))
    (folder / "train_val_test_split.json").write_text(json.dumps(splits))


def samsum(folder: Path, found: Pairs) -> None:
    """Dialogues by split, whose lines end as on Windows."""
    for split, name in (("train", "train"), ("valid", "val"), ("test", "test")):
        items = [
            {"id": f"{split}-{i}", "dialogue": text.replace(". ", ".\r\n"), "summary": summary}
            for i, (text, summary) in enumerate(found[split])
        ]
        (folder / f"{name}.json").write_text(json.dumps(items, indent=2))


def ectsum(folder: Path, found: Pairs) -> None:
    """The files of the repository, as GitHub packs it."""
    with zipfile.ZipFile(
        folder / "6909f1fc543104c1c60cf9de63e799f6620d1b0a.zip", "w", zipfile.ZIP_DEFLATED
    ) as archive:
        archive.writestr("ECTSum-6909/codes/data/val/ects/OTHER_q1_2021.txt", "not this\n")
        for split, name in (("train", "train"), ("valid", "val"), ("test", "test")):
            for i, pair in enumerate(found[split]):
                for kind, text in zip(("ects", "gt_summaries"), pair):
                    path = f"ECTSum-6909/data/final/{name}/{kind}/A{i:04d}_q1_2021.txt"
                    archive.writestr(path, text.replace(". ", ".\n"))


def qmsum(folder: Path, found: Pairs) -> None:
    """Meetings with a general or a specific query each."""
    keys = ("general_query_list", "specific_query_list")
    for split, name in (("train", "train"), ("valid", "val"), ("test", "test")):
        lines = []
        for i, (text, summary) in enumerate(found[split]):
            said = [f"{{vocalsound}} {t} {{gap}}" for t in text.split(". ")] if text else []
            meeting: dict[str, Any] = {
                "topic_list": [], "meeting_transcripts": [
                    {"speaker": f"Speaker {j % 2}", "content": t} for j, t in enumerate(said)
                ],
            }  # fmt: skip
            meeting[keys[i % 2]] = [{"query": "What was said?", "answer": summary}]
            meeting[keys[1 - i % 2]] = []
            lines.append(json.dumps(meeting, ensure_ascii=i % 4 == 0))
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def gpt2(folder: Path) -> None:
    """Pieces of bytes and a few merges, and their dictionary."""
    symbols = [*bytes_to_unicode().values(), *(merge.replace(" ", "") for merge in MERGES)]
    (folder / "encoder.json").write_text(json.dumps({s: i for i, s in enumerate(symbols)}))
    lines = ["#version: 0.2", *MERGES, ""]
    (folder / "vocab.bpe").write_text("\n".join(lines), encoding="utf-8")
    (folder / "dict.txt").write_text("".join(f"{i} 1\n" for i in range(len(symbols))))


def bart(folder: Path) -> None:
    """A BART with random weights, as fairseq's archives have it: with a row for <mask>."""
    words = Dictionary.load(str(folder / "dict.txt"))
    words.add_symbol("<mask>")
    parser = options.get_training_parser("translation")
    args = options.parse_args_and_arch(parser, [str(folder), "--arch", "bart_base", *SHAPE])
    task = argparse.Namespace(source_dictionary=words, target_dictionary=words)
    torch.manual_seed(1)
    model = build_model(convert_namespace_to_omegaconf(args).model, task)
    state = {
        "args": argparse.Namespace(arch="bart_base"), "model": model.state_dict(),
        "optimizer_history": [{"num_updates": 0, "lr_scheduler_state": {}}],
        "extra_state": {"train_iterator": {"epoch": 1}}, "last_optimizer_state": None,
    }  # fmt: skip
    content = io.BytesIO()
    torch.save(state, content)
    members = [("bart.base/model.pt", content.getvalue()), ("bart.base/NOTE", b"")]
    tar_gz(folder / "bart.base.tar.gz", members)


MAKERS = {
    "cnn_dm": cnn_dm, "xsum": xsum, "arxiv": arxiv, "mediasum": mediasum,
    "samsum": samsum, "ectsum": ectsum, "qmsum": qmsum,
}  # fmt: skip


def make_mirror(folder: Path, name: str, counts: dict[str, int] = COUNTS) -> Pairs:
    """Make the files of a data set and of BART; return the texts that they contain."""
    folder.mkdir(parents=True, exist_ok=True)
    found = pairs(counts)
    found["train"][2] = ("", found["train"][2][1])
    found["train"][3] = (found["train"][3][0], "")
    MAKERS[name](folder, found)
    gpt2(folder)
    bart(folder)
    add_sums(folder)
    return found
