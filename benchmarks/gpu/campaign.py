"""Everything that a GPU is to show, in pieces: python benchmarks/gpu/campaign.py [OPTION ...].

The pieces run one after the other, each as a process with a limit of time, the most valuable first.
WORK_DIR/results has their results, which they write as they come; WORK_DIR/logs has what they
print; WORK_DIR/campaign.json has the state of each piece. A further start does what is left. It
skips what is done; --retry repeats what failed, --only any piece. The trainings at the end continue
where they were stopped, in turns, as long as time is left. The output ends with what was done, what
failed and what is left.
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
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
EXPERIMENT = ROOT / "examples" / "modeling_recurrence"

sys.path.insert(0, str(BENCHMARKS))

from tables import TABLES, markdown  # noqa: E402

MOST = 8
"""Minutes of the longest piece: a short job of a scheduler has room for one."""

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
)  # fmt: skip
"""The files that the archive has: no checkpoints."""

BASE = (
    ("papers", ["transformer_biarn", "transformer_birnn", "rsa_transformer", "srformer"]),
    ("compared", ["transformer_relpos", "transformer_disan", "transformer_rnn_multicolumn"]),
)
"""The systems of an encoder-decoder of base size, which are measured beside `transformer`."""

BIG = "_wmt_en_de_big"
HOSTS = ["t5_small", "rsa_codet5_small", "srformer_t5_small", "srformer_bart_base"]
"""The systems of other hosts."""

REMEMBER = ["xl_lm", "rsa_xl_lm", "brt_lm", "rsa_brt_lm", "tlb_lm", "rsa_tlb_lm"]
"""The language models with a memory: 14 layers of width 512, as for Text8."""

WIKITEXT = "_wikitext103"
"""Their large size, with 267,735 words."""

FORECASTERS = [
    "informer", "rsa_informer", "log_sparse", "rsa_log_sparse", "xl_forecaster",
    "rsa_xl_forecaster",
]  # fmt: skip

SMALL = (
    "--encoder-embed-dim 16 --encoder-ffn-embed-dim 16 --encoder-layers 1 "
    "--encoder-attention-heads 2 --decoder-embed-dim 16 --decoder-ffn-embed-dim 16 "
    "--decoder-layers 1 --decoder-attention-heads 2"
)
"""Flags of an encoder-decoder for --tiny."""

SMALL_LM = (
    "--decoder-embed-dim 16 --decoder-input-dim 16 --decoder-output-dim 16 "
    "--decoder-ffn-embed-dim 16 --decoder-layers 3"
)
SMALL_WORDS = "--adaptive-input-cutoff 20,40 --adaptive-softmax-cutoff 20,40"
SMALL_FORECASTER = (
    "--encoder-embed-dim 16 --encoder-ffn-embed-dim 16 --encoder-layers 1 "
    "--encoder-attention-heads 8 --decoder-attention-heads 8"
)

FUSED = "--optimizer adamw_fused"


class Piece(NamedTuple):
    """A process of the campaign.

    Attributes:
        name: letters, digits and hyphens
        command: its words
        minutes: its limit, at most `MOST`
        continues: whether the command goes on where its last start was stopped
    """

    name: str
    command: list[str]
    minutes: float
    continues: bool = False


# The pieces ---------------------------------------------------------------------------


def place(folder: Path) -> Path:
    """Return a folder as the commands name it, which run in ROOT: results do not show where."""
    whole = folder.resolve()
    return whole.relative_to(ROOT) if whole.is_relative_to(ROOT) else whole


def test(args: argparse.Namespace, name: str, minutes: float, expression: str) -> Piece:
    """Tests on the device, several at a time: an error of the device ends one process."""
    words = ["-m", "pytest", "tests/integration/test_gpu.py", "-m", "not slow", "-k", expression]
    words += [] if args.tiny else ["-n", "8", "--timeout", "120"]
    return Piece(f"tests-{name}", [sys.executable, *words], minutes)


def benchmark(
    args: argparse.Namespace, name: str, minutes: float, program: str, *words: str
) -> Piece:
    """A program of benchmarks/, whose results have the piece's name."""
    where = ["--device", "cpu" if args.tiny else "cuda"]
    output = place(args.work_dir) / "results" / f"{name}.json"
    command = [sys.executable, f"benchmarks/{program}", *words, *where, "--output", str(output)]
    return Piece(name, command, minutes)


