"""Everything that a GPU is to show, in pieces: python benchmarks/gpu/campaign.py [OPTION ...].

The pieces run one after the other, each as a process with a limit of time, the most valuable first.
WORK_DIR/results has their results, which they write as they come; WORK_DIR/logs has what they
print; WORK_DIR/campaign.json has the state of each piece. A further start does what is left. It
skips what is done by the same command; --retry repeats what failed, --only any piece. Results of
another command are kept under another name. The trainings at the end continue where they were
stopped, in turns, as long as time is left. The output ends with what was done, what failed and what
is left.
"""

import argparse
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pieces import ROOT, Piece, pieces  # noqa: E402
from tables import TABLES, markdown  # noqa: E402

SHARE = 0.5
"""Of its limit, without which a piece does not start. Most pieces need less than half of it."""

GRACE = 30.0
"""Seconds in which a piece that continues may save what it has when its time is over."""

END = 5.0
"""The same for other pieces."""

PREPARATION = 180.0
"""Seconds in which packages are installed, or imported."""

POLL = 15.0
"""Seconds after which the archive is written again while a piece runs."""

TAIL = 200_000
"""Bytes of a log that the archive has: its end."""

DONE, FAILED, NO_MEMORY, LATE = "done", "failed", "out of memory", "out of time"
ENDS = (DONE, FAILED, NO_MEMORY, LATE)
"""The states in which a further start leaves a piece."""

CUT = "cut short"
"""By the end of a start, before the piece's own limit."""

RUNNING = "running"
"""What a start that was killed leaves: the piece may be the reason, so it runs after the others."""

ARCHIVED = (
    "campaign.json", "results/*.json", "logs/*.log", "*/results.json", "*/*/seed*/train.log",
    "*/table.md", "*/*/*/seed*/train.log",
)  # fmt: skip
"""The files that the archive has: no checkpoints."""


