"""Download archives and check them: from their addresses, or from a mirror."""

import hashlib
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from tqdm import tqdm

from fairseq_recur.errors import ConfigError

BLOCK = 1 << 20
SUMS = "SHA256SUMS"
TIMEOUT = 60
"""Seconds without an answer after which an address counts as dead."""


@dataclass(frozen=True)
class Archive:
    """A file to download, and how to check it.

    Attributes:
        name: name of the file here and on mirrors
        urls: addresses, tried in order
        size: size in bytes, if known
        sha256: checksum, if known
        md5: checksum, if no better one has been published
    """

    name: str
    urls: tuple[str, ...]
    size: int | None = None
    sha256: str | None = None
    md5: str | None = None


def fetch(archive: Archive, downloads: Path, mirror: str | None, variable: str) -> Path:
    """Return a complete and correct archive; an interrupted download continues.

    Args:
        archive: the archive
        downloads: folder of downloaded archives, which holds only complete files under their
            names
        mirror: a folder with the archives, which are used in place, or an address below which
            they are; it replaces the archive's own addresses. A folder with other versions of
            the files has a file SHA256SUMS, as `sha256sum` writes it.
        variable: the environment variable with which a user names the mirror

    Returns:
        the file

    Raises:
        ConfigError: no address has the file, or it is truncated or a different file
    """
    if mirror is not None and "://" not in mirror:
        return _from_folder(archive, Path(mirror))
    whole, partial = downloads / archive.name, downloads / f"{archive.name}.part"
    if whole.exists():  # perhaps put there by hand, or by a recipe with another file of this name
        _check(whole, archive)
        return whole
    downloads.mkdir(parents=True, exist_ok=True)
    urls = archive.urls if mirror is None else (f"{mirror.rstrip('/')}/{archive.name}",)
    failures = []
    for url in urls:
        try:
            _download(url, partial, archive.size)
            _check(partial, archive)
        except (OSError, HTTPException, ConfigError) as error:
            failures.append(f"  {url}: {error}")
        else:
            return partial.rename(whole)
    raise ConfigError(
        f"{archive.name} could not be downloaded:\n"
        + "\n".join(failures)
        + f"\nIf an address is dead, get the file elsewhere and set {variable} to its folder"
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
    """Read a file of sha256sum: name -> checksum."""
    pairs = [line.split(maxsplit=1) for line in file.read_text().splitlines() if line.strip()]
    if any(len(pair) < 2 for pair in pairs):
        raise ConfigError(f"{file} has a line without a name; expected the format of sha256sum")
    return {name.lstrip("*"): value for value, name in pairs}


def _download(url: str, partial: Path, size: int | None) -> None:
    """Download a file, or continue its download; by FTP it begins anew."""
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
            f"the connection broke after {partial.stat().st_size:,} bytes; "
            "run the same command again"
        )


def sha256(file: Path) -> str:
    """Return the checksum of a file."""
    return _digest(file, "sha256")


def _digest(file: Path, kind: str) -> str:
    digest = hashlib.new(kind)
    with file.open("rb") as content:
        while block := content.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _check(file: Path, archive: Archive) -> None:
    """Compare size and checksum; a wrong download is renamed, so that it is not resumed."""
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
    remedy = "remove it and get it again"
    if file.suffix == ".part":
        file = file.replace(file.with_suffix(".wrong"))
        remedy = "the next start downloads it again, so you may remove it"
    raise ConfigError(f"{file} is truncated or a different file: {problem}; {remedy}")
