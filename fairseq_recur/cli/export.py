"""Export a trained encoder-decoder to Hugging Face's library.

The folder has config.json, model.safetensors, the code that wraps the model, the dictionaries, and
the files of the subwords. AutoModelForSeq2SeqLM.from_pretrained(FOLDER, trust_remote_code=True)
loads it where this package is installed.
"""

import argparse

import fairseq_recur
from fairseq_recur.cli.new_folder import new_folder, whole_or_nothing
from fairseq_recur.cli.translate import add_text_arguments, text_options
from fairseq_recur.pretrained.huggingface import export


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `export`."""
    parser.add_argument(
        "--input", required=True, metavar="PATH", help="folder of a training, or one checkpoint"
    )
    parser.add_argument(
        "--output", required=True, metavar="FOLDER", help="folder to write; must not exist yet"
    )
    add_text_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Export the model."""
    target = new_folder(args.output)
    model = fairseq_recur.from_pretrained(args.input, device="cpu", **text_options(args))
    with whole_or_nothing(target) as folder:
        names = export(model, folder)
    print(f"{target}: a model for AutoModelForSeq2SeqLM, with its code")
    print(f"  text: {', '.join(names)}")
    prefix = getattr(model.task, "prefix", None)
    if prefix:
        print(f"  put in front of each source: {' '.join(prefix)}")
    return 0
