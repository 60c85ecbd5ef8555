"""The training command on a CPU, as it comes with fairseq and with this plug-in.

    python benchmarks/commands.py [--threads N] [--rounds N] [--output FILE]

Each measurement is a process of its own: `fairseq-train` without the plug-in, `fairseq-recur train`
with the same arguments, with the fused optimizer and loss, and with these in mixed precision, which
on a CPU is bfloat16. The model is fairseq's `transformer`: the one of Multi30k (width 128, 4 + 4
layers) and base. Words per second are those of fairseq's log, without the first updates.
"""

import argparse
import tempfile
from pathlib import Path

from command_lines import command_line
from measuring import ratios, rounded, turns
from reports import Report
from systems import prepare, train_by_command
from tables import Row

SIZES = {
    "tiny": (
        9712, "--max-tokens 4096 --encoder-layers 4 --decoder-layers 4 --encoder-embed-dim 128 "
        "--decoder-embed-dim 128 --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 "
        "--encoder-attention-heads 4 --decoder-attention-heads 4 --dropout 0.3 --clip-norm 25",
    ),
    "base": (32000, "--max-tokens 1024"),
}  # fmt: skip
"""The vocabulary and the flags of each size."""

FUSED = "--criterion label_smoothed_cross_entropy_fused --optimizer adamw_fused"
COMMANDS = {
    "fairseq-train": ("fairseq_cli.train", ""),
    "fairseq-recur train": ("fairseq_recur train", ""),
    f"fairseq-recur train {FUSED}": ("fairseq_recur train", FUSED),
    f"fairseq-recur train {FUSED} --amp": ("fairseq_recur train", f"{FUSED} --amp"),
}
"""The module that is run, and what is added to the flags."""


def measure(name: str, size: str, data: Path, args: argparse.Namespace) -> Row:
    """Train in a process; return its words per second, peak memory and seconds of the system."""
    module, own = COMMANDS[name]
    flags = ["--arch", "transformer", "--cpu", *SIZES[size][1].split(), *own.split()]
    return train_by_command(module.split(), data, flags, args.updates, args.threads)


def main() -> None:
    """Run the benchmark."""
    parser = command_line(__doc__, rounds=3, device=False)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--updates", type=int, default=8, help="counted, per process")
    args = parser.parse_args()
    report = Report(args.output, threads_per_process=args.threads)
    for size, (vocabulary, _) in SIZES.items():
        found: dict[str, list[Row]] = {name: [] for name in COMMANDS}
        with tempfile.TemporaryDirectory() as folder:
            data = prepare("sentences", 4000, vocabulary, Path(folder))
            for name in turns(args.rounds, list(COMMANDS)):
                found[name].append(measure(name, size, data, args))
                print(f"{size} {name}: {found[name][-1]}", flush=True)
        speed = {name: [row["wps"] for row in rows] for name, rows in found.items()}
        for name, rows in found.items():
            report.add({
                "size": size, "command": name, "tokens_per_second": rounded(speed[name]),
                "of_first": rounded(ratios(speed[name], speed["fairseq-train"])),
                "peak_mib": rounded([row["peak_mib"] for row in rows]),
                "system_seconds": rounded([row["system_seconds"] for row in rows]),
            })  # fmt: skip


if __name__ == "__main__":
    main()
