"""Whether memory stays flat over hours: python benchmarks/memory.py [--output FILE].

A small model trains for thousands of epochs, with validation and checkpoints, in one process of
`fairseq-recur train`. It then decodes thousands of sentences in one `fairseq-recur interactive`.
The resident memory of the process is read at regular intervals. The slope is that of a straight
line through the second half of the readings, when everything has been allocated once.
"""

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from command_lines import command_line
from reports import record
from systems import NOT_FROM_HERE

from fairseq_recur.cli import main as fairseq_recur
from fairseq_recur.plotting.figures import COLOURS, new_figure, plain_axes, save

ARCHITECTURES = ["transformer", "transformer_biarn", "rsa_transformer", "srformer"]
SIZES = (
    "--encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --encoder-layers 2 --decoder-layers 2 "
    "--encoder-attention-heads 4 --decoder-attention-heads 4"
).split()
TRAINING = (
    "--optimizer adam --lr 0.002 --criterion label_smoothed_cross_entropy --max-tokens 400 --cpu "
    "--seed 1 --num-workers 0 --keep-last-epochs 2 --log-format simple --log-interval 1000"
).split()
WORDS = [f"w{n}" for n in range(200)]


class Curve(NamedTuple):
    """Resident memory in MiB, and the number of sentences or epochs done at each reading."""

    done: list[int]
    mib: list[float]

    @property
    def slope(self) -> float:
        """KiB per sentence or epoch, over the second half."""
        half = len(self.done) // 2
        return float(np.polyfit(self.done[half:], self.mib[half:], 1)[0] * 1024)


def resident(process: "subprocess.Popen[str]") -> float:
    """Return the resident memory of a process in MiB, from Linux's /proc."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def line(chance: random.Random) -> str:
    """Draw a sentence of 1 to 40 words."""
    return " ".join(chance.choices(WORDS, k=chance.randint(1, 40)))


def prepare(folder: Path) -> Path:
    """Make a corpus of 64 sentences and its binary data."""
    chance = random.Random(1)
    for name in ("train", "valid"):
        lines = [line(chance) for _ in range(64)]
        for side in ("a", "b"):
            (folder / f"{name}.{side}").write_text("\n".join(lines) + "\n")
    fairseq_recur([
        "preprocess", "-s", "a", "-t", "b", "--joined-dictionary", "--destdir", str(folder / "bin"),
        "--trainpref", str(folder / "train"), "--validpref", str(folder / "valid"),
    ])  # fmt: skip
    return folder / "bin"


def watch(process: "subprocess.Popen[str]", mark: str, every: int) -> Curve:
    """Read the memory of a process at every *every*-th line that contains *mark*, until it ends."""
    curve, seen = Curve([], []), 0
    assert process.stdout is not None
    last = ""
    for last in process.stdout:
        if mark in last:
            seen += 1
            if seen % every == 0:
                curve.done.append(seen)
                curve.mib.append(round(resident(process), 3))
    if process.wait() != 0:
        raise OSError(
            f"the command failed with status {process.returncode}; look at its last line: {last}"
        )
    return curve


def start(*argv: object, stderr: int) -> "subprocess.Popen[str]":
    """Start a command of fairseq-recur whose output can be read."""
    command = [sys.executable, "-m", "fairseq_recur", *map(str, argv)]
    environment = {**os.environ, **NOT_FROM_HERE}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True
    )


def train(data: Path, arch: str, folder: Path, epochs: int) -> Curve:
    """Train for many small epochs, each of them validated and saved."""
    with start(
        "train", data, "--arch", arch, *SIZES, *TRAINING, "--save-dir", folder,
        "--max-epoch", epochs, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        return watch(process, "end of epoch", max(1, epochs // 400))


def decode(data: Path, checkpoint: Path, sentences: int) -> Curve:
    """Decode many sentences, in batches of eight."""
    chance = random.Random(2)
    lines: Iterator[str] = (line(chance) for _ in range(sentences))
    source = checkpoint.with_name("sentences")
    source.write_text("\n".join(lines) + "\n")
    with start(
        "interactive", data, "--path", checkpoint, "--cpu", "--input", source, "--buffer-size", 8,
        "--batch-size", 8, "--max-len-b", 20, "--max-len-a", 0, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        return watch(process, "H-", max(1, sentences // 400))


def measure(
    architectures: list[str], sentences: int, epochs: int, jobs: int = 1
) -> dict[str, dict[str, Curve]]:
    """Measure both curves of each architecture, *jobs* architectures at a time."""
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(jobs) as pool:
        data = prepare(Path(name))

        def both(arch: str) -> dict[str, Curve]:
            folder = Path(name) / arch
            trained = train(data, arch, folder, epochs)
            return {
                "training": trained,
                "decoding": decode(data, folder / "checkpoint_last.pt", sentences),
            }

        return dict(zip(architectures, pool.map(both, architectures)))


def draw(curves: dict[str, dict[str, Curve]], path: Path) -> None:
    """Plot the memory over time, in one panel for training and one for decoding."""
    figure = new_figure(9.0, 3.5)
    for axes, kind in zip(figure.subplots(1, 2), ("training", "decoding")):
        for colour, (arch, of_arch) in zip(COLOURS, curves.items()):
            axes.plot(of_arch[kind].done, of_arch[kind].mib, color=colour, label=arch)
        axes.set_xlabel("epochs" if kind == "training" else "sentences")
        axes.set_ylabel("resident memory (MiB)")
        highest = max(max(of_arch[kind].mib) for of_arch in curves.values())
        axes.set_ylim(0, 1.3 * highest)
        axes.set_title(kind)
        plain_axes(axes)
        axes.legend(frameon=False)
    save(figure, path)


def main() -> None:
    """Run the benchmark."""
    parser = command_line(__doc__, device=False)
    parser.add_argument("--arch", nargs="+", default=ARCHITECTURES)
    parser.add_argument("--sentences", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=1_000)
    parser.add_argument("--jobs", type=int, default=1, help="architectures measured at a time")
    args = parser.parse_args()
    curves = measure(args.arch, args.sentences, args.epochs, args.jobs)
    for arch, of_arch in curves.items():
        for kind, curve in of_arch.items():
            unit = "epoch" if kind == "training" else "sentence"
            print(
                f"{arch:20} {kind}: {curve.mib[-1]:.0f} MiB after {curve.done[-1]} {unit}s, "
                f"{curve.slope:+.3f} KiB per {unit}"
            )
    if args.output:
        rows = {
            arch: {k: {**c._asdict(), "slope_kib": c.slope} for k, c in kinds.items()}
            for arch, kinds in curves.items()
        }
        record(args.output.with_suffix(".json"), rows)
        draw(curves, args.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
