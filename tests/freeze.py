"""Create the frozen checkpoints that are missing: python -m tests.freeze

Each is a small model of one structure, trained for a few updates, together with its outputs for
some inputs. They are created once: later versions must load them and compute the same outputs.
"""

import lzma
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.models import FairseqEncoderDecoderModel
from torch import nn

from fairseq_recur.models import ForecasterModel
from tests.conftest import LANGUAGE_MODELS, SEGMENTS, SMALL, STRUCTURES, TRAIN, write_corpus
from tests.running import run_command
from tests.series import SPLIT, WINDOWS, write_series
from tests.series import TRAIN as TRAIN_ON_SERIES
from tests.unit.test_language_model import SMALL_LM

FOLDER = Path(__file__).resolve().with_name("frozen")
DICTIONARIES = ("dict.src.txt", "dict.tgt.txt", "dict.txt")


@dataclass(frozen=True)
class System:
    """A model whose parts act on short inputs.

    Attributes:
        arch: its preset
        flags: of its training, its sizes included
        weights: a part of the names of those weights without which it would be another model
        without: options without which its weights would be another model
    """

    arch: str
    flags: list[str]
    weights: str | None = None
    without: dict[str, Any] = field(default_factory=dict)


TINY: list[str] = (
    "--encoder-embed-dim 8 --encoder-ffn-embed-dim 12 --encoder-layers 1 --decoder-layers 1 "
    "--encoder-attention-heads 2 --decoder-attention-heads 2"
).split()
SEGMENT = 4
TINY_LM: list[str] = (
    "--decoder-embed-dim 8 --decoder-input-dim 8 --decoder-output-dim 8 --decoder-layers 2 "
    f"--decoder-ffn-embed-dim 12 --decoder-attention-heads 2 --tokens-per-sample {SEGMENT} "
    "--lr 1 --lr-scheduler fixed"
).split()
"""With a rate at which weights that are drawn from N(0, 0.02) matter after three updates."""

MEMORY: list[str] = [*TINY_LM, "--memory-length", "6"]
BLOCKS: list[str] = [
    *MEMORY, *"--recurrent-block 2 --recurrent-layer 2 --recurrent-state-length 3".split(),
]  # fmt: skip
LATENT: list[str] = [*TINY_LM, *"--latent-chunk 2 --latent-every 1 --latent-states 3".split()]
DILATED: list[str] = ["--rsa-dilations", "1,2"]

SYSTEMS: dict[str, System] = {
    "srformer-segments": System("srformer", [*TINY, *SEGMENTS], "neuron"),
    "srformer-unit": System(
        "srformer",
        [*TINY, *SEGMENTS, "--srformer-scale", "unit", "--srformer-learned-mix"],
        "neuron",
        {"srformer_scale": "paper"},
    ),
    "srformer_t5_small-segments": System("srformer_t5_small", [*TINY, *SEGMENTS], "neuron"),
    "rsa_codet5_small-dilated": System(
        "rsa_codet5_small", [*TINY, "--rsa-dilations", "2"], "mixture", {"rsa_dilations": "1"}
    ),
    "xl_lm": System("xl_lm_tiny", MEMORY, "positions", {"memory_length": 0}),
    "rsa_xl_lm": System("rsa_xl_lm_tiny", [*MEMORY, *DILATED], "mixture", {"memory_length": 0}),
    "brt_lm": System("brt_lm_tiny", BLOCKS, "identity", {"memory_length": 0}),
    "rsa_brt_lm": System("rsa_brt_lm_tiny", [*BLOCKS, *DILATED], "mixture", {"memory_length": 0}),
    "tlb_lm": System("tlb_lm_tiny", LATENT, "bottleneck", {"latent_chunk": 1}),
    "rsa_tlb_lm": System("rsa_tlb_lm_tiny", [*LATENT, *DILATED], "mixture", {"latent_chunk": 1}),
    "rsa_informer": System(
        "rsa_informer",
        [*TINY, "--prob-sparse-factor", "1"],
        "mixture",
        {"encoder_self_attention": "dot"},
    ),
    "log_sparse": System("log_sparse", TINY, None, {"encoder_self_attention": "dot"}),
    "xl_forecaster": System("xl_forecaster", TINY, "positions", {"encoder_memory": "none"}),
}
"""Besides the presets, whose own segments and dilations are longer than the inputs."""

NAMES: list[str] = [*STRUCTURES, *LANGUAGE_MODELS, *SYSTEMS]


def files(name: str) -> dict[str, Path]:
    """The paths of a model's checkpoint and of the outputs that it computed when it was created.

    The checkpoints of `SYSTEMS` are compressed: most of one is text, its configuration.
    """
    ending = ".pt.xz" if name in SYSTEMS else ".pt"
    return {"checkpoint": FOLDER / f"{name}{ending}", "expected": FOLDER / f"{name}.expected.pt"}


def load(name: str, **options: Any) -> nn.Module:
    """Load a checkpoint as the commands do, with some options of the model replaced."""
    given = {"data": str(FOLDER), "series_file": str(FOLDER / "series.csv"), **options}
    checkpoint = files(name)["checkpoint"]
    with tempfile.TemporaryDirectory() as folder:
        if checkpoint.suffix == ".xz":
            unpacked = Path(folder, checkpoint.stem)
            unpacked.write_bytes(lzma.decompress(checkpoint.read_bytes()))
            checkpoint = unpacked
        (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
            [str(checkpoint)], arg_overrides=given
        )
    return model.eval()


