"""Steps that survive a kill, and archives that are resumed and checked."""

import logging
import shutil
import threading
from collections import namedtuple
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from recipes.evaluation import Evaluation, decode
from recipes.fetch import Archive, fetch, sha256
from recipes.steps import Made, binarize, need_space, step

from fairseq_recur.errors import ConfigError

CONTENT = bytes(range(256)) * 5000


class Server(SimpleHTTPRequestHandler):
    """Files with ranges, and connections that break when the path starts with /broken."""

    ranges: list[str] = []

    def do_GET(self) -> None:
        name = self.path.rsplit("/", 1)[-1]
        file = Path(self.directory) / name
        if not file.is_file():
            self.send_error(404)
            return
        content, wanted = file.read_bytes(), self.headers.get("Range")
        self.ranges.append(wanted or "all")
        begin = int(wanted[len("bytes=") : -1]) if wanted and "plain" not in self.path else 0
        if begin >= len(content):
            self.send_error(416)
            return
        if "chunked" in self.path:  # the connection breaks within a chunk
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"%x\r\n" % len(content) + content[: len(content) // 2])
            return
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        sent = content[begin:]
        self.wfile.write(sent[: len(sent) // 2] if "broken" in self.path else sent)

    def log_message(self, *args: object) -> None:
        """Nothing on the tests' output."""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    served = tmp_path / "served"
    served.mkdir()
    (served / "a.tgz").write_bytes(CONTENT)
    Server.ranges = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Server, directory=str(served)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def archive(*urls: str, **known: object) -> Archive:
    return Archive("a.tgz", urls, **known)  # type: ignore[arg-type]


def test_a_download_is_checked_and_not_done_again(address: str, tmp_path: Path) -> None:
    source = tmp_path / "served/a.tgz"
    wanted = archive(f"{address}/a.tgz", size=len(CONTENT), sha256=sha256(source))
    file = fetch(wanted, tmp_path / "downloads", None, "X_MIRROR")
    assert file.read_bytes() == CONTENT
    assert (
        fetch(wanted, tmp_path / "downloads", None, "X_MIRROR") == file and len(Server.ranges) == 1
    )


@pytest.mark.parametrize("path", ["", "/plain"], ids=["ranges", "no ranges"])
def test_a_broken_download_continues(address: str, tmp_path: Path, path: str) -> None:
    downloads = tmp_path / "downloads"
    known = {"size": len(CONTENT), "sha256": sha256(tmp_path / "served/a.tgz")}
    with pytest.raises(ConfigError, match="a.tgz could not be downloaded"):
        fetch(archive(f"{address}/broken/a.tgz", **known), downloads, None, "X_MIRROR")
    half = (downloads / "a.tgz.part").stat().st_size
    assert 0 < half < len(CONTENT) and not (downloads / "a.tgz").exists()
    file = fetch(archive(f"{address}{path}/a.tgz", **known), downloads, None, "X_MIRROR")
    assert file.read_bytes() == CONTENT and Server.ranges[-1] == f"bytes={half}-"


@pytest.mark.parametrize("known", [{}, {"size": len(CONTENT)}], ids=["no size", "size"])
def test_a_download_that_was_whole_when_it_was_killed(
    address: str, tmp_path: Path, known: dict
) -> None:
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads/a.tgz.part").write_bytes(CONTENT)
    assert fetch(
        archive(f"{address}/a.tgz", **known), tmp_path / "downloads", None, "X_MIRROR"
    ).is_file()


def test_a_part_that_is_too_long_is_begun_again(address: str, tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads/a.tgz.part").write_bytes(CONTENT + b"more")
    file = fetch(
        archive(f"{address}/a.tgz", size=len(CONTENT)), tmp_path / "downloads", None, "X_MIRROR"
    )
    assert file.read_bytes() == CONTENT


def test_dead_addresses_are_all_named_and_the_next_is_tried(address: str, tmp_path: Path) -> None:
    dead = [
        f"{address}/gone/b.tgz", "http://127.0.0.1:9/a.tgz", f"{address}/chunked/a.tgz",
    ]  # fmt: skip
    with pytest.raises(ConfigError) as error:
        fetch(archive(*dead), tmp_path / "downloads", None, "X_MIRROR")
    assert all(url in str(error.value) for url in dead) and "404" in str(error.value)
    assert str(error.value).endswith("get the file elsewhere and set X_MIRROR to its folder")
    assert fetch(
        archive(*dead, f"{address}/a.tgz"), tmp_path / "downloads", None, "X_MIRROR"
    ).is_file()


def test_a_file_that_is_there_is_checked(tmp_path: Path) -> None:
    """Put there by hand, or by another recipe."""
    (tmp_path / "a.tgz").write_bytes(CONTENT)
    for known, right in ({"size": len(CONTENT)}, True), ({"sha256": "0" * 64}, False):
        given = archive("http://127.0.0.1:9/a.tgz", **known)
        if right:
            assert fetch(given, tmp_path, None, "X_MIRROR").read_bytes() == CONTENT
            continue
        with pytest.raises(ConfigError, match="a.tgz is truncated or a different file.*remove it"):
            fetch(given, tmp_path, None, "X_MIRROR")
        assert (tmp_path / "a.tgz").is_file()


@pytest.mark.parametrize("known", [{"size": 7}, {"sha256": "0" * 64}], ids=["size", "sum"])
def test_another_file_is_put_aside(address: str, tmp_path: Path, known: dict) -> None:
    with pytest.raises(ConfigError, match="truncated or a different file"):
        fetch(archive(f"{address}/a.tgz", **known), tmp_path / "downloads", None, "X_MIRROR")
    assert {p.name for p in (tmp_path / "downloads").iterdir()} == {"a.tgz.wrong"}


def test_a_mirror(address: str, tmp_path: Path) -> None:
    folder, downloads = tmp_path / "served", tmp_path / "downloads"
    wanted = archive("http://127.0.0.1:9/a.tgz", size=len(CONTENT))
    assert fetch(wanted, downloads, str(folder), "X_MIRROR") == folder / "a.tgz"
    assert fetch(wanted, downloads, address + "/", "X_MIRROR") == downloads / "a.tgz"
    with pytest.raises(ConfigError, match="has no b.tgz"):
        fetch(Archive("b.tgz", ()), downloads, str(folder), "X_MIRROR")
    (folder / "a.tgz").write_bytes(CONTENT[:1000])
    with pytest.raises(ConfigError, match="1,000 bytes, expected 1,280,000"):
        fetch(wanted, downloads, str(folder), "X_MIRROR")
    assert (folder / "a.tgz").exists()  # a mirror's files are never moved


def test_a_mirror_with_its_own_sums(tmp_path: Path) -> None:
    file = tmp_path / "a.tgz"
    file.write_bytes(b"a few lines")
    wanted = archive(size=len(CONTENT), sha256="0" * 64)
    (tmp_path / "SHA256SUMS").write_text(f"{sha256(file)} *a.tgz\n")
    assert fetch(wanted, tmp_path, str(tmp_path), "X_MIRROR") == file
    (tmp_path / "SHA256SUMS").write_text(f"{'1' * 64}  a.tgz\n")
    with pytest.raises(ConfigError, match="expected 1111"):
        fetch(wanted, tmp_path, str(tmp_path), "X_MIRROR")
    (tmp_path / "SHA256SUMS").write_text("")
    with pytest.raises(ConfigError, match="no line for a.tgz"):
        fetch(wanted, tmp_path, str(tmp_path), "X_MIRROR")


def test_a_step_is_done_once_and_anew_when_its_inputs_change(tmp_path: Path) -> None:
    calls: list[str] = []

    def make(name: str, inputs: list[object]) -> Made:
        def fill(folder: Path) -> None:
            calls.append(name)
            (folder / "file").write_text(str(len(calls)))

        return step(tmp_path, name, inputs, fill)

    def both(size: int) -> Made:
        return make("second", [make("first", [size]), "x"])

    both(1), both(1)
    assert calls == ["first", "second"]
    (tmp_path / "second/left").write_text("from before")
    both(2)
    assert calls == ["first", "second"] * 2 and not (tmp_path / "second/left").exists()


def test_a_step_that_trainings_read_is_not_done_anew(tmp_path: Path) -> None:
    """Their data would be lost, and they could not go on."""

    def make(size: int) -> Made:
        def fill(folder: Path) -> None:
            (folder / "file").write_text(str(size))

        return step(tmp_path, "text", [size], fill, [tmp_path / "runs"])

    make(1), make(2)
    (tmp_path / "runs").mkdir()
    make(2)
    with pytest.raises(ConfigError, match="text was made from other files, which .*runs was tr"):
        make(3)
    assert (tmp_path / "text/file").read_text() == "2"


def test_what_no_step_has_made_is_kept(tmp_path: Path) -> None:
    """Such as the user's own texts in the output folder."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text/mine").write_text("x")
    with pytest.raises(ConfigError, match="text was not made by this preparation, which would"):
        step(tmp_path, "text", [], lambda folder: None)
    assert [path.name for path in tmp_path.iterdir()] == ["text"]
    assert (tmp_path / "text/mine").read_text() == "x"


def test_a_step_reads_what_it_replaces(tmp_path: Path) -> None:
    """And what was there stays until its successor is complete."""
    step(tmp_path, "model", [1], lambda folder: (folder / "file").write_text("pieces"))

    def fail(folder: Path) -> None:
        raise ConfigError("no space")

    with pytest.raises(ConfigError, match="no space"):
        step(tmp_path, "model", [2], fail)
    assert (tmp_path / "model/file").read_text() == "pieces"
    step(tmp_path, "model", [3], lambda folder: shutil.copy(tmp_path / "model/file", folder))
    assert (tmp_path / "model/file").read_text() == "pieces"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_step_that_fails_leaves_nothing_that_counts(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        step(tmp_path, "a", [], fail)
    assert not (tmp_path / "a").exists()
    made = step(tmp_path, "a", [], lambda folder: None)
    assert not (made.folder / "half").exists() and not (tmp_path / "a.partial").exists()


def test_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(9, 0, 3e9))
    need_space(tmp_path / "not/there", 2_000_000_000, "the corpus")
    with pytest.raises(ConfigError, match="the corpus needs 4.0 GB and the disk .* has 3.0 GB"):
        need_space(tmp_path, 4_000_000_000, "the corpus")


def test_binary_data_leaves_no_log(tmp_path: Path) -> None:
    """Neither the file nor fairseq's handle of it, which would write into a renamed folder."""
    for side in ("source", "target"):
        (tmp_path / f"train.{side}").write_text("a b c\n")
    prefixes = ["--trainpref", str(tmp_path / "train")]
    binarize(tmp_path / "bin", ("source", "target"), prefixes, 1, ["--joined-dictionary"])
    files = {file.name for file in (tmp_path / "bin").iterdir()}
    assert "train.source-target.source.bin" in files and "preprocess.log" not in files
    for handler in logging.getLogger("fairseq_cli.preprocess").handlers:
        assert str(tmp_path) not in getattr(handler, "baseFilename", "")


def test_another_set_than_that_of_the_references_is_refused(tmp_path: Path) -> None:
    """The last --gen-subset would count, and another set of the same size would be scored."""
    for flags in (["--gen-subset", "valid"], ["--gen-subset=valid"]):
        generate = ["bin", "--gen-subset", "test", *flags]
        with pytest.raises(ConfigError, match="the references are those of the test set"):
            decode(Evaluation(tmp_path, [], "checkpoint_best.pt", generate))
