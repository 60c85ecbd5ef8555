"""Archives with the names, layouts and formats of WMT14's and WMT17's, of a few hundred lines."""

import gzip
import hashlib
import html
import io
import tarfile
import zipfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
QUICKSTART = ROOT / "examples" / "quickstart" / "data"

Pairs = list[tuple[str, str]]

DIRT: Pairs = [
    ("", "Leer auf der anderen Seite."),
    ("OpenOffice 1.0", "OpenOffice 1.0"),
    ("A line\u2028with separators\x0band \x85 controls.", "Eine Zeile\u2028mit\x1cTrennern."),
    ("Hy\u00adphen and\u200b zero \ufeffwidth.", "Weiche Tren\u00adnung."),
    ("word " * 300, "Wort " * 299),
    ("One", "Eins zwei drei vier fünf sechs sieben acht neun zehn elf"),
]
"""Pairs of English and German: two that stay, after their characters are made right."""

WHO = [("我们", "we"), ("他们", "they"), ("学生们", "the students"), ("代表团", "the delegation")]
DO = [("讨论", "discuss"), ("支持", "support"), ("审议", "consider"), ("通过了", "adopted")]
WHAT = [("决议", "the resolution"), ("经济 问题", "economic issues"), ("预算", "the budget"),
        ("新的计划", "the new plan"), ("2017年的报告", "the report of 2017")]  # fmt: skip
WHEN = [("今天", "today"), ("昨天", "yesterday"), ("在北京", "in Beijing"), ("一再", "repeatedly")]


def german(name: str, count: int) -> Pairs:
    """Pairs of English and German of the quick start."""
    sides = [
        (QUICKSTART / f"{name}.{language}").read_text(encoding="utf-8").splitlines()[:count]
        for language in ("en", "de")
    ]
    return list(zip(*sides))


def chinese(begin: int, count: int) -> Pairs:
    """Pairs of Chinese and English, put together from words."""
    made = [
        (f"{who}{when}{do}{what}，{other}也{do}。", f"{a} {b} {c} {d}, and so do {e}.".capitalize())
        for (who, a), (do, b), (what, c), (when, d), (other, e) in product(WHO, DO, WHAT, WHEN, WHO)
    ]
    return [made[(begin + i * 131) % len(made)] for i in range(count)]


def text(lines: Sequence[str]) -> bytes:
    """A text file of a corpus."""
    return "".join(f"{line}\n" for line in lines).encode()


def sgm(kind: str, language: str, lines: Sequence[str]) -> bytes:
    """A test set of WMT: kind is src or ref."""
    segments = "".join(
        f'<seg id="{i}">{html.escape(line, quote=False)}</seg>\n' for i, line in enumerate(lines, 1)
    )
    return (
        f'<{kind}set setid="newstest" srclang="any" trglang="{language}">\n'
        f'<doc sysid="ref" docid="a" genre="news" origlang="en">\n<p>\n{segments}</p>\n</doc>\n'
        f"</{kind}set>\n"
    ).encode()


def tar(file: Path, members: dict[str, bytes]) -> None:
    """Write a .tgz whose bytes depend only on its members."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    file.write_bytes(gzip.compress(content.getvalue(), mtime=0))


def pack(file: Path, members: dict[str, bytes]) -> None:
    """A .zip."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)