def operation(
    args: argparse.Namespace, name: str, lengths: Sequence[int], precision: str = "fp32"
) -> Piece:
    """An operation in all its forms."""
    rounds = ["--rounds", "1"] if args.tiny else ["--inner", "5"]
    piece = f"ops-{name}".replace("_", "-") + ("" if precision == "fp32" else f"-{precision}")
    words = ["--only", name, *rounds, "--no-naive", "--precision", precision, "--lengths"]
    chosen = map(str, [70] if args.tiny else lengths)
    return benchmark(args, piece, 3, "ops.py", *words, *chosen)


def pairs(args: argparse.Namespace, flags: str) -> list[str]:
    """What the measurements of encoder-decoders have in common."""
    words = ["--precision", "bf16", "--keep", str(place(args.work_dir) / "data")]
    if args.tiny:
        words += ["--rounds", "1", "--vocabulary", "600", "--pieces", "500"]
        flags = f"{SMALL} {flags}".strip()
    return [*words, *(["--flags", flags] if flags else [])]


def training(args: argparse.Namespace, name: str, minutes: float, names: Sequence[str]) -> Piece:
    """Training beside the first system."""
    size = ["--max-tokens", "256", "--updates", "1"] if args.tiny else ["--max-tokens", "8192"]
    words = ["--arch", *names, *pairs(args, FUSED), *size]
    return benchmark(args, f"training-{name}", minutes, "training.py", *words)


def decoding(args: argparse.Namespace, name: str, minutes: float, names: Sequence[str]) -> Piece:
    """Decoding beside the first system."""
    size = ["--max-tokens", "256", "--length", "4"] if args.tiny else ["--max-tokens", "8192"]
    size += [] if args.tiny else ["--length", "32", "--rounds", "3"]
    words = ["--arch", *names, *pairs(args, ""), *size, "--beams", "5", "--batches", "1"]
    return benchmark(args, f"decoding-{name}", minutes, "decoding.py", *words)


def streams(
    args: argparse.Namespace, name: str, minutes: float, names: Sequence[str], small: str,
    *words: str,
) -> Piece:  # fmt: skip
    """Training and decoding of language models or forecasters.

    Args:
        args: the campaign's
        name: of the piece, which begins with what streams.py is told
        minutes: its limit
        names: of the systems
        small: flags of fairseq-train for --tiny
        words: options of streams.py
    """
    kind = "forecasters" if name.startswith("forecasters") else "language-models"
    flags = f"{small} {FUSED}" if args.tiny else FUSED
    command = [kind, "--arch", *names, "--precision", "bf16", "--flags", flags, *words]
    if args.tiny:
        command += ["--rounds", "1", "--rows", "2", "--length", "24", "--steps", "6"]
        command += ["--updates", "2"]
    return benchmark(args, name, minutes, "streams.py", *command)


def pieces(args: argparse.Namespace) -> list[Piece]:
    """All pieces, the most valuable first."""
    return [*measurements(args), *trainings(args)]


