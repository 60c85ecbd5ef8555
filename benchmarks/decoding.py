"""Decoding speed in sentences per second, with quality, relative to fairseq's Transformer.

    python benchmarks/decoding.py --data DATA --checkpoints NAME=FILE [NAME=FILE ...]
    python benchmarks/decoding.py --text LENGTH --arch NAME [NAME ...] --length PIECES

Decodes as fairseq-generate does, batch by batch, but with all systems in one process and in turns.
Loading and preparation are not timed. The first form decodes the test set with trained checkpoints
and reports the score in the same row. The second form measures only speed at a source length: its
models have random weights, and all outputs have the same length. Speeds are compared with the first
system.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from command_lines import command_line, refuse_unused
from fairseq import checkpoint_utils
from fairseq.utils import move_to_cuda
from gpu_usage import usage
from measuring import Times, peak_mib, ratios, rounded
from reports import Report
from systems import FLAGS, System, add_models, add_text, batches_of, flags_of, left_out, prepared
from tables import Row
from torch import nn

import fairseq_recur  # noqa: F401  (registers the models)
from fairseq_recur.scoring.metrics import build_metric

# The memory is measured in a search of so many steps, because a profile of hundreds would fill it.
# Only the keys and values of self-attention grow later, by a position in each step.
STEPS = 4
Hypotheses = list[list[dict[str, Any]]]


class Decoder(NamedTuple):
    """A model, and what fairseq-generate needs to run it."""

    name: str
    model: nn.Module
    task: Any
    cfg: Any

    def generator(self, beam: int, shortest: int, longest: int) -> Any:
        """Build fairseq's beam search for outputs of *shortest* to *longest* pieces."""
        generation = self.cfg.generation
        generation.beam, generation.min_len, generation.max_len_b = beam, shortest, longest
        self.model.prepare_for_inference_(self.cfg)
        return self.task.build_generator([self.model], generation)

    @torch.no_grad()
    def decode(self, generator: Any, batches: list[dict[str, Any]]) -> Hypotheses:
        """Return the hypotheses of every sentence, the best first, batch by batch."""
        return [
            beams
            for batch in batches
            for beams in self.task.inference_step(generator, [self.model], batch)
        ]


def decoders(args: argparse.Namespace, data: Path, report: Report) -> Iterator[Decoder]:
    """Load the checkpoints, or build models with random weights; a row has those that fail."""
    for name, file in args.checkpoints or ():
        models, cfg, task = checkpoint_utils.load_model_ensemble_and_task(
            [file], arg_overrides={"data": str(data)}
        )
        yield Decoder(name, models[0].to(args.device).eval(), task, cfg)
    for name in () if args.checkpoints else args.arch:
        with report.attempt(system=name):
            system = System(name, [str(data), *FLAGS, *flags_of(args)], args.device)
            yield Decoder(name, system.model.to(args.device).eval(), system.task, system.cfg)


def score(
    decoder: Decoder, batches: list[dict[str, Any]], found: Hypotheses, metric: str, bpe: str
) -> float:
    """Score the best hypotheses, without BPE: BLEU (tokenised as in the data) or ROUGE."""
    words = decoder.task.target_dictionary
    ids = [row for batch in batches for row in batch["target"]]
    ignored = {words.pad()}
    # As fairseq-generate has them: an unknown word of the reference is not what a model writes.
    references = [
        words.string(row, bpe, escape_unk=True, extra_symbols_to_ignore=ignored) for row in ids
    ]
    outputs = [words.string(beams[0]["tokens"], bpe) for beams in found]
    measured = build_metric(metric, tokenize="none") if metric == "bleu" else build_metric(metric)
    return measured.corpus_score(outputs, [references]).score


def measure(args: argparse.Namespace, systems: list[Decoder], beam: int, report: Report) -> None:
    """Measure all systems in turns, with one beam size."""
    first = systems[0]
    batches = batches_of(first.task, first.cfg, "test", args.max_tokens, args.batches)
    if args.device == "cuda":
        batches = [move_to_cuda(batch) for batch in batches]
    ignored = left_out(first.task, first.cfg, "test")
    if ignored:
        print(f"{ignored} lines of test do not fit the model and are left out", file=sys.stderr)
    lengths = (1, args.max_len_b) if args.checkpoints else (args.length, args.length)
    generators = {s.name: s.generator(beam, *lengths) for s in systems}
    found: dict[str, Hypotheses] = {}

    def decode(system: Decoder) -> None:
        found[system.name] = system.decode(generators[system.name], batches)

    by_name = {system.name: system for system in systems}
    tokens = sum(b["net_input"]["src_lengths"].sum().item() for b in batches)

    def row(name: str, times: Times) -> Row:
        outputs = found[name]
        return {
            "source": round(tokens / len(outputs), 1),
            "output": round(statistics.mean(len(beams[0]["tokens"]) for beams in outputs), 1),
            "sentences_per_second": rounded([len(outputs) / t for t in times[name]]),
            "of_first": rounded(ratios(times[next(iter(times))], times[name])),
            **({"left_out": ignored} if ignored else {}),
        }

    def finish(name: str) -> Row:
        if not args.checkpoints:
            system, steps = by_name[name], min(STEPS, args.length)
            generator = system.generator(beam, steps, steps)
            peak = peak_mib(partial(system.decode, generator, batches[:1]), args.device)
            return {"peak_mib": round(peak, 1), **usage(runs[name], args.device)}
        quality = score(by_name[name], batches, found[name], args.metric, args.bpe)
        return {args.metric: round(quality, 2), **usage(runs[name], args.device)}

    runs = {system.name: partial(decode, system) for system in systems}
    report.add_in_turns(runs, args, row, finish, beam=beam)


def named_file(word: str) -> tuple[str, str]:
    """Split NAME=FILE."""
    name, equals, file = word.partition("=")
    if not (name and equals and file):
        raise argparse.ArgumentTypeError(f"{word}: expected NAME=FILE")
    return name, file


def main() -> int:
    """Run the benchmark; return 1 if a system failed."""
    parser = command_line(__doc__, rounds=5)
    add_models(parser, ["transformer", "srformer"], max_tokens=4000)
    add_text(parser)
    parser.add_argument("--data", type=Path, help="binary data for --checkpoints")
    parser.add_argument("--checkpoints", nargs="+", type=named_file, metavar="NAME=FILE")
    parser.add_argument("--metric", default="bleu", choices=["bleu", "rougeL"])
    parser.add_argument(
        "--bpe", default="subword_nmt", help="subwords of --data, as for fairseq's --post-process"
    )
    parser.add_argument("--max-len-b", type=int, default=200, help="as for fairseq-generate")
    parser.add_argument("--length", type=int, default=64, help="output length in pieces")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--batches", type=int, help="batches of the test set (default: all)")
    args = parser.parse_args()
    if bool(args.checkpoints) != bool(args.data):
        parser.error("--data and --checkpoints: expected both, or neither of them and --text")
    if args.checkpoints:
        built = ("arch", "text", "length", "flags", "vocabulary", "pieces", "keep", "precision")
        refuse_unused(parser, args, built, "with --checkpoints, which are decoded as they are")
    else:
        scored = ("metric", "bpe", "max-len-b")
        refuse_unused(parser, args, scored, "without --checkpoints: outputs have a fixed length")
    report = Report(args.output)
    with nullcontext(args.data) if args.checkpoints else prepared(args, args.text) as data:
        systems = list(decoders(args, data, report))
        for beam in args.beams if systems else ():
            measure(args, systems, beam, report)
    return int(report.errors > 0)


if __name__ == "__main__":
    sys.exit(main())
