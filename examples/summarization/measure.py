"""Measure the cost of systems: training step, decoding, peak memory and parameters.

    python measure.py NAME=CHECKPOINT [NAME=CHECKPOINT ...] [--repeats N] --output FILE

Memory is measured with each system in a separate process. Time is measured with all systems in one
process, in turns, and the order rotates from repeat to repeat. A training step is one call of
fairseq's trainer: forward, backward, update. All systems get the same batches. In decoding, all
summaries have the same length, so all systems take the same number of steps.
"""

import argparse
import json
import logging
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.trainer import Trainer

import fairseq_recur  # noqa: F401  (registers the models and the task)

BATCHES = 12
BEAM = 4
PIECES = 16


class System:
    """A trained model with what it needs to continue training and to summarize.

    Args:
        checkpoint: a file that fairseq-train wrote
    """

    def __init__(self, checkpoint: str) -> None:
        models, self.cfg, self.task = checkpoint_utils.load_model_ensemble_and_task(
            [checkpoint], arg_overrides={"eval_rouge": False}
        )
        self.model = models[0]
        criterion = self.task.build_criterion(self.cfg.criterion)
        self.trainer = Trainer(self.cfg, self.task, self.model, criterion)
        self.batches = self._batches("train", self.cfg.dataset.max_tokens)[:BATCHES]

    def _batches(self, split: str, tokens: int) -> list[dict[str, Any]]:
        self.task.load_dataset(split)
        iterator = self.task.get_batch_iterator(
            self.task.dataset(split),
            max_tokens=tokens,
            required_batch_size_multiple=self.cfg.dataset.required_batch_size_multiple,
            seed=1,
        )
        return list(iterator.next_epoch_itr(shuffle=True))

    def train(self) -> None:
        """Do one training step per batch."""
        for batch in self.batches:
            self.trainer.train_step([batch])

    def prepare_decoding(self) -> None:
        """Build what `decode` needs, and switch the model to inference."""
        self.texts = self._batches("test", self.cfg.dataset.max_tokens_valid)
        self.cfg.generation.beam = BEAM
        # These lengths do not include the end-of-sentence token.
        self.cfg.generation.min_len = self.cfg.generation.max_len_b = PIECES - 1
        self.model.prepare_for_inference_(self.cfg)
        self.generator = self.task.build_generator([self.model], self.cfg.generation)
        self.model.eval()

    @torch.no_grad()
    def decode(self) -> None:
        """Summarize the test set, with the same number of steps for every batch."""
        for batch in self.texts:
            found = self.task.inference_step(self.generator, [self.model], batch)
            assert all(len(beams[0]["tokens"]) == PIECES for beams in found)


def turns(repeats: int, names: list[str]) -> Iterator[str]:
    """Yield every name once per repeat; each repeat starts with a different name."""
    for repeat in range(repeats):
        shift = repeat % len(names)
        yield from names[shift:] + names[:shift]


def seconds(run: Callable[[], None]) -> float:
    """Time one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def speed(checkpoints: dict[str, str], repeats: int) -> dict[str, dict[str, Any]]:
    """Measure milliseconds per training step and texts per second in decoding.

    Args:
        checkpoints: file of each system, by name
        repeats: measurements of each, after one warm-up
    """
    systems = {name: System(file) for name, file in checkpoints.items()}
    found: dict[str, dict[str, Any]] = {
        name: {
            "parameters": sum(p.numel() for p in system.model.parameters()),
            "step_ms": [],
            "texts_per_second": [],
        }
        for name, system in systems.items()
    }
    for system in systems.values():
        system.train()
    for name in turns(repeats, list(systems)):
        found[name]["step_ms"].append(seconds(systems[name].train) / BATCHES * 1e3)
    for system in systems.values():
        system.prepare_decoding()
        system.decode()
    texts = {name: sum(b["nsentences"] for b in s.texts) for name, s in systems.items()}
    for name in turns(repeats, list(systems)):
        found[name]["texts_per_second"].append(texts[name] / seconds(systems[name].decode))
    return found


def peak() -> float:
    """Return the peak resident memory of this process, in MB (10^6 bytes)."""
    # ru_maxrss is in KiB on Linux, in bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def memory_here(checkpoint: str) -> dict[str, float]:
    """Train in this process; return its peak memory in MB before and after training."""
    system = System(checkpoint)
    before = peak()
    system.train()
    return {"before_mb": before, "peak_mb": peak()}


def memory(checkpoint: str) -> dict[str, float]:
    """Return the same, measured in a new process."""
    command = [sys.executable, __file__, "--memory-here", f"system={checkpoint}"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


def main() -> None:
    """Measure all systems and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoints", nargs="+", metavar="NAME=CHECKPOINT")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--memory-here", action="store_true", help="only the memory of one system")
    args = parser.parse_args()
    logging.disable(logging.INFO)
    checkpoints = dict(item.split("=", 1) for item in args.checkpoints)
    if args.memory_here:
        print(json.dumps(memory_here(*checkpoints.values())))
        return
    found = {name: memory(file) for name, file in checkpoints.items()}
    for name, row in speed(checkpoints, args.repeats).items():
        found[name].update(row)
    args.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
