"""Everything that a GPU is to show, in pieces: python benchmarks/gpu/campaign.py [OPTION ...].

The pieces run one after the other, each as a process with a limit of time, the most valuable first.
WORK_DIR/results has their results, which they write as they come; WORK_DIR/logs has what they
print; WORK_DIR/campaign.json has the state of each piece. A further start skips what is done, what
failed and what ran out of time; --only repeats it. The trainings at the end continue where they
were stopped, in turns, as long as time is left.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
EXPERIMENT = ROOT / "examples" / "modeling_recurrence"

MOST = 8
"""Minutes of the longest piece: a short job of a scheduler has room for one."""

GRACE = 30.0
"""Seconds in which a piece may save what it has when its time is over."""

DONE, FAILED, STOPPED = "done", "failed", "out of time"

BASE = (
    ("papers", ["transformer_biarn", "transformer_birnn", "rsa_transformer", "srformer"]),
    ("compared", ["transformer_relpos", "transformer_disan", "transformer_rnn_multicolumn"]),
)
"""The systems of an encoder-decoder of base size, which are measured beside `transformer`."""

BIG = "_wmt_en_de_big"
HOSTS = ["t5_small", "rsa_codet5_small", "srformer_t5_small", "srformer_bart_base"]
"""The systems of other hosts."""

SMALL = (
    "--encoder-embed-dim 16 --encoder-ffn-embed-dim 16 --encoder-layers 1 "
    "--encoder-attention-heads 2 --decoder-embed-dim 16 --decoder-ffn-embed-dim 16 "
    "--decoder-layers 1 --decoder-attention-heads 2"
)
"""Flags of a model for --tiny."""

OPS = (
    ("srformer", [1024, 4096, 16384, 65536]),
    ("rsa", [32, 128, 512, 2048, 4096]),
    ("biarn", [32, 128, 512, 2048]),
    ("rem_product", [512, 4096, 16384]),
    ("relative", [128, 512, 2048]),
    ("directional", [128, 512, 2048]),
    ("birnn", [32, 128, 512]),
)
"""The operations of benchmarks/ops.py, and their lengths."""


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


def tests(args: argparse.Namespace) -> Iterator[Piece]:
    """The tests on the device: the invariants first, then trainings in every precision."""
    chosen = {
        "invariants": ("not training and not train_in and not adamw", 8),
        "trainings-fp32": ("training_and_decoding and (fp32 or amp)", 6),
        "trainings-fp16": ("training_and_decoding and fp16", 6),
        "trainings-bf16": ("training_and_decoding and bf16", 6),
        "half-precision": ("train_in_half_precision or adamw", 6),
    }
    for name, (expression, minutes) in chosen.items():
        words = ["-m", "pytest", "tests/integration/test_gpu.py", "-m", "not slow"]
        yield Piece(f"tests-{name}", [sys.executable, *words, "-k", expression], minutes)


def benchmark(
    args: argparse.Namespace, name: str, minutes: float, program: str, *words: str
) -> Piece:
    """A program of benchmarks/, whose results have the piece's name."""
    command = [sys.executable, str(BENCHMARKS / program), *words, "--device", device(args)]
    output = args.work_dir.resolve() / "results" / f"{name}.json"
    return Piece(name, [*command, "--output", str(output)], minutes)


def device(args: argparse.Namespace) -> str:
    """Where the pieces compute."""
    return "cpu" if args.tiny else "cuda"


def kernels(args: argparse.Namespace) -> Iterator[Piece]:
    """Operations in all forms, in float32, and attention over long sources in bfloat16, too."""
    rounds = ["--rounds", "1"] if args.tiny else ["--inner", "5"]
    for op, own in OPS:
        lengths = map(str, [70] if args.tiny else own)
        words = ["--only", op, *rounds, "--lengths", *lengths]
        yield benchmark(args, f"ops-{op}".replace("_", "-"), 4, "ops.py", *words)
    words = ["--only", "srformer", *rounds, "--precision", "bf16", "--lengths"]
    lengths = ["70"] if args.tiny else ["1024", "4096", "16384", "65536"]
    yield benchmark(args, "ops-srformer-bf16", 4, "ops.py", *words, *lengths)


def models(args: argparse.Namespace) -> Iterator[Piece]:
    """Training and decoding beside fairseq's Transformer, at base and big size."""
    half = [] if args.tiny else ["--precision", "bf16"]
    small = ["--rounds", "1", "--vocabulary", "4000", "--flags", SMALL] if args.tiny else []
    fused = [] if args.tiny else ["--flags", "--optimizer adamw_fused"]
    size = "256" if args.tiny else "8192"
    update = [*half, *small, *fused, "--max-tokens", size, *(["--updates", "1"] * args.tiny)]
    decode = [*half, *small, "--max-tokens", size, "--beams", "5", "--batches", "1"]
    decode += ["--length", "4"] if args.tiny else ["--length", "32", "--rounds", "3"]
    for group, names in BASE:
        arch = ["--arch", "transformer", *names]
        yield benchmark(args, f"training-base-{group}", 6, "training.py", *arch, *update)
        yield benchmark(args, f"decoding-base-{group}", 6, "decoding.py", *arch, *decode)
    lengths = ["--lengths", *(["256"] if args.tiny else ["1024", "4096"])]
    scaled = [*half, *small, *fused, *lengths]
    arch = ["--arch", "transformer", "transformer+fused", "srformer"]
    yield benchmark(args, "training-lengths", 7, "scaling.py", "length", *arch, *scaled)
    for group, names in BASE:
        arch = ["--arch", f"transformer{BIG}", *(f"{name}{BIG}" for name in names)]
        yield benchmark(args, f"training-big-{group}", 7, "training.py", *arch, *update)
        yield benchmark(args, f"decoding-big-{group}", 7, "decoding.py", *arch, *decode)
    arch = ["--arch", "transformer", *HOSTS]
    yield benchmark(args, "training-hosts", 6, "training.py", *arch, *update)
    yield benchmark(args, "decoding-hosts", 6, "decoding.py", *arch, *decode)


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


