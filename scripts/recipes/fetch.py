"""Getting archives, checked: from their addresses, resumed after a kill, or from a mirror."""

import hashlib
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from fairseq_recur.errors import ConfigError

BLOCK = 1 << 20
SUMS = "SHA256SUMS"
TIMEOUT = 60
"""Seconds without an answer after which an address is given up."""


@dataclass(frozen=True)
class Archive:
    """A file to download, and how to know that it is the right one.

    Attributes:
        name: of the file here and on mirrors
        urls: addresses, tried one after the other
        size: in bytes, if it is known
        sha256: of its content, if it is known
        md5: the same, where nobody has published more
    """

    name: str
    urls: tuple[str, ...]
    size: int | None = None
    sha256: str | None = None
    md5: str | None = None


def fetch(archive: Archive, downloads: Path, mirror: str | None = None) -> Path:
    """Get an archive, whole and right, or say why not.

    Args:
        archive: what to get
        downloads: where downloaded archives are kept; a name is there only when it is whole
        mirror: a folder, whose file is used where it is, or an address that has the files below
            it; instead of the archive's own addresses. A folder with other versions of the
            files says so by a file SHA256SUMS, as `sha256sum` writes it.

    Returns:
        the file

    Raises:
        ConfigError: no address has it, or it is truncated or another file
    """
    if mirror is not None and "://" not in mirror:
        return _from_folder(archive, Path(mirror))
    whole, partial = downloads / archive.name, downloads / f"{archive.name}.part"
    if whole.exists():
        return whole
    downloads.mkdir(parents=True, exist_ok=True)
    urls = archive.urls if mirror is None else (f"{mirror.rstrip('/')}/{archive.name}",)
    failures = []
    for url in urls:
        try:
            _download(url, partial, archive.size)
            _check(partial, archive)
        except (OSError, ConfigError) as error:
            failures.append(f"  {url}: {error}")
        else:
            return partial.rename(whole)
    raise ConfigError(
        f"{archive.name} could not be got:\n" + "\n".join(failures) + "\nIf an address is dead,"
        f" get the file elsewhere, put it into a folder and name that as mirror"
    )


def _from_folder(archive: Archive, folder: Path) -> Path:
    file = folder / archive.name
    if not file.is_file():
        raise ConfigError(f"the mirror {folder} has no {archive.name}; put it there")
    sums = folder / SUMS
    if sums.is_file():
        known = _sums(sums)
        if archive.name not in known:
            raise ConfigError(f"{sums} has no line for {archive.name}; add it, or remove that file")
        archive = Archive(archive.name, archive.urls, None, known[archive.name])
    _check(file, archive)
    return file


def _sums(file: Path) -> dict[str, str]:
    """What a file of sha256sum says: name to checksum."""
    pairs = (line.split(maxsplit=1) for line in file.read_text().splitlines() if line.strip())
    return {name.lstrip("*"): value for value, name in pairs}


def _download(url: str, partial: Path, size: int | None) -> None:
    """Download, or go on with, a file."""
    start = partial.stat().st_size if partial.exists() else 0
    if size is not None and start >= size:
        if start == size:
            return
        start = 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and start:  # nothing is left to send
            return
        raise
    with answer:
        resumed = answer.status == 206
        rest = answer.headers.get("Content-Length")
        begin = start if resumed else 0
        with partial.open("ab" if resumed else "wb") as out, tqdm(
            desc=partial.stem, initial=begin, unit="B", unit_scale=True, mininterval=1,
            total=begin + int(rest) if rest else None,
        ) as bar:  # fmt: skip
            while block := answer.read(BLOCK):
                out.write(block)
                bar.update(len(block))
    if rest and partial.stat().st_size < begin + int(rest):
        raise OSError(
            f"the connection broke, {partial.stat().st_size:,} bytes are here; run the same command "
            "again, it goes on from there"
        )


def sha256(file: Path) -> str:
    """The checksum of a file."""
    return _digest(file, "sha256")


def _digest(file: Path, kind: str) -> str:
    digest = hashlib.new(kind)
    with file.open("rb") as content:
        while block := content.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _check(file: Path, archive: Archive) -> None:
    """Compare size and checksum; a download that is wrong is put aside, so as not to be resumed."""
    size = file.stat().st_size
    problem = None
    if archive.size is not None and size != archive.size:
        problem = f"{size:,} bytes, expected {archive.size:,}"
    else:
        for kind, expected in (("sha256", archive.sha256), ("md5", archive.md5)):
            found = _digest(file, kind) if expected is not None else None
            if found != expected:
                problem = f"{kind} {found}, expected {expected}"
    if problem is None:
        return
    if file.suffix == ".part":
        file.replace(file.with_suffix(".wrong"))
    raise ConfigError(f"{file} is truncated or another file: {problem}; remove it and get it again")
