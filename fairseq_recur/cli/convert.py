"""Convert a T5 or a BART from Hugging Face's format to fairseq's, or back.

Nothing is downloaded, and no code from the files is run. A folder becomes model.pt,
dict.source.txt, dict.target.txt and the files for --bpe; a checkpoint becomes config.json and
model.safetensors, and with --like the tokenizer of the model it came from.
"""

import argparse
from pathlib import Path

from fairseq_recur.cli.convert_to_fairseq import to_fairseq
from fairseq_recur.cli.convert_to_huggingface import to_huggingface
from fairseq_recur.cli.new_folder import new_folder
from fairseq_recur.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `convert`."""
    parser.add_argument(
        "--input",
        required=True,
        metavar="PATH",
        help="folder with config.json, weights and tokenizer, or a checkpoint of fairseq",
    )
    parser.add_argument(
        "--output", required=True, metavar="FOLDER", help="folder to write; must not exist yet"
    )
    parser.add_argument(
        "--like",
        metavar="FOLDER",
        help="with a checkpoint: the folder in Hugging Face's format that it was converted from. "
        "It gives the tokenizer, the order of its words, and settings that fairseq does not have",
    )


def run(args: argparse.Namespace) -> int:
    """Convert in the direction that the input implies."""
    source, target = Path(args.input), new_folder(args.output)
    if source.is_dir():
        if args.like:
            raise ConfigError(
                "--like works with a checkpoint, but --input is a folder; leave out --like"
            )
        to_fairseq(source, target)
    elif source.is_file():
        to_huggingface(source, target, Path(args.like) if args.like else None)
    else:
        raise ConfigError(
            f"--input {source}: no such file or folder; "
            "expected a model's folder in Hugging Face's format, or fairseq's checkpoint"
        )
    return 0