def measurements(args: argparse.Namespace) -> Iterator[Piece]:
    """Tests, operations and whole models.

    First whether the kernels are right, then the papers' systems at base size, then the rest.
    """
    checks, op = partial(test, args), partial(operation, args)
    train, decode, stream = partial(training, args), partial(decoding, args), partial(streams, args)
    first = ["transformer"]
    (papers, of_papers), (compared, of_compared) = BASE

    yield checks("kernels", 4, "kernels_equal")
    yield op("srformer", [1024, 4096, 16384, 65536])
    yield train(f"base-{papers}", 4, first + of_papers)
    yield decode(f"base-{papers}", 4, first + of_papers)
    yield op("rsa", [32, 128, 512, 2048, 4096])
    yield op("biarn", [32, 128, 512, 2048])
    yield checks("invariants", 6, "not kernels_equal and not train and not adamw")
    yield op("srformer", [1024, 4096, 16384, 65536], "bf16")

    # Fairseq's own with as many layers as those with a memory.
    deep = "" if args.tiny else "+decoder-layers=14"
    stock = [f"{name}{deep}" for name in ("transformer_lm", "rsa_transformer_lm")]
    yield stream("language-models", 6, stock + REMEMBER, SMALL_LM)
    windows = ["--rows", "32", "--length", "336", "--steps", "168"]
    yield stream("forecasters", 4, FORECASTERS, SMALL_FORECASTER, *windows)

    lengths = ["--lengths", *(["256"] if args.tiny else ["1024", "4096"])]
    long = ["--arch", "transformer", "transformer+fused", "srformer"]
    words = ["length", *long, *pairs(args, FUSED), *lengths]
    yield benchmark(args, "training-lengths", 5, "scaling.py", *words)
    yield train(f"big-{papers}", 5, [f"{name}{BIG}" for name in first + of_papers])
    yield decode(f"big-{papers}", 5, [f"{name}{BIG}" for name in first + of_papers])
    yield checks("half-precision", 6, "train_in_half_precision or adamw")
    yield checks("trainings-bf16", 6, "training_and_decoding and bf16")
    yield train(f"base-{compared}", 4, first + of_compared)
    yield decode(f"base-{compared}", 4, first + of_compared)
    yield train("hosts", 4, first + HOSTS)
    yield decode("hosts", 4, first + HOSTS)
    large = ["transformer_lm_wiki103", *(f"{name}{WIKITEXT}" for name in REMEMBER)]
    words = ["--vocabulary", "100" if args.tiny else "267735", "--criterion", "adaptive_loss"]
    yield stream("language-models-big", 6, large, f"{SMALL_LM} {SMALL_WORDS}", *words)
    yield op("rem_product", [512, 4096, 16384])
    yield op("relative", [128, 512, 2048])
    yield op("directional", [128, 512, 2048])
    yield op("birnn", [32, 128, 512])
    yield train(f"big-{compared}", 5, [f"{name}{BIG}" for name in first + of_compared])
    yield decode(f"big-{compared}", 5, [f"{name}{BIG}" for name in first + of_compared])
    yield checks("trainings-fp16", 6, "training_and_decoding and fp16")
    yield checks("trainings-fp32", 6, "training_and_decoding and (fp32 or amp)")


def trainings(args: argparse.Namespace) -> Iterator[Piece]:
    """Experiments on the folders that the user names, several trainings side by side."""
    chosen = (
        ("multi30k", args.multi30k, 12, 7, []),
        ("base", args.en_de, 3, 7, ["--systems", "transformer", "biarn", "rsa", "--seeds", "1"]),
    )
    for corpus, data, jobs, minutes, rows in chosen:
        if data is None:
            continue
        folder = data.resolve()
        files = EXPERIMENT / "tables" / "overview.yaml", EXPERIMENT / "corpora" / f"{corpus}.yaml"
        words = [
            "-m", "fairseq_recur", "experiment", "run", *map(str, files), *rows,
            "--work-dir", str(args.work_dir.resolve() / corpus), "--jobs", str(jobs),
            "--set", f"data={folder / 'data-bin'}", "--set", "speed=null",
            "--set", f"score.reference={folder / 'test.de'}",
        ]  # fmt: skip
        more = ["--set", "train.fp16=false", "--set", "train.cpu=true", "--dry-run"]
        command = [sys.executable, *words, *(more if args.tiny else [])]
        yield Piece(f"training-{corpus}", command, minutes, continues=True)


# Running them -------------------------------------------------------------------------


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
        """Return the state of a piece; None before its first start."""
        return self.state.get(piece.name, {}).get("status")

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
            kind = KINDS[Path(piece.command[1]).name]
            try:
                parts.append(f"{piece.name}\n\n{markdown(TABLES[kind](result))}")
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
    "ops.py": "ops", "training.py": "training", "scaling.py": "training", "decoding.py": "decoding",
    "streams.py": "streams",
}  # fmt: skip
"""For each program the kind of its table."""


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
    args = parser.parse_args()
    for folder in filter(None, (args.multi30k, args.en_de)):
        if not (folder / "data-bin").is_dir():
            parser.error(f"{folder}: no data-bin; give a folder that prepare.sh has made")
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
