"""The pieces of the campaign: what is tested, measured and trained, the most valuable first."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENT = ROOT / "examples" / "modeling_recurrence"

MOST = 8
"""Minutes of the longest piece: a short job of a scheduler has room for one."""

BASE = (
    ("papers", ["transformer_biarn", "transformer_birnn", "rsa_transformer", "srformer"]),
    ("compared", ["transformer_relpos", "transformer_disan", "transformer_rnn_multicolumn"]),
)
"""The systems of an encoder-decoder of base size, which are measured beside `transformer`."""

BIG = "_wmt_en_de_big"
HOSTS = {
    "t5": ["t5_small", "rsa_codet5_small", "srformer_t5_small"],
    "bart": ["bart_base", "srformer_bart_base"],
}
"""Other hosts, each before the systems that are measured beside it."""

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
    return benchmark(args, piece, 2, "ops.py", *words, *chosen)


def pairs(args: argparse.Namespace, flags: str) -> list[str]:
    """What the measurements of encoder-decoders have in common."""
    words = ["--precision", "bf16", "--keep", str(place(args.work_dir) / "data")]
    if args.tiny:
        words += ["--rounds", "1", "--vocabulary", "600", "--pieces", "500"]
        flags = f"{SMALL} {flags}".strip()
    return [*words, *(["--flags", flags] if flags else [])]


def training(
    args: argparse.Namespace, name: str, minutes: float, names: Sequence[str], *more: str
) -> Piece:
    """Training beside the first system."""
    size = ["--max-tokens", "256", "--updates", "1"] if args.tiny else ["--max-tokens", "8192"]
    words = ["--arch", *names, *pairs(args, FUSED), *size, *more]
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
        # Half of the length, a chunk of the bottleneck, is more than the dilations of WikiText-103.
        command += ["--rounds", "1", "--rows", "2", "--length", "32", "--steps", "6"]
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

    yield checks("kernels", 2, "kernels_equal")
    yield op("srformer", [1024, 4096, 16384, 65536])
    yield train(f"base-{papers}", 4, first + of_papers)
    yield decode(f"base-{papers}", 4, first + of_papers)
    yield op("rsa", [32, 128, 512, 2048, 4096])
    yield op("biarn", [32, 128, 512, 2048])
    yield checks("invariants", 3, "not kernels_equal and not train and not adamw")
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
    size = ["64"] if args.tiny else ["1024", "4096", "16384", "--rounds", "2"]
    long = ["--arch", "transformer", "srformer", "srformer+cross-attention=segmented"]
    words = ["decoding", *long, *pairs(args, ""), "--lengths", *size]
    yield benchmark(args, "decoding-lengths", 5, "scaling.py", *words)
    yield train(f"big-{papers}", 5, [f"{name}{BIG}" for name in first + of_papers])
    yield decode(f"big-{papers}", 5, [f"{name}{BIG}" for name in first + of_papers])
    yield checks("half-precision", 6, "train_in_half_precision or adamw")
    yield checks("trainings-bf16", 6, "training_and_decoding and bf16")
    yield train(f"base-{compared}", 4, first + of_compared)
    yield decode(f"base-{compared}", 4, first + of_compared)
    for host, systems in HOSTS.items():
        yield train(f"{host}-hosts", 4, systems)
        yield decode(f"{host}-hosts", 4, systems)
    # Table 4 of the SRformer paper.
    table = ["bart_base", "srformer_bart_base"]
    table += [f"srformer_bart_base+cross-attention={kind}" for kind in ("xl", "global")]
    yield train("summaries", 5, table, "--text", "64" if args.tiny else "1024")
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


def pronunciation(args: argparse.Namespace) -> Piece:
    """Trainings of the organisers' size in examples/g2p, side by side."""
    words = [
        str(args.g2p.resolve()), "--work-dir", str(args.work_dir.resolve() / "g2p"),
        "--systems", "transformer", "birnn", "rsa", "--seeds", "1", "--jobs", "16",
    ]  # fmt: skip
    if args.tiny:
        words += ["--settings", "small", "--set", "train.max-update=2", "--jobs", "1"]
    else:
        words += ["--set", "train.cpu=false", "--set", "generate.cpu=false"]
    return Piece("training-g2p", [sys.executable, "examples/g2p/run.py", *words], MOST, True)


def trainings(args: argparse.Namespace) -> Iterator[Piece]:
    """Experiments on the folders that the user names, several trainings side by side."""
    if args.g2p is not None:
        yield pronunciation(args)
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
            "--set", f"generate.bpe-codes={folder / 'codes'}",
        ]  # fmt: skip
        more = ["--set", "train.fp16=false", "--set", "train.cpu=true", "--dry-run"]
        command = [sys.executable, *words, *(more if args.tiny else [])]
        yield Piece(f"training-{corpus}", command, minutes, continues=True)
