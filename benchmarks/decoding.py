"""Decoding beside fairseq's own Transformer: sentences a second, and how good they are.

    python benchmarks/decoding.py --data DATA --checkpoints NAME=FILE [NAME=FILE ...]
    python benchmarks/decoding.py --text LENGTH --arch NAME [NAME ...] --length PIECES

As fairseq-generate does it, batch for batch, but all systems in one process and in turns; loading and
preparing are not timed. The first form decodes the test set with trained checkpoints and scores
it in the same row. The second is for speed at a length of the source alone: models with random
weights, whose outputs are all equally long. The first system is what the others are compared with.
"""

import argparse
import logging
import statistics
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq import checkpoint_utils
from fairseq.utils import move_to_cuda
from measuring import add_device, in_turns, middle, ratios, record, refuse_unused, rounded
from systems import System, add_models, batches_of, prepare
from torch import nn

import fairseq_recur  # noqa: F401  (registers the models)
from fairseq_recur.scoring.metrics import build_metric

Hypotheses = list[list[dict[str, Any]]]


class Decoder(NamedTuple):
    """A model, and what fairseq-generate needs beside it."""

    name: str
    model: nn.Module
    task: Any
    cfg: Any

    def generator(self, beam: int, shortest: int, longest: int) -> Any:
        """Fairseq's search, for outputs of *shortest* to *longest* pieces."""
        generation = self.cfg.generation
        generation.beam, generation.min_len, generation.max_len_b = beam, shortest, longest
        self.model.prepare_for_inference_(self.cfg)
        return self.task.build_generator([self.model], generation)

    @torch.no_grad()
    def decode(self, generator: Any, batches: list[dict[str, Any]]) -> Hypotheses:
        """The hypotheses of every sentence, the best first, batch by batch."""
        return [
            beams
            for batch in batches
            for beams in self.task.inference_step(generator, [self.model], batch)
        ]


def decoders(args: argparse.Namespace, folder: Path) -> Iterator[Decoder]:
    """Those that are asked for, from checkpoints or with random weights."""
    for word in args.checkpoints or ():
        name, file = word.split("=", 1)
        models, cfg, task = checkpoint_utils.load_model_ensemble_and_task(
            [file], arg_overrides={"data": str(args.data)}
        )
        yield Decoder(name, models[0].to(args.device).eval(), task, cfg)
    if not args.checkpoints:
        data = prepare(args.text, args.pieces, args.vocabulary, folder)
        for name in args.arch:
            system = System(name, data, args.flags.split(), args.device)
            yield Decoder(name, system.model.to(args.device).eval(), system.task, system.cfg)


def score(
    decoder: Decoder, batches: list[dict[str, Any]], found: Hypotheses, metric: str, bpe: str
) -> float:
    """BLEU (of the data's own tokens) or ROUGE of the best hypotheses, without BPE."""
    words = decoder.task.target_dictionary
    ids = [row for batch in batches for row in batch["target"]]
    ignored = {words.pad()}
    references = [words.string(row, bpe, extra_symbols_to_ignore=ignored) for row in ids]
    outputs = [words.string(beams[0]["tokens"], bpe) for beams in found]
    measured = build_metric(metric, tokenize="none") if metric == "bleu" else build_metric(metric)
    return measured.corpus_score(outputs, [references]).score


def measure(args: argparse.Namespace, systems: list[Decoder], beam: int) -> list[dict[str, Any]]:
    """All systems in turns, with one size of beam."""
    first = systems[0]
    batches = batches_of(first.task, first.cfg, "test", args.max_tokens, args.batches)
    if args.device == "cuda":
        batches = [move_to_cuda(batch) for batch in batches]
    lengths = (1, args.max_len_b) if args.checkpoints else (args.length, args.length)
    generators = {s.name: s.generator(beam, *lengths) for s in systems}
    found: dict[str, Hypotheses] = {}

    def decode(system: Decoder) -> None:
        found[system.name] = system.decode(generators[system.name], batches)

    times = in_turns({s.name: partial(decode, s) for s in systems}, args.rounds, args.device)
    rows = []
    for system in systems:
        sentences = len(found[system.name])
        pieces = [len(beams[0]["tokens"]) for beams in found[system.name]]
        row = {
            "system": system.name,
            "beam": beam,
            "source": round(
                sum(b["net_input"]["src_lengths"].sum().item() for b in batches) / sentences, 1
            ),
            "output": round(statistics.mean(pieces), 1),
            "sentences_per_second": rounded([sentences / t for t in times[system.name]]),
            "of_first": rounded(ratios(times[first.name], times[system.name])),
        }
        if args.checkpoints:
            row[args.metric] = round(
                score(system, batches, found[system.name], args.metric, args.bpe), 2
            )
        rows.append(row)
        quality = f"{args.metric} {row[args.metric]}" if args.checkpoints else ""
        print(
            f"{system.name:28} beam {beam}{middle(row['sentences_per_second'], 2):>28} sentences/s"
            f"{middle(row['of_first'], 3):>24} of {first.name}, {row['output']} pieces {quality}",
            flush=True,
        )
    return rows


def main() -> None:
    """Load or build, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_device(parser)
    add_models(parser, ["transformer", "srformer"])
    parser.add_argument("--data", type=Path, help="binary data, of --checkpoints")
    parser.add_argument("--checkpoints", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--metric", default="bleu", choices=["bleu", "rougeL"])
    parser.add_argument(
        "--bpe", default="subword_nmt", help="of --data, as fairseq's --post-process"
    )
    parser.add_argument("--max-len-b", type=int, default=200, help="as fairseq-generate's")
    parser.add_argument("--text", default="sentences", help="sentences, or pieces of a source")
    parser.add_argument("--length", type=int, default=64, help="pieces of an output")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--max-tokens", type=int, default=4000, help="of a batch")
    parser.add_argument("--batches", type=int, help="how many of the test set; otherwise all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    if bool(args.checkpoints) != bool(args.data):
        parser.error("--data and --checkpoints go together: expected both, or neither and --text")
    if args.checkpoints:
        built = ("arch", "text", "length", "flags", "vocabulary", "pieces")
        refuse_unused(parser, args, built, "with --checkpoints, which are decoded as they are")
    else:
        scored = ("metric", "bpe", "max-len-b")
        refuse_unused(parser, args, scored, "without --checkpoints, which alone end by themselves")
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        systems = list(decoders(args, Path(folder)))
        rows = [row for beam in args.beams for row in measure(args, systems, beam)]
    if args.output:
        record(args.output, rows)


if __name__ == "__main__":
    main()
