"""Learn byte-pair encoding (BPE) from texts and summaries together, and encode the corpus.

    python bpe.py DATA WORK SIZE

Reads `DATA/{train,valid,test}.{source,target}`; writes `WORK/bpe.model` and `WORK/pieces/` with
the same files in pieces.
"""

import runpy
import sys
from pathlib import Path

import sentencepiece

QUICKSTART = Path(__file__).resolve().parents[1] / "quickstart" / "bpe.py"
encode = runpy.run_path(str(QUICKSTART))["encode"]
"""The quick start's: write a file's lines in pieces and say how many there are."""


def main(data: Path, work: Path, size: int) -> None:
    """Learn, then encode every file of the corpus."""
    (work / "pieces").mkdir(parents=True, exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        input=[str(data / "train.source"), str(data / "train.target")],
        model_prefix=str(work / "bpe"),
        model_type="bpe",
        vocab_size=size,
        character_coverage=0.9999,
        minloglevel=1,
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(work / "bpe.model"))
    for name in ("train", "valid", "test"):
        for side in ("source", "target"):
            encode(processor, data / f"{name}.{side}", work / "pieces" / f"{name}.{side}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