@torch.no_grad()
def compute(model: nn.Module) -> dict[str, torch.Tensor]:
    """The inputs and the outputs of a model, which are the logits of one that reads text."""
    rows = torch.Generator().manual_seed(3)
    if isinstance(model, ForecasterModel):
        return forecast(model, rows)
    tokens = torch.randint(4, 24, (3, 9), generator=rows)
    tokens[:, -1] = 2
    if isinstance(model, FairseqEncoderDecoderModel):
        tokens[1, :4] = 1  # shorter, padded on the left as fairseq does
        previous = torch.randint(4, 24, (3, 6), generator=rows)
        previous[:, 0] = 2
        logits = model(tokens, tokens.ne(1).sum(1), previous)[0]
        return {"tokens": tokens, "previous": previous, "logits": logits}
    if getattr(model.decoder, "memory", None) is None:
        return {"tokens": tokens, "logits": model(tokens)[0]}
    tokens = torch.randint(4, 24, (3, 3 * SEGMENT), generator=rows)
    starts, parts = torch.tensor([100, 300, 500]), tokens.split(SEGMENT, dim=1)
    logits = [model(part, starts=starts + n * SEGMENT)[0] for n, part in enumerate(parts)]
    return {"tokens": tokens, "logits": torch.cat(logits, dim=1)}


def forecast(model: nn.Module, rows: torch.Generator) -> dict[str, torch.Tensor]:
    """The windows of two batches, the second after the first, and the forecasts."""
    found: dict[str, torch.Tensor] = {}
    for batch in range(2):
        sizes = {"values": (3, 12, 2), "times": (3, 12, 4), "later": (3, 4, 4)}
        inputs = {name: torch.randn(size, generator=rows) for name, size in sizes.items()}
        torch.manual_seed(5)  # of sampled keys
        out = model(*inputs.values(), torch.tensor([0, 100, 200]) + 6 * batch)
        found |= {f"{name} {batch}": x for name, x in {**inputs, "logits": out}.items()}
    logits = torch.cat([found.pop(f"logits {batch}") for batch in range(2)], dim=1)
    return {**found, "logits": logits}


def flags_of(name: str) -> list[Any]:
    """What a model is trained with: its data, its preset, its sizes."""
    system = SYSTEMS.get(name)
    if system is None and name not in LANGUAGE_MODELS:
        return ["bin", "-s", "src", "-t", "tgt", "--arch", name, *SMALL, *TRAIN]
    if system is not None and system.arch in STRUCTURES:
        return ["bin", "-s", "src", "-t", "tgt", "--arch", system.arch, *system.flags, *TRAIN]
    if system is not None and "_lm" not in name:
        task = ["--task", "time_series_forecasting", "--series-file", FOLDER / "series.csv"]
        model = ["--arch", system.arch, *system.flags]
        return [*task, *SPLIT, *WINDOWS, *TRAIN_ON_SERIES, "--batch-size", "8", *model]
    flags = [*TRAIN]
    flags[flags.index("label_smoothed_cross_entropy")] = "cross_entropy"
    at = flags.index("--label-smoothing")
    del flags[at : at + 2]
    if system is not None:
        stream = ["--task", "language_modeling_with_memory", "--batch-size", "4"]
        at = flags.index("--max-tokens")
        del flags[at : at + 2]
        return ["text", "--arch", system.arch, *flags, *stream, *system.flags]
    flags += ["--task", "language_modeling", "--sample-break-mode", "eos"]
    flags += ["--share-decoder-input-output-embed", "--tokens-per-sample", "32"]
    return ["text", "--arch", name, *SMALL_LM, *flags]


def train(name: str) -> None:
    """Train a model for three updates in the current folder, so that its paths are relative."""
    run_command(
        "train", *flags_of(name), "--max-update", 3, "--no-epoch-checkpoints",
        "--no-save-optimizer-state", "--disable-validation", "--save-dir", name,
    )  # fmt: skip
    checkpoint, path = Path(name, "checkpoint_last.pt").read_bytes(), files(name)["checkpoint"]
    path.write_bytes(lzma.compress(checkpoint) if path.suffix == ".xz" else checkpoint)


def main() -> None:
    """Create the missing files."""
    missing = [name for name in NAMES if not all(f.exists() for f in files(name).values())]
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for number, split in enumerate(("train", "valid")):
            write_corpus(Path(), split, 60, lambda words: words[::-1], number)
        sets = ["--trainpref", "train", "--validpref", "valid"]
        run_command(
            "preprocess", "-s", "src", "-t", "tgt", "--joined-dictionary", *sets, "--destdir", "bin"
        )
        texts = ["--trainpref", "train.src", "--validpref", "valid.src"]
        run_command("preprocess", "--only-source", *texts, "--destdir", "text")
        for name in DICTIONARIES:
            source = Path("text" if name == "dict.txt" else "bin", name)
            (FOLDER / name).write_bytes(source.read_bytes())
        if not (FOLDER / "series.csv").exists():
            write_series(FOLDER / "series.csv", 100)
        for name in missing:
            torch.manual_seed(1)
            train(name)
            torch.save(compute(load(name)), files(name)["expected"])
            print(f"{name}: {files(name)['checkpoint'].stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
