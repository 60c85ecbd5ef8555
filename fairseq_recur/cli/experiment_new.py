"""``experiment new``: write the YAML file of an experiment on one's own data."""

import argparse
from pathlib import Path
from typing import Any

import yaml
from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_recur.cli import suggestion
from fairseq_recur.errors import refuse
from fairseq_recur.files import write_text

ADAM = {
    "adam-betas": "(0.9, 0.98)",
    "lr-scheduler": "inverse_sqrt",
    "criterion": "label_smoothed_cross_entropy",
    "label-smoothing": 0.1,
}
SIZES: dict[str, dict[str, Any]] = {
    # The quick start's, for two cores and some ten thousand pairs.
    "tiny": {
        **ADAM, "optimizer": "adamw_fused", "lr": 0.003, "warmup-updates": 300, "dropout": 0.0,
        "clip-norm": 1.0, "max-tokens": 1000, "max-tokens-valid": 4000, "max-epoch": 4,
        "num-workers": 0, "cpu": True, "log-interval": 25,
    },
    # fairseq's for IWSLT14, for one GPU and some hundred thousand pairs.
    "iwslt_de_en": {
        **ADAM, "optimizer": "adam", "lr": 0.0005, "warmup-updates": 4000, "dropout": 0.3,
        "weight-decay": 0.0001, "max-tokens": 4096, "max-update": 50000,
    },
}  # fmt: skip
# A sentence has fewer pieces than the default segment, and a single segment is full attention.
SENTENCES: dict[str, dict[str, Any]] = {
    "srformer": {"segment-size": 8, "target-length-mode": "ratio"}
}
# The presets have the paper's threshold, which is for trained weights.
FROM_SCRATCH: dict[str, dict[str, Any]] = {"srformer": {"srformer-threshold-init": 10}}
# A trained Transformer has no matrices yet: their gate begins nearly closed.
FROM_TRAINED: dict[str, dict[str, Any]] = {"rsa_transformer": {"rsa-gate-init": -3}}
NOTE = """\
# Run it: fairseq-recur experiment run {file} --work-dir work
{control}# docs/experiments.md explains every key.
"""
CONTROL = """\
# "control" is the baseline, continued for as many updates as the systems that start from it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `experiment new`."""
    add = parser.add_argument
    add("file", metavar="FILE.yaml", help="the file to write")
    add("--data", required=True, metavar="DATA", help="the --destdir of fairseq-recur preprocess")
    add("--source-lang", "-s", required=True, metavar="SRC", help="language of the source")
    add("--target-lang", "-t", required=True, metavar="TGT", help="language of the target")
    add("--reference", required=True, metavar="FILE", help="the test set's references, as text")
    add("--sentencepiece-model", metavar="FILE", help="that of the subwords, to decode them")
    add(
        "--system", nargs="+", default=["transformer_biarn"], metavar="NAME",
        help="systems to compare with the Transformer, without the suffix of a size",
    )  # fmt: skip
    add(
        "--from-scratch", action="store_true",
        help="train the systems from random weights, as long as the Transformer. By default they "
        "start from the trained Transformer, as does the continued baseline, the row control",
    )  # fmt: skip
    add("--size", choices=SIZES, default="tiny", help="size of the models, and their settings")


def run(args: argparse.Namespace) -> int:
    """Write the file.

    Raises:
        ConfigError: the file exists, an input does not, or a system has no such size
    """
    if Path(args.data).is_dir():
        problems = [
            f"no file {path}; check -s and -t, and give the --destdir of preprocess as --data"
            for path in dictionaries(args)
            if not path.is_file()
        ]
    else:
        problems = [f"no folder {args.data}; give one that exists"]
    problems += [
        f"no file {path}; give one that exists"
        for path in (args.reference, args.sentencepiece_model)
        if path and not Path(path).is_file()
    ]
    for name in args.system:
        arch = f"{name}_{args.size}"
        if name in ("transformer", "control"):
            problems.append(f"--system {name} is always in the table; leave it out")
        elif arch not in ARCH_MODEL_REGISTRY:
            hint = suggestion(arch, ARCH_MODEL_REGISTRY) or "; see `fairseq-recur train --list`"
            problems.append(f"--system {name}: there is no architecture {arch}{hint}")
    output = Path(args.file)
    if output.exists():
        problems.append(f"{output} exists already; name another file, or remove it")
    refuse("experiment new", problems)
    note = NOTE.format(file=args.file, control="" if args.from_scratch else CONTROL)
    text = yaml.safe_dump(content(args), sort_keys=False, allow_unicode=True, width=100)
    write_text(output, note + text)
    print(output)
    return 0


def dictionaries(args: argparse.Namespace) -> list[Path]:
    """Return the paths of the dictionaries of source and target."""
    languages = (args.source_lang, args.target_lang)
    return [Path(args.data, f"dict.{language}.txt") for language in languages]


def content(args: argparse.Namespace) -> dict[str, Any]:
    """Return the experiment, with absolute paths."""
    stock: dict[str, Any] = {"arch": f"transformer_{args.size}"}
    if args.size == "tiny":  # that of fairseq has another size
        stock = {"arch": "transformer_biarn_tiny", "recurrence": "none"}
    generate: dict[str, Any] = {"beam": 5, "max-tokens": 4000, "cpu": args.size == "tiny"}
    if args.sentencepiece_model:
        model = str(Path(args.sentencepiece_model).absolute())
        generate |= {"bpe": "sentencepiece", "sentencepiece-model": model}
    tokenizers = {"zh": "zh", "ja": "char", "ko": "char"}
    start = {} if args.from_scratch else {"start_from": "transformer"}
    systems: dict[str, Any] = {"transformer": {"flags": stock}}
    if start:
        systems["control"] = {"flags": stock.copy(), **start}
    for name in args.system:
        begin = (FROM_SCRATCH if args.from_scratch else FROM_TRAINED).get(name, {})
        flags = {"arch": f"{name}_{args.size}", **SENTENCES.get(name, {}), **begin}
        systems[name] = {"flags": flags, **start}
    source, target = dictionaries(args)
    joined = source.read_bytes() == target.read_bytes()
    shared = {"share-all-embeddings": True} if joined else {}
    return {
        "title": f"{', '.join(dict.fromkeys(args.system))} and the Transformer",
        "data": str(Path(args.data).absolute()),
        "source": args.source_lang,
        "target": args.target_lang,
        "seeds": [1],
        "baseline": "control" if start else "transformer",
        "systems": systems,
        "train": {**SIZES[args.size], **shared},
        "checkpoint": 3 if args.size == "tiny" else 5,
        "generate": generate,
        "score": {
            "reference": str(Path(args.reference).absolute()),
            "metrics": ["bleu", "chrf"],
            "tokenize": tokenizers.get(args.target_lang, "13a"),
        },
    }
