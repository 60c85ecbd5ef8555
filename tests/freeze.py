"""Create the frozen checkpoints that are missing: python -m tests.freeze

Each is a small model of one structure, trained for a few updates, together with its logits for
some sentences. They are created once: later versions must load them and compute the same logits.
"""

import os
import tempfile
from pathlib import Path

import torch
from fairseq import checkpoint_utils
from fairseq.models import FairseqEncoderDecoderModel

from tests.conftest import LANGUAGE_MODELS, SMALL, STRUCTURES, TRAIN, write_corpus
from tests.running import run_command
from tests.unit.test_language_model import SMALL_LM

FOLDER = Path(__file__).resolve().with_name("frozen")
DICTIONARIES = ("dict.src.txt", "dict.tgt.txt", "dict.txt")
NAMES: list[str] = [*STRUCTURES, *LANGUAGE_MODELS]


def files(name: str) -> dict[str, Path]:
    """The paths of a preset's checkpoint and of the logits that it computed when it was created."""
    return {"checkpoint": FOLDER / f"{name}.pt", "expected": FOLDER / f"{name}.expected.pt"}


@torch.no_grad()
def compute(name: str) -> dict[str, torch.Tensor]:
    """Load a preset's checkpoint as the commands do, and compute its logits.

    Returns:
        the input tokens and the logits
    """
    (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(files(name)["checkpoint"])], arg_overrides={"data": str(FOLDER)}
    )
    model.eval()
    rows = torch.Generator().manual_seed(3)
    tokens = torch.randint(4, 24, (3, 9), generator=rows)
    tokens[:, -1] = 2
    if not isinstance(model, FairseqEncoderDecoderModel):
        return {"tokens": tokens, "logits": model(tokens)[0]}
    tokens[1, :4] = 1  # shorter, padded on the left as fairseq does
    previous = torch.randint(4, 24, (3, 6), generator=rows)
    previous[:, 0] = 2
    logits = model(tokens, tokens.ne(1).sum(1), previous)[0]
    return {"tokens": tokens, "previous": previous, "logits": logits}


def train(name: str) -> None:
    """Train a preset for three updates in the current folder, so that its paths are relative."""
    flags = [*SMALL, *TRAIN]
    data = ["bin", "-s", "src", "-t", "tgt"]
    if name in LANGUAGE_MODELS:
        data = ["text"]
        flags = [*SMALL_LM, *TRAIN, "--task", "language_modeling", "--sample-break-mode", "eos"]
        flags[flags.index("label_smoothed_cross_entropy")] = "cross_entropy"
        at = flags.index("--label-smoothing")
        flags[at : at + 2] = ["--share-decoder-input-output-embed", "--tokens-per-sample", "32"]
    run_command(
        "train", *data, "--arch", name, *flags, "--max-update", 3, "--no-epoch-checkpoints",
        "--no-save-optimizer-state", "--disable-validation", "--save-dir", name,
    )  # fmt: skip
    files(name)["checkpoint"].write_bytes(Path(name, "checkpoint_last.pt").read_bytes())


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
        for name in missing:
            torch.manual_seed(1)
            train(name)
            torch.save(compute(name), files(name)["expected"])
            print(f"{name}: {files(name)['checkpoint'].stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
