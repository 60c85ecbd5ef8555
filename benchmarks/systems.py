"""Models in fairseq's trainer and generator, on real text, several in one process."""

import argparse
import logging
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.modules import MultiheadAttention
from fairseq.trainer import Trainer
from fairseq.utils import move_to_cuda
from torch import Tensor, nn

from fairseq_recur.cli import main as fairseq_recur
from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.training_log import read_log

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SHARED = "--share-all-embeddings"
TARGET_SHARE = 16  # joined documents have at most a target piece for so many source pieces
TRAINING = [
    "--optimizer", "adam", "--adam-betas", "(0.9, 0.98)",
    "--lr", "0.0005", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "4000",
    "--seed", "1", "--num-workers", "0", "--no-progress-bar",
]  # fmt: skip
"""Flags of every training."""

FLAGS = [
    "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1", SHARED, *TRAINING
]  # fmt: skip
"""Flags of fairseq-train for translation."""

PRECISIONS = {"fp32": [], "fp16": ["--fp16"], "bf16": ["--bf16"]}


class Text(NamedTuple):
    """A corpus of this project.

    Attributes:
        data: folder with train, valid and test
        sides: suffixes of its files
        join: length in pieces of each source, joined from consecutive lines; 0 for single lines
    """

    data: Path
    sides: tuple[str, str]
    join: int = 0


class Name(NamedTuple):
    """The parts of a system's name, ARCH[+fused][+FLAG=VALUE ...].

    Attributes:
        arch: the architecture
        flags: additional flags of fairseq-train, from +FLAG=VALUE
        fused: whether cross-attention uses torch's fused attention in training
    """

    arch: str
    flags: list[str]
    fused: bool


def parse_name(name: str) -> Name:
    """Parse the name of a system.

    Raises:
        argparse.ArgumentTypeError: the text after a "+" is neither "fused" nor FLAG=VALUE
    """
    arch, *more = name.split("+")
    flags = [word.split("=", 1) for word in more if word != "fused"]
    if any(len(pair) != 2 for pair in flags):
        raise argparse.ArgumentTypeError(f"{name}: expected fused, or FLAG=VALUE, after each +")
    return Name(arch, [w for flag, value in flags for w in (f"--{flag}", value)], "fused" in more)


def system_name(name: str) -> str:
    """Check a command-line argument that names a system."""
    parse_name(name)
    return name


def add_systems(parser: argparse.ArgumentParser, default: Sequence[str]) -> None:
    """Add the options of all programs that build models."""
    parser.add_argument(
        "--arch", nargs="+", type=system_name, default=default, metavar="NAME[+fused][+FLAG=VALUE]"
    )
    parser.add_argument("--flags", default="", help="more flags of fairseq-train, in one argument")
    parser.add_argument("--precision", default="fp32", choices=PRECISIONS)


def add_models(parser: argparse.ArgumentParser, default: Sequence[str], max_tokens: int) -> None:
    """Add the options of all programs that build encoder-decoders."""
    add_systems(parser, default)
    parser.add_argument("--vocabulary", type=int, default=32000, help="size of the dictionary")
    parser.add_argument("--pieces", type=int, default=4000, help="number of BPE pieces")
    parser.add_argument("--max-tokens", type=int, default=max_tokens, help="tokens per batch")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep the binary data there for other runs"
    )


def flags_of(args: argparse.Namespace) -> list[str]:
    """Return the flags of fairseq-train that the options give."""
    return args.flags.split() + PRECISIONS[args.precision]


def add_text(parser: argparse.ArgumentParser) -> None:
    """Add the option that selects the text."""
    parser.add_argument(
        "--text", type=text_name, default="sentences",
        help='"sentences", or the source length in pieces',
    )  # fmt: skip


def text_name(word: str) -> str:
    """Check the value of --text."""
    if word != "sentences" and not (word.isdecimal() and int(word)):
        raise argparse.ArgumentTypeError(f'{word}: expected "sentences", or a length of at least 1')
    return word


def text(name: str) -> Text:
    """Find a corpus: "sentences", or the source length in pieces for joined documents."""
    if name == "sentences":
        return Text(EXAMPLES / "quickstart" / "data", ("en", "de"))
    return Text(EXAMPLES / "summarization" / "data", ("source", "target"), int(name))


