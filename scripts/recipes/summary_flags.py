"""The flags of fairseq-train and fairseq-generate in the summarization recipes."""

import json
from pathlib import Path
from typing import Any

from recipes.subwords import load_pieces
from recipes.summary_options import AUTO, POSITIONS, Choices, DataSet, start_file
from recipes.summary_texts import COUNTS

PREFIX = "summarize: "
EPOCHS = 25
"""Number of epochs in the SRformer paper."""

STOCK_BART = (
    "--layernorm-embedding", "--share-all-embeddings", "--share-decoder-input-output-embed",
    "--find-unused-parameters",
)  # fmt: skip
# scripts/launch chooses the implementation of Adam; all of them decouple weight decay.
PARAMETERS: dict[str, list[str]] = {
    # The SRformer paper and its published code: AdamW as Hugging Face's defaults have it, linear
    # decay, no warm-up, no clipping, no label smoothing. The code leaves the dropouts as they are
    # in the published models of BART and T5.
    "paper": (
        "--adam-betas (0.9,0.999) --adam-eps 1e-8 --weight-decay 0 --lr 5e-5"
        " --lr-scheduler polynomial_decay --warmup-updates 0 --clip-norm 0"
        " --criterion cross_entropy --dropout 0.1 --attention-dropout 0.1 --activation-dropout 0.1"
        " --required-batch-size-multiple 1"
    ).split(),
    # fairseq's README for BART on CNN/DailyMail and XSum.
    "fairseq": (
        "--adam-betas (0.9,0.999) --adam-eps 1e-8 --weight-decay 0.01 --lr 3e-5"
        " --lr-scheduler polynomial_decay --warmup-updates 500 --clip-norm 0.1"
        " --criterion label_smoothed_cross_entropy --label-smoothing 0.1"
        " --dropout 0.1 --attention-dropout 0.1 --required-batch-size-multiple 1"
    ).split(),
    # As Transformers are usually trained without a pretrained model.
    "scratch": (
        "--adam-betas (0.9,0.98) --lr 5e-4"
        " --lr-scheduler inverse_sqrt --warmup-updates 4000 --max-update 100000"
        " --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --dropout 0.1"
    ).split(),
}


def documents_per_batch(choices: Choices) -> int:
    """Return the paper's batch size: 16 documents for T5, 8 for BART."""
    return 16 if choices.pieces == "t5" else 8


def batch(data: DataSet, choices: Choices) -> tuple[str, int]:
    """Return the unit and the size of the batch of all GPUs: documents (paper) or tokens."""
    if choices.settings == "paper":
        return "documents", documents_per_batch(choices)
    return "tokens", int(data.training["batch_tokens"])


def updates(data: DataSet, choices: Choices, texts: Path) -> int:
    """Return the length of the schedule: fairseq's, or the paper's epochs over this training set.

    Args:
        data: the data set
        choices: the settings
        texts: folder of the prepared texts and their counts; before they are prepared, the
            published number of documents counts
    """
    if choices.settings == "fairseq":
        return int(data.training["updates"])
    lines = data.documents["train"]
    if (texts / COUNTS).is_file():
        lines = json.loads((texts / COUNTS).read_text())["train"]["lines"]
    return EPOCHS * -(-lines // documents_per_batch(choices))


def reading(choices: Choices) -> list[str]:
    """Return the flags of the task and of the lengths of texts."""
    learned = "bart" in choices.arch  # positions, of which the pretrained models have 1024
    source = max(choices.max_source, POSITIONS if learned else 0)
    target = max(POSITIONS, choices.max_target)
    return [
        "--task", "summarization", "-s", "source", "-t", "target",
        "--truncate-source", "--max-source-positions", str(source),
        "--truncate-target", "--max-target-positions", str(target),
    ]  # fmt: skip


def runs(choices: Choices, work: Path) -> Path:
    """Return the folder of all trainings on the same data."""
    return work / choices.folder / "runs"


def training(data: DataSet, choices: Choices, work: Path, folder: Path, prefix: str) -> list[str]:
    """Return the flags of fairseq-train, without the batch size and those of the machine.

    Args:
        data: the data set
        choices: the settings
        work: folder of the recipe
        folder: folder of the training
        prefix: text before every source; "auto" is "summarize: " for T5 and in the paper's settings
    """
    settings = choices.settings
    words = ["--arch", choices.arch, *reading(choices), *PARAMETERS[settings]]
    if settings != "scratch":
        total = str(updates(data, choices, work / "text"))
        words += ["--total-num-update", total, "--max-update", total]
    if choices.start != "none":
        words += ["--finetune-from-model", str(start_file(choices, work))]
    if choices.arch in ("bart_base", "bart_large"):
        words += STOCK_BART
    elif choices.pieces == "sentencepiece":
        words += ["--share-all-embeddings"]
    if choices.arch.startswith("srformer"):
        words += segments(data, choices)
    if prefix == AUTO:
        prefix = PREFIX if choices.pieces == "t5" or settings == "paper" else ""
    if prefix:
        model = work / choices.folder / "model"
        if model.is_dir():
            prefix = " ".join(load_pieces(choices.pieces, model).encode(prefix))
        words += ["--source-prefix", prefix]  # its text before the data is prepared
    return [
        *words, "--seed", str(choices.seed), "--save-dir", str(folder),
        "--keep-last-epochs", str(max(1, choices.average)),
    ]  # fmt: skip


def segments(data: DataSet, choices: Choices) -> list[str]:
    """Return the flags of SRformer: with the paper's settings its segment size and lengths.

    In decoding, where the reference's length is unknown, both have the usual length.
    """
    words = ["--target-length", str(data.target_length)]
    if choices.settings != "paper":
        return [*words, "--segment-size", str(data.segment_size)]
    clamp = ["--srformer-clamp", "2"] if "bart" in choices.arch else []
    return [*words, "--target-length-mode", "reference", *clamp]


def generation(data: DataSet, choices: Choices) -> list[str]:
    """Return the flags of fairseq-generate: the data set's usual ones, or the SRformer paper's.

    The paper decodes greedily, at most 128 subwords.
    """
    paper = {"beam": 1, "max-len-b": 128}
    chosen: dict[str, Any] = paper if choices.generation == "paper" else data.generation
    words = [word for flag, value in chosen.items() for word in (f"--{flag}", str(value))]
    return ["--task", "summarization", "-s", "source", "-t", "target", *words]