class Campaign:
    """Runs pieces and records their state.

    Args:
        work: folder of the state, the logs and the results
        seconds: that are left for all pieces
        packages: folder of further Python packages, or None
        archive: file that gets all results, or None
    """

    def __init__(
        self, work: Path, seconds: float, packages: Path | None = None, archive: Path | None = None
    ) -> None:
        self.work, self.end = work, time.monotonic() + seconds
        self.packages, self.archive = packages, archive
        self.file = work / "campaign.json"
        self.started: set[str] = set()
        paths = [str(ROOT), *([str(packages.resolve())] if packages else [])]
        paths += filter(None, [os.environ.get("PYTHONPATH")])
        self.environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"
        }  # fmt: skip
        self.state = self.known()

    def known(self) -> dict[str, dict[str, Any]]:
        """Return the states that earlier starts recorded; put a damaged file aside."""
        found = read(self.file)
        pieces = found.get("pieces") if isinstance(found, dict) else None
        if isinstance(pieces, dict) and all(isinstance(x, dict) for x in pieces.values()):
            return pieces
        if self.file.exists():
            self.file.replace(self.file.with_suffix(".damaged"))
            print(f"{self.file} is damaged; it is now {self.file.stem}.damaged, and all pieces run")
        return {}

    def status(self, piece: Piece) -> str | None:
        """Return the state of a piece; None before the first start of its command."""
        return None if self.changed(piece) else self.state.get(piece.name, {}).get("status")

    def changed(self, piece: Piece) -> bool:
        """Whether what is known of a piece is of another command, such as a rehearsal's."""
        before = self.state.get(piece.name, {}).get("command", piece.command)
        return before[1:] != piece.command[1:]  # the first word is the interpreter

    def put_aside(self, piece: Piece) -> None:
        """Keep the results of a piece's earlier command under another name, and its state too."""
        found = self.work / "results" / f"{piece.name}.json"
        names = (f"{piece.name}_before{n}" for n in count(1))
        files = ((name, found.with_stem(name)) for name in names)
        name, aside = next(x for x in files if x[0] not in self.state and not x[1].exists())
        self.state[name] = self.state.pop(piece.name)
        said = f"{piece.name}: its command has changed, so it runs again"
        if found.exists():
            found.replace(aside)
            said += f"; the earlier results are kept in {aside}"
        print(said, flush=True)

    def run(self, chosen: Sequence[Piece], again: Collection[str] = ()) -> None:
        """Run what has not ended and fits into the time; then what continues, in turns.

        Args:
            chosen: in their order
            again: the states in which a piece also runs, of `ENDS`
        """
        for piece in sorted(chosen, key=lambda piece: self.status(piece) == RUNNING):
            if self.status(piece) not in ENDS or self.status(piece) in again or self.goes_on(piece):
                self.start(piece)
        started = [True]
        while any(started):
            started = [self.start(piece) for piece in chosen if self.goes_on(piece)]

    def goes_on(self, piece: Piece) -> bool:
        """Whether a piece was stopped and can continue."""
        return piece.continues and self.status(piece) in (LATE, CUT)

    def start(self, piece: Piece) -> bool:
        """Run one piece; return False if too little time is left for it."""
        grace = GRACE if piece.continues else END
        limit, left = 60 * piece.minutes, self.end - time.monotonic() - grace
        if left < (min(limit, 60) if piece.continues else SHARE * limit):
            print(f"{piece.name}: {max(left, 0):.0f} s are left, too few", flush=True)
            return False
        if self.changed(piece):
            self.put_aside(piece)
        print(f"{piece.name}: at most {min(limit, left):.0f} s", flush=True)
        log = self.work / "logs" / f"{piece.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        self.started.add(piece.name)
        known = log.stat().st_size if log.exists() else 0
        before = self.state.get(piece.name, {}).get("seconds", 0.0) if piece.continues else 0.0
        begin = time.monotonic()

        def record(status: str, said: Sequence[str]) -> None:
            seconds = round(before + time.monotonic() - begin, 1)
            self.state[piece.name] = {
                "status": status, "seconds": seconds, "command": piece.command, "said": said
            }  # fmt: skip
            self.write()

        record(RUNNING, [])
        status, lines = CUT, []
        try:
            status = self.execute(piece.command, log, min(limit, left), grace)
            text = log.read_bytes()[known:].decode(errors="replace")
            lines = text.strip().splitlines()
            if status == LATE and limit > left:
                status = CUT
            elif status == FAILED and re.search("out of memory", text, re.I):
                status = NO_MEMORY
        finally:
            record(status, lines[-3:])
        print(f"{piece.name}: {status}; {lines[-1] if lines else 'it printed nothing'}", flush=True)
        return True

    def execute(self, command: Sequence[str], log: Path, seconds: float, grace: float) -> str:
        """Run a command for a time, and end it and what it has started; return its status."""
        end = time.monotonic() + seconds
        with open(log, "ab") as output:
            # Its own group, which can be ended as a whole; the same session, which ends with ours.
            process = subprocess.Popen(
                command, cwd=ROOT, env=self.environment, preexec_fn=os.setpgrp,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
            try:
                while (left := end - time.monotonic()) > 0:
                    with suppress(subprocess.TimeoutExpired):
                        return FAILED if process.wait(min(POLL, left)) else DONE
                    self.save()
                return LATE
            finally:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(grace)
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                with suppress(subprocess.TimeoutExpired):  # a process may hang in the driver
                    process.wait(END)

    def write(self) -> None:
        """Write the state, and the archive."""
        whole = self.file.with_suffix(".tmp")
        whole.write_text(json.dumps({"pieces": self.state}, indent=1) + "\n", encoding="utf-8")
        whole.replace(self.file)
        self.save()

    def save(self) -> None:
        """Write the archive; a disk that is full is no reason to stop."""
        if self.archive is None:
            return
        whole = self.archive.with_name(f"{self.archive.name}.tmp")
        try:
            with tarfile.open(whole, "w:gz") as archive:
                for file in sorted({f for pattern in ARCHIVED for f in self.work.glob(pattern)}):
                    content = file.read_bytes()
                    content = content[-TAIL:] if file.suffix == ".log" else content
                    entry = tarfile.TarInfo(str(file.relative_to(self.work)))
                    entry.size, entry.mtime = len(content), int(file.stat().st_mtime)
                    archive.addfile(entry, io.BytesIO(content))
            whole.replace(self.archive)
        except OSError as error:
            print(f"{self.archive} was not written: {error}", flush=True)

    # Summaries ------------------------------------------------------------------------

    def result(self, piece: Piece) -> dict[str, Any] | None:
        """Return what a piece has measured; None if it has no results, or a damaged file."""
        if self.changed(piece):
            return None
        found = read(self.work / "results" / f"{piece.name}.json")
        rows = found.get("rows") if isinstance(found, dict) else None
        return found if isinstance(rows, list) and rows else None

    def tables(self, chosen: Sequence[Piece]) -> str:
        """Return the tables of what was measured."""
        parts = []
        for piece in chosen:
            result = self.result(piece)
            if result is None:
                continue
            try:
                parts.append(f"{piece.name}\n\n{markdown(TABLES[kind_of(piece)](result))}")
            except (KeyError, TypeError, ValueError) as error:
                parts.append(f"{piece.name}: no table of its results: {error!r}\n")
        return "\n".join(parts)

    def summary(self, chosen: Sequence[Piece]) -> str:
        """Return what is done, what failed and what is left, each in the order of the pieces."""
        by_status: dict[str | None, list[Piece]] = {}
        for piece in chosen:
            by_status.setdefault(self.status(piece), []).append(piece)
        lines = []
        for status in ENDS:
            for piece in by_status.get(status, ()):
                state, rows = self.state[piece.name], (self.result(piece) or {"rows": []})["rows"]
                counted = f", {len(rows)} rows" if rows else ""
                lines.append(f"{status}: {piece.name} ({state.get('seconds', 0):.0f} s{counted})")
                if status != DONE:
                    lines += [f"    {line[:200]}" for line in state.get("said", ())]
        left = [piece for piece in chosen if self.status(piece) not in ENDS or self.goes_on(piece)]
        lines += [f"left: {piece.name} (at most {piece.minutes:g} minutes)" for piece in left]
        counts = [f"{len(by_status[status])} {status}" for status in ENDS if status in by_status]
        return "\n".join([*lines, ", ".join([*counts, f"{len(left)} left"])])


KINDS = {
    "ops.py": "ops", "training.py": "training", "decoding.py": "decoding", "streams.py": "streams",
    "scaling.py length": "training", "scaling.py decoding": "decoding",
}  # fmt: skip
"""For each program, and what it is told first, the kind of its table."""


def kind_of(piece: Piece) -> str:
    """Return the kind of the table of a benchmark."""
    words = " ".join([Path(piece.command[1]).name, *piece.command[2:]])
    return next(kind for begins, kind in KINDS.items() if words.startswith(begins))


def read(file: Path) -> Any:
    """Return what a JSON file holds; None if there is none, or it is damaged."""
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None


def succeeds(*words: str, **more: Any) -> bool:
    """Run Python with arguments for a while; return whether it ends well."""
    try:
        return subprocess.call([sys.executable, *words], timeout=PREPARATION, **more) == 0
    except subprocess.TimeoutExpired as error:
        print(error)
        return False


def install(wheels: Path, packages: Path) -> bool:
    """Install a folder's wheels into another folder, without a network; return the success."""
    files = map(str, sorted(wheels.glob("*.whl")))
    options = ["--no-index", "--no-deps", "--no-compile", "--upgrade", "--target", str(packages)]
    quiet = ["--quiet", "--disable-pip-version-check"]
    return succeeds("-m", "pip", "install", *quiet, *options, *files)


def main() -> int:
    """Run the campaign; return 1 if a piece has failed, 2 if none can run here."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--work-dir", type=Path, default=ROOT / "runs" / "gpu", help="default: runs/gpu"
    )
    parser.add_argument("--minutes", type=float, help="for this start (default: no limit)")
    parser.add_argument("--only", nargs="+", metavar="PIECE", help="these pieces, even if done")
    parser.add_argument(
        "--retry", action="store_true", help="also what failed, or ran out of memory or time"
    )
    parser.add_argument(
        "--wheels", type=Path, metavar="DIR", help="install the packages that wheels.sh has got"
    )
    parser.add_argument(
        "--archive", type=Path, metavar="FILE", help="a .tar.gz file that gets all results"
    )
    parser.add_argument("--commit", help="of this checkout, where git's files are missing")
    parser.add_argument("--list", action="store_true", help="print the names and limits")
    parser.add_argument(
        "--summary", action="store_true", help="print all results and what is left; run nothing"
    )
    parser.add_argument("--tiny", action="store_true", help="a rehearsal on the CPU")
    made = "made by prepare.sh of examples/modeling_recurrence"
    parser.add_argument("--multi30k", type=Path, metavar="DIR", help=made)
    parser.add_argument("--en-de", type=Path, metavar="DIR", help=made)
    parser.add_argument("--g2p", type=Path, metavar="DIR", help="words, as examples/g2p reads them")
    args = parser.parse_args()
    if args.g2p and not args.g2p.is_dir():
        parser.error(f"--g2p {args.g2p}: no such folder; give one with LANG_train.tsv and so on")
    for folder in filter(None, (args.multi30k, args.en_de)):
        expected = "data-bin", "codes", "test.de"
        missing = [name for name in expected if not (folder / name).exists()]
        if missing:
            parser.error(
                f"{folder}: no {', '.join(missing)}; give a folder that prepare.sh has made"
            )
    if args.wheels and not [*args.wheels.glob("*.whl")]:
        parser.error(f"--wheels {args.wheels}: no wheels; give a folder that wheels.sh has made")
    known = {piece.name: piece for piece in pieces(args)}
    unknown = sorted(set(args.only or ()) - known.keys())
    if unknown:
        parser.error(f"--only: unknown {', '.join(unknown)}; expected names that --list prints")
    chosen = [known[name] for name in args.only] if args.only else list(known.values())
    if args.list:
        print("\n".join(f"{piece.name}: {piece.minutes} minutes" for piece in chosen))
        return 0
    if args.commit:
        os.environ["FAIRSEQ_RECUR_COMMIT"] = args.commit
    packages = args.work_dir / "packages" if args.wheels else None
    seconds = float("inf") if args.minutes is None else 60 * args.minutes
    args.work_dir.mkdir(parents=True, exist_ok=True)
    campaign = Campaign(args.work_dir, seconds, packages, args.archive)
    if args.summary:
        print(f"{campaign.tables(chosen)}\n{campaign.summary(chosen)}")
        return 0
    return start(campaign, chosen, args)


def start(campaign: Campaign, chosen: Sequence[Piece], args: argparse.Namespace) -> int:
    """Run pieces if they can run here; return the exit status."""
    check = ["benchmarks/gpu/ready.py", "cpu" if args.tiny else "cuda"]
    if campaign.packages and not install(args.wheels, campaign.packages):
        print("the wheels were not installed; nothing was started", file=sys.stderr)
        return 2
    if not succeeds(*check, cwd=ROOT, env=campaign.environment):
        print("nothing was started", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    repeated = ENDS if args.only else ENDS[1:] if args.retry else ()
    try:
        campaign.run(chosen, repeated)
    finally:
        new = [piece for piece in chosen if piece.name in campaign.started]
        print(f"\n{campaign.tables(new)}\n{campaign.summary(chosen)}", flush=True)
    return int(any(campaign.status(piece) in (FAILED, NO_MEMORY) for piece in chosen))


if __name__ == "__main__":
    sys.exit(main())