def joined(lines: Sequence[tuple[list[str], list[str]]], length: int) -> Iterator[tuple[str, str]]:
    """Join consecutive pairs: sources of *length* pieces, targets of at most length / 16."""
    source: list[str] = []
    target: list[str] = []
    for more, summary in lines:
        source, target = source + more, target + summary
        if len(source) >= length:
            yield " ".join(source[:length]), " ".join(target[: length // TARGET_SHARE])
            source, target = [], []


def prepare(name: str, pieces: int, vocabulary: int, folder: Path) -> Path:
    """Make the binary data of a text.

    Args:
        name: as in `text`
        pieces: number of BPE pieces to learn from the text
        vocabulary: size of the dictionary; it is padded with unused words, so that the output
            layer is as large as with a large corpus
        folder: empty folder for all files
    """
    data, sides, join = text(name)
    encode = [sys.executable, str(EXAMPLES / "quickstart" / "bpe.py"), str(data), str(folder)]
    subprocess.run([*encode, str(pieces), *sides], check=True, stdout=subprocess.DEVNULL)
    for split in ("train", "valid", "test") if join else ():
        files = [folder / "pieces" / f"{split}.{side}" for side in sides]
        lines = zip(*(file.read_text(encoding="utf-8").splitlines() for file in files))
        long = list(joined([(s.split(), t.split()) for s, t in lines], join))
        for file, column in zip(files, zip(*long)):
            file.write_text("\n".join(column) + "\n", encoding="utf-8")
    prefixes = [
        word
        for split in ("train", "valid", "test")
        for word in (f"--{split}pref", str(folder / "pieces" / split))
    ]
    with redirect_stdout(StringIO()):
        fairseq_recur([
            "preprocess", "-s", sides[0], "-t", sides[1], "--joined-dictionary", *prefixes,
            "--padding-factor", str(vocabulary), "--destdir", str(folder / "bin"),
        ])  # fmt: skip
    return folder / "bin"


@contextmanager
def prepared(args: argparse.Namespace, name: str) -> Iterator[Path]:
    """Silence fairseq's log and provide the binary data of a text: in --keep, or for a while."""
    logging.disable(logging.INFO)
    if args.keep is not None:
        args.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.keep) as folder:
        made = Path(folder, "made")
        if args.keep is None:
            yield prepare(name, args.pieces, args.vocabulary, made)
            return
        kept = args.keep / f"{name}_{args.pieces}_{args.vocabulary}"
        if not kept.is_dir():
            prepare(name, args.pieces, args.vocabulary, made)
            made.rename(kept)
        yield kept / "bin"


class System:
    """A model with fairseq's trainer.

    Args:
        name: as in `parse_name`
        words: arguments of fairseq-train: the data, and flags such as `FLAGS`
        device: "cpu" or "cuda"
    """

    def __init__(self, name: str, words: Sequence[str], device: str) -> None:
        self.name, self.device = name, device
        arch, own, with_fused = parse_name(name)
        # --no-save: otherwise a trainer locks the folder, where another benchmark may run.
        words = ["--arch", arch, "--no-save", *words, *own, *(["--cpu"] if device == "cpu" else [])]
        self.args = options.parse_args_and_arch(options.get_training_parser(), words)
        self.cfg = convert_namespace_to_omegaconf(self.args)
        self.task = tasks.setup_task(self.cfg.task)
        self.model = self.task.build_model(self.cfg.model)
        if with_fused:
            fuse_cross_attention(self.model)
        criterion = self.task.build_criterion(self.cfg.criterion)
        self.trainer = Trainer(self.cfg, self.task, self.model, criterion)
        self.trainer.save_checkpoint = lambda *_: None  # in an update that fails: gigabytes

    @property
    def parameters(self) -> int:
        """Number of trained parameters."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    def batches(self, split: str, tokens: int, count: int) -> list[dict[str, Any]]:
        """Return the first batches of an epoch, on the device; all systems get the same."""
        return [
            self.on_device(batch) for batch in batches_of(self.task, self.cfg, split, tokens, count)
        ]

    def following(self, count: int) -> list[dict[str, Any]]:
        """Return the first batches of an epoch of this system's task, in order, on the device."""
        epoch = self.trainer.get_train_iterator(1).next_epoch_itr(shuffle=False)
        return [self.on_device(batch) for batch in islice(epoch, count)]

    def on_device(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return a batch where the model is."""
        return move_to_cuda(batch) if self.device == "cuda" else batch

    def update(self, batch: dict[str, Any]) -> None:
        """Do one update: forward, backward, optimizer; without memory for it, raise an error."""
        self.trainer.train_step([batch], raise_oom=True)


def fuse_cross_attention(model: nn.Module) -> None:
    """Make fairseq's cross-attention use torch's fused attention in training.

    By itself it never does: the decoder layer always passes static_kv, which matters only in
    incremental decoding, but excludes the fused branch.
    """
    for layer in model.decoder.layers:
        if isinstance(layer.encoder_attn, MultiheadAttention):
            layer.encoder_attn.forward = fused(layer.encoder_attn)


def fused(attention: MultiheadAttention) -> Any:
    """Wrap `forward`: in training, without attention weights and static keys."""
    usual = attention.forward

    def forward(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        if attention.training and options.get("incremental_state") is None:
            options.update(static_kv=False, need_weights=False, need_head_weights=False)
        return usual(query=query, key=key, value=value, **options)

    return forward


def batches_of(
    task: Any, cfg: Any, split: str, tokens: int, count: int | None
) -> list[dict[str, Any]]:
    """Return the first batches of an epoch, or all; as in fairseq, only train is shuffled."""
    task.load_dataset(split)
    iterator = task.get_batch_iterator(
        task.dataset(split), max_tokens=tokens, ignore_invalid_inputs=True, seed=1,
        max_positions=positions(cfg), required_batch_size_multiple=1,
    )  # fmt: skip
    found = list(islice(iterator.next_epoch_itr(shuffle=split == "train"), count))
    if not found:
        raise ConfigError(
            f"no line of {split} fits the model; expected larger --max-source-positions in --flags"
        )
    return found


def positions(cfg: Any) -> tuple[int, int]:
    """Return the longest source and target of a model."""
    return cfg.model.max_source_positions, cfg.model.max_target_positions


def left_out(task: Any, cfg: Any, split: str) -> int:
    """Return how many lines of a split are too long for the model: `batches_of` lacks them."""
    data = task.dataset(split)
    return len(data.filter_indices_by_size(data.ordered_indices(), positions(cfg))[1])


def tokens_of(batches: Sequence[dict[str, Any]]) -> int:
    """Count the target tokens, as fairseq does."""
    return sum(batch["ntokens"] for batch in batches)


WARM_UP = 3
"""Updates of a training command that are not counted."""


NOT_FROM_HERE = {"PYTHONSAFEPATH": "1"}
"""For commands: else Python looks for the package in the current folder before PYTHONPATH, where
compare.py names the one to measure. Python 3.10 does so in any case."""


def train_by_command(
    module: Sequence[str], data: Path, flags: Sequence[str], updates: int, threads: int
) -> dict[str, float]:
    """Train in a process of its own.

    Args:
        module: what follows ``python -m`` up to the arguments of fairseq-train
        data: binary data
        flags: of fairseq-train, besides `FLAGS`
        updates: that are counted
        threads: of each process

    Returns:
        The words per second of fairseq's log, as the median of the counted updates; the peak
        memory in MiB; the seconds that the system spent.

    Raises:
        OSError: the command failed
    """
    log = data.parent / "log"
    log.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", *module, str(data), *FLAGS, *flags,
        "--max-update", str(WARM_UP + updates), "--no-save", "--disable-validation",
        "--log-format", "json", "--log-interval", "1", "--log-file", str(log),
    ]  # fmt: skip
    with (data.parent / "output").open("w+") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **NOT_FROM_HERE, "OMP_NUM_THREADS": str(threads)},
            stdout=output, stderr=output,
        )  # fmt: skip
        _, status, used = os.wait4(process.pid, 0)  # unlike `wait`, with the process's memory
        if status:
            output.seek(0)
            said = output.read()[-2000:]
            raise OSError(f"{' '.join(command)} failed; look at its last lines:\n{said}")
    steps = read_log(log).steps
    speed = statistics.median(s["wps"] for update, s in steps.items() if update > WARM_UP)
    return {"wps": speed, "peak_mib": used.ru_maxrss / 1024, "system_seconds": used.ru_stime}