def pieces(args: argparse.Namespace) -> list[Piece]:
    """All pieces, the most valuable first."""
    return [piece for part in (tests, kernels, models, trainings) for piece in part(args)]


class Campaign:
    """Runs pieces and records their state.

    Args:
        work: folder of the state, the logs and the results
        seconds: that are left for all pieces
    """

    def __init__(self, work: Path, seconds: float) -> None:
        self.work, self.end = work, time.monotonic() + seconds
        self.file = work / "campaign.json"
        known = json.loads(self.file.read_text(encoding="utf-8")) if self.file.exists() else {}
        self.state: dict[str, Any] = known.get("pieces", {})

    def run(self, chosen: Sequence[Piece], again: bool = False) -> None:
        """Run what has not run and fits into the time; then what continues, in turns.

        Args:
            chosen: in their order
            again: also what has run
        """
        for piece in chosen:
            if again or piece.name not in self.state or self.goes_on(piece):
                self.start(piece)
        started = [True]
        while any(started):
            started = [self.start(piece) for piece in chosen if self.goes_on(piece)]

    def goes_on(self, piece: Piece) -> bool:
        """Whether a piece was stopped and can continue."""
        return piece.continues and self.state.get(piece.name, {}).get("status") == STOPPED

    def start(self, piece: Piece) -> bool:
        """Run one piece; return False if too little time is left for it."""
        limit, left = 60 * piece.minutes, self.end - time.monotonic() - GRACE
        if left < (min(limit, 60) if piece.continues else limit):
            print(f"{piece.name}: {max(left, 0):.0f} s are left, too few", flush=True)
            return False
        print(f"{piece.name}: at most {min(limit, left):.0f} s", flush=True)
        log = self.work / "logs" / f"{piece.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        status = self.execute(piece.command, log, min(limit, left))
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        before = self.state.get(piece.name, {}).get("seconds", 0.0) if piece.continues else 0.0
        self.state[piece.name] = {
            "status": status, "seconds": round(before + time.monotonic() - started, 1),
            "command": piece.command, "said": said[-3:],
        }  # fmt: skip
        whole = self.file.with_suffix(".tmp")
        whole.write_text(json.dumps({"pieces": self.state}, indent=1) + "\n", encoding="utf-8")
        whole.replace(self.file)
        print(f"{piece.name}: {status}; {said[-1] if said else 'it printed nothing'}", flush=True)
        return True

    def execute(self, command: Sequence[str], log: Path, seconds: float) -> str:
        """Run a command for a time, and end it and what it has started; return its status."""
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with open(log, "ab") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
            try:
                return FAILED if process.wait(seconds) else DONE
            except subprocess.TimeoutExpired:
                return STOPPED
            finally:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE)
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def main() -> int:
    """Run the campaign; return 1 if a piece has failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--work-dir", type=Path, default=ROOT / "runs" / "gpu", help="default: runs/gpu"
    )
    parser.add_argument("--minutes", type=float, help="for this start (default: no limit)")
    parser.add_argument("--only", nargs="+", metavar="PIECE", help="these pieces, even if done")
    parser.add_argument("--list", action="store_true", help="print the names and limits")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal on the CPU")
    made = "made by prepare.sh of examples/modeling_recurrence"
    parser.add_argument("--multi30k", type=Path, metavar="DIR", help=made)
    parser.add_argument("--en-de", type=Path, metavar="DIR", help=made)
    args = parser.parse_args()
    for folder in filter(None, (args.multi30k, args.en_de)):
        if not (folder / "data-bin").is_dir():
            parser.error(f"{folder}: no data-bin; give a folder that prepare.sh has made")
    known = {piece.name: piece for piece in pieces(args)}
    unknown = sorted(set(args.only or ()) - known.keys())
    if unknown:
        parser.error(f"--only: unknown {', '.join(unknown)}; expected names that --list prints")
    chosen = [known[name] for name in args.only] if args.only else list(known.values())
    if args.list:
        print("\n".join(f"{piece.name}: {piece.minutes} minutes" for piece in chosen))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    seconds = float("inf") if args.minutes is None else 60 * args.minutes
    campaign = Campaign(args.work_dir, seconds)
    campaign.run(chosen, again=bool(args.only))
    states = [campaign.state.get(piece.name, {}).get("status") for piece in chosen]
    return 1 if FAILED in states else 0


if __name__ == "__main__":
    sys.exit(main())
