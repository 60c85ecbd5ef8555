"""Models in fairseq's trainer and generator, on real text, many in one process."""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
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

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SHARED = "--share-all-embeddings"
FLAGS = [
    "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1", "--optimizer", "adam",
    "--adam-betas", "(0.9, 0.98)", "--lr", "0.0005", "--lr-scheduler", "inverse_sqrt",
    "--warmup-updates", "4000", SHARED, "--seed", "1", "--num-workers", "0",
    "--no-progress-bar",
]  # fmt: skip


class Text(NamedTuple):
    """A corpus that the project ships, and how it is cut.

    Attributes:
        data: folder with train, valid and test
        sides: endings of its files
        join: pieces of a source, made of consecutive ones; 0 leaves lines as they are
    """

    data: Path
    sides: tuple[str, str]
    join: int = 0


class Name(NamedTuple):
    """What the name of a system says, ARCH[+fused][+FLAG=VALUE ...].

    Attributes:
        arch: the architecture
        flags: its own ones of fairseq-train, from +FLAG=VALUE
        fused: its cross-attention in training is torch's fused attention
    """

    arch: str
    flags: list[str]
    fused: bool


def parse_name(name: str) -> Name:
    """Read the name of a system.

    Raises:
        argparse.ArgumentTypeError: if something stands behind a "+" that is neither
    """
    arch, *more = name.split("+")
    flags = [word.split("=", 1) for word in more if word != "fused"]
    if any(len(pair) != 2 for pair in flags):
        raise argparse.ArgumentTypeError(f"{name}: behind a + is expected fused, or FLAG=VALUE")
    return Name(arch, [w for flag, value in flags for w in (f"--{flag}", value)], "fused" in more)


def system_name(name: str) -> str:
    """The type of options that name systems: refuses one that `parse_name` cannot read."""
    parse_name(name)
    return name


def add_models(parser: argparse.ArgumentParser, default: Sequence[str]) -> None:
    """The options of all that builds models, *default* if none is named."""
    parser.add_argument(
        "--arch", nargs="+", type=system_name, default=default, metavar="NAME[+fused][+FLAG=VALUE]"
    )
    parser.add_argument("--vocabulary", type=int, default=32000, help="words of the dictionary")
    parser.add_argument("--pieces", type=int, default=4000, help="of BPE")
    parser.add_argument("--flags", default="", help="further ones of fairseq-train, as one word")


def text(name: str) -> Text:
    """ "sentences", or the length of sources in pieces, which are joined documents."""
    if name == "sentences":
        return Text(EXAMPLES / "quickstart" / "data", ("en", "de"))
    return Text(EXAMPLES / "summarization" / "data", ("source", "target"), int(name))


def joined(lines: Sequence[tuple[list[str], list[str]]], length: int) -> Iterator[tuple[str, str]]:
    """Consecutive pairs as one: sources of *length* pieces, targets of at most a sixteenth."""
    source: list[str] = []
    target: list[str] = []
    for more, summary in lines:
        source, target = source + more, target + summary
        if len(source) >= length:
            yield " ".join(source[:length]), " ".join(target[: length // 16])
            source, target = [], []


def prepare(name: str, pieces: int, vocabulary: int, folder: Path) -> Path:
    """Binary data of a text.

    Args:
        name: as in `text`
        pieces: of BPE, learned from the text
        vocabulary: words of the dictionary, filled up with some that no line has, so that the
            output layer is as large as in a training on a large corpus
        folder: empty, for everything that is written
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


class System:
    """A model with fairseq's trainer.

    Args:
        name: as in `parse_name`
        data: binary data
        flags: further ones of fairseq-train
        device: "cpu" or "cuda"
    """

    def __init__(self, name: str, data: Path, flags: Sequence[str], device: str) -> None:
        self.name, self.device = name, device
        arch, own, with_fused = parse_name(name)
        words = [str(data), "--arch", arch, *FLAGS, *flags, *own]
        words += ["--cpu"] if device == "cpu" else []
        self.args = options.parse_args_and_arch(options.get_training_parser(), words)
        self.cfg = convert_namespace_to_omegaconf(self.args)
        self.task = tasks.setup_task(self.cfg.task)
        self.model = self.task.build_model(self.cfg.model)
        if with_fused:
            fuse_cross_attention(self.model)
        criterion = self.task.build_criterion(self.cfg.criterion)
        self.trainer = Trainer(self.cfg, self.task, self.model, criterion)

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    def batches(self, split: str, tokens: int, count: int) -> list[dict[str, Any]]:
        """The first batches of an epoch, on the device; the same for every system."""
        found = batches_of(self.task, self.cfg, split, tokens, count)
        return [move_to_cuda(batch) for batch in found] if self.device == "cuda" else found

    def update(self, batch: dict[str, Any]) -> None:
        """One update: forward, backward, optimizer."""
        self.trainer.train_step([batch])


def fuse_cross_attention(model: nn.Module) -> None:
    """Let fairseq's cross-attention train with torch's fused attention, which it never does.

    Its decoder layer always says that keys and values are static, which only matters in
    incremental decoding and keeps it from that branch.
    """
    for layer in model.decoder.layers:
        if isinstance(layer.encoder_attn, MultiheadAttention):
            layer.encoder_attn.forward = fused(layer.encoder_attn)


def fused(attention: MultiheadAttention) -> Any:
    """Its `forward`, without weights and static keys in training."""
    usual = attention.forward

    def forward(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        if attention.training and options.get("incremental_state") is None:
            options.update(static_kv=False, need_weights=False, need_head_weights=False)
        return usual(query=query, key=key, value=value, **options)

    return forward


def batches_of(
    task: Any, cfg: Any, split: str, tokens: int, count: int | None
) -> list[dict[str, Any]]:
    """The first batches of an epoch, or all, in fairseq's order: shuffled for training alone."""
    task.load_dataset(split)
    iterator = task.get_batch_iterator(
        task.dataset(split), max_tokens=tokens, ignore_invalid_inputs=True, seed=1,
        max_positions=(cfg.model.max_source_positions, cfg.model.max_target_positions),
        required_batch_size_multiple=1,
    )  # fmt: skip
    found = list(islice(iterator.next_epoch_itr(shuffle=split == "train"), count))
    if not found:
        raise ConfigError(f"no line of {split} fits the model; give larger --max-source-positions")
    return found


def tokens_of(batches: Sequence[dict[str, Any]]) -> int:
    """Target tokens, as fairseq counts words."""
    return sum(batch["ntokens"] for batch in batches)