def write_sums(folder: Path) -> None:
    """A mirror's SHA256SUMS."""
    lines = [f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n" for f in archives(folder)]
    (folder / "SHA256SUMS").write_text("".join(lines))


def archives(folder: Path) -> list[Path]:
    """A mirror's archives."""
    return sorted(f for f in folder.iterdir() if f.name != "SHA256SUMS")


def wmt14(folder: Path, count: int = 400) -> Path:
    """A mirror of WMT14 English-German."""
    folder.mkdir(parents=True)
    pairs = german("train", count)
    third = count // 3
    for name, stem, part in (
        ("training-parallel-europarl-v7", "training/europarl-v7", pairs[:third]),
        ("training-parallel-commoncrawl", "commoncrawl", pairs[third : 2 * third] + DIRT),
        ("training-parallel-nc-v9", "training/news-commentary-v9", pairs[2 * third :]),
    ):
        english, deutsch = (text(side) for side in zip(*part))
        other = text(["Une autre langue."])
        tar(folder / f"{name}.tgz", {
            f"{stem}.fr-en.fr": other, f"{stem}.fr-en.en": other,
            f"{stem}.de-en.de": deutsch, f"{stem}.de-en.en": english,
        })  # fmt: skip
    for archive, stem, part in (
        ("dev.tgz", "dev/newstest2013-{}.{}.sgm", german("valid", 12)),
        ("test-full.tgz", "test-full/newstest2014-deen-{}.{}.sgm", german("test", 12)),
    ):
        members = {
            stem.format(kind, language): sgm(kind, language, lines)
            for language, lines in zip(("en", "de"), zip(*part))
            for kind in ("src", "ref")
        }
        tar(folder / archive, members)
    write_sums(folder)
    return folder


def wmt17(folder: Path, count: int = 40) -> Path:
    """A mirror of WMT17 Chinese-English, with this number of pairs per corpus."""
    folder.mkdir(parents=True)
    sides = [text(side) for side in zip(*chinese(0, count))]
    un = "en-zh/UNv1.0.en-zh"
    tar(folder / "UNv1.0.en-zh.tar.gz", {
        f"{un}.en": sides[1], f"{un}.ids": b"ids\n", f"{un}.zh": sides[0], "en-zh/README": b"",
    })  # fmt: skip
    news = "training/news-commentary-v12"
    tar(folder / "training-parallel-nc-v12.tgz", {
        f"{news}.de-en.de": b"", f"{news}.zh-en.en": sides[1], f"{news}.zh-en.zh": sides[0],
    })  # fmt: skip
    cwmt = {
        "casia2015": ["casia2015_ch"], "casict2011": ["casict-A_ch", "casict-B_ch"],
        "casict2015": ["casict2015_ch"], "datum2015": ["datum_ch"],
        "datum2017": [f"Book{i}_cn" for i in range(1, 21)], "neu2017": ["NEU_cn"],
    }  # fmt: skip
    for start, (name, files) in enumerate(cwmt.items(), start=1):
        members = {}
        for number, file in enumerate(files):
            pairs = chinese(97 * start + number, max(2, count // len(files)))
            if name == "datum2017":  # segmented, as it is
                pairs = [(" ".join(one), other) for one, other in pairs]
            left, right = zip(*pairs)
            members[f"{name}/{file}.txt"] = text(left).replace(b"\n", b"\r\n")
            members[f"{name}/{file[:-2]}en.txt"] = text(right)
        pack(folder / f"{name}.zip", members)
    for archive, stem, begin in (("dev", "dev/newsdev2017", 3), ("test", "test/newstest2017", 5)):
        members = {}
        for one, other in (("zh", "en"), ("en", "zh")):
            lines = dict(zip(("zh", "en"), zip(*chinese(begin, 10))))
            members[f"{stem}-{one}{other}-src.{one}.sgm"] = sgm("src", one, lines[one])
            members[f"{stem}-{one}{other}-ref.{other}.sgm"] = sgm("ref", other, lines[other])
        tar(folder / f"{archive}.tgz", members)
    write_sums(folder)
    return folder


def iwslt14(folder: Path, count: int) -> Path:
    """A mirror of IWSLT14 German-English."""
    folder.mkdir(parents=True)
    pairs = german("train", count)
    members = {}
    for place, language in ((1, "de"), (0, "en")):
        talk = [f"<url>http://{language}</url>", "<speaker>A. B.</speaker>", "<talkid>1</talkid>",
                f"<title>Der Titel {language}</title>", *(f" {pair[place]} " for pair in pairs),
                f"<description>Über alles {language}</description>", "<keywords>a, b</keywords>",
                "</doc>"]  # fmt: skip
        members[f"de-en/train.tags.de-en.{language}"] = text(talk)
        for number, name in enumerate(
            ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
        ):
            part = [pair[place] for pair in german("test", 10)[2 * number : 2 * number + 2]]
            members[f"de-en/IWSLT14.{name}.de-en.{language}.xml"] = sgm("src", language, part)
    tar(folder / "de-en.tgz", members)
    write_sums(folder)
    return folder
