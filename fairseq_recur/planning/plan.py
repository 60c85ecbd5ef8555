"""Planning: memory and time of a training, from a model, a device and a batch."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from fairseq_recur.errors import ConfigError
from fairseq_recur.planning.building import Built, build, plannable, sample
from fairseq_recur.planning.hardware import Device
from fairseq_recur.planning.memory import Memory, bytes_per_parameter, divided, measure
from fairseq_recur.planning.timing import Assumptions, Seconds, exchange_seconds, step_seconds
from fairseq_recur.planning.tracing import OTHER, PARTS, Trace, trace


class Setup(NamedTuple):
    """The training to plan.

    Attributes:
        arch, flags: of the model
        vocabulary: sizes of the source and the target dictionary
        lengths: mean source and target length, in tokens
        longest: length of the longest sentences of either side, which must fit into memory
        precision: "fp32", "fp16" or "bf16"
        memory_efficient: fairseq's --memory-efficient-fp16 or -bf16
        device, gpus, nodes: the hardware, with gpus per node
        network: bytes per second per node
        batch: tokens per update, of the longer side and with padding
        max_tokens: tokens per step of a process; 0 for the most that fit
        updates: total number
        reserve: share of the memory that is left free
        assumed: efficiencies of the device
    """

    arch: str
    flags: Sequence[str]
    vocabulary: Sequence[int]
    lengths: Sequence[int]
    longest: int
    precision: str
    memory_efficient: bool
    device: Device
    gpus: int
    nodes: int
    network: float
    batch: int
    max_tokens: int
    updates: int
    reserve: float
    assumed: Assumptions


class Plan(NamedTuple):
    """The prediction.

    Attributes:
        parameters: their count
        flops: per part of the model, FLOPs per token of the longer side, forward and backward
        operations: kernels per step
        kept: bytes per token that the forward pass keeps for the backward pass
        memory: of one accelerator
        fits: the largest --max-tokens that fits
        max_tokens, update_freq: the values chosen
        seconds: per update
        mfu: the model's FLOPs divided by those of the accelerators at peak speed in that time
    """

    parameters: int
    flops: dict[str, float]
    operations: int
    kept: float
    memory: Memory
    fits: int
    max_tokens: int
    update_freq: int
    seconds: Seconds
    mfu: float

    @property
    def updates_per_second(self) -> float:
        """Updates per second."""
        return 1 / self.seconds.total


def count_parameters(built: Built) -> int:
    """Count the parameters, shared ones once."""
    return sum(p.numel() for p in built.model.parameters())


def make_plan(setup: Setup) -> Plan:
    """Build the model, trace it with three batches, and compute memory and time.

    Raises:
        ConfigError: the model cannot be planned, or the lengths or the batch are invalid, or do
            not fit
    """
    source, target = setup.vocabulary
    with plannable(setup.arch):
        built = build(setup.arch, setup.flags, source, target, setup.precision)
    if setup.longest > built.positions:
        raise ConfigError(
            f"--longest {setup.longest}: {setup.arch} has {built.positions} positions; decrease "
            "it, or give --max-source-positions and --max-target-positions after --"
        )
    processes = setup.gpus * setup.nodes
    parameters = count_parameters(built)
    each = bytes_per_parameter(setup.precision, setup.memory_efficient)
    with plannable(setup.arch):
        memory = measure(
            built, parameters, each, processes, setup.device.memory, setup.reserve, setup.longest
        )
    max_tokens, update_freq = choose(setup, memory, processes)
    longer = max(setup.lengths) if not built.decoder_only else setup.lengths[1]
    sentences = max(1, round(max_tokens / longer))
    step = trace(built, sample(built, sentences, *setup.lengths))
    tokens = sentences * longer
    # Sentences are not split, so a step may have slightly more or fewer tokens than planned.
    parts = step_seconds(step.operations, setup.device, setup.precision, setup.assumed)
    seconds = Seconds(
        **{limit: time * update_freq * max_tokens / tokens for limit, time in parts.items()},
        optimizer=parameters * each.traffic / (setup.device.bandwidth * setup.assumed.bandwidth),
        exchange=exchange_seconds(
            memory.gradients, setup.gpus, setup.nodes, setup.device.link, setup.network,
            setup.assumed,
        ),
    )  # fmt: skip
    useful = step.flops / tokens * max_tokens * update_freq
    return Plan(
        parameters=parameters,
        flops=by_part(step, tokens),
        operations=len(step.operations),
        kept=step.saved / tokens,
        memory=memory,
        fits=memory.largest,
        max_tokens=max_tokens,
        update_freq=update_freq,
        seconds=seconds,
        mfu=useful / seconds.total / setup.device.peak[setup.precision],
    )


def by_part(step: Trace, tokens: int) -> dict[str, float]:
    """FLOPs per token in both passes, of each part that has any."""
    sums: Counter[str] = Counter()
    for operation in step.operations:
        sums[operation.part] += operation.flops
    own = sums.keys() - {*PARTS, OTHER}
    return {part: sums[part] / tokens for part in (*PARTS, *sorted(own), OTHER) if sums[part]}


def choose(setup: Setup, memory: Memory, processes: int) -> tuple[int, int]:
    """Choose --max-tokens and --update-freq.

    Raises:
        ConfigError: nothing fits, or the batch cannot be divided evenly
    """
    largest = memory.largest
    if largest < setup.longest:
        raise ConfigError(
            f"one sentence of --longest {setup.longest} tokens does not fit into "
            f"{setup.device.name}: {gigabytes(memory.static)} GB for the parameters and "
            f"{gigabytes(memory.activations(setup.longest))} GB for activations, with "
            f"{gigabytes(memory.reserve)} GB reserved, of {gigabytes(memory.capacity)} GB. "
            "Decrease --longest, or give --memory-efficient, or --checkpoint-activations after --"
        )
    if setup.max_tokens and not setup.longest <= setup.max_tokens <= largest:
        raise ConfigError(
            f"--max-tokens {setup.max_tokens}: expected {setup.longest} (--longest) to {largest}, "
            f"the most that fits into {setup.device.name}"
        )
    if setup.batch % processes:
        below = setup.batch - setup.batch % processes
        raise ConfigError(
            f"--batch-tokens {setup.batch} is not a multiple of {processes} processes; "
            f"give {below or processes} or {below + processes}"
        )
    limit = setup.max_tokens or largest
    max_tokens, update_freq = divided(setup.batch, processes, limit)
    if not max_tokens:
        raise ConfigError(
            f"--batch-tokens {setup.batch} on {processes} processes cannot be divided into steps "
            f"near {limit} tokens, the {'--max-tokens' if setup.max_tokens else 'most that fit'}; "
            "choose another batch"
        )
    if max_tokens < setup.longest:
        raise ConfigError(
            f"--batch-tokens {setup.batch} on {processes} processes leaves {max_tokens} tokens for "
            f"a step, fewer than one sentence of --longest {setup.longest}; choose a larger batch, "
            "or decrease --longest"
        )
    if setup.max_tokens not in (0, max_tokens):
        raise ConfigError(
            f"--batch-tokens {setup.batch} is not a multiple of {processes} processes x "
            f"--max-tokens {setup.max_tokens}; give --max-tokens {max_tokens}, with "
            f"--update-freq {update_freq}"
        )
    return max_tokens, update_freq


def gigabytes(size: float) -> str:
    """Format bytes as GB with two decimals."""
    return f"{size / 1e9:.2f}"


def as_json(setup: Setup, plan: Plan) -> dict[str, Any]:
    """Convert setup and plan for a JSON file."""
    flags: list[str] = list(setup.flags)
    given = setup._asdict() | {"flags": flags, "assumed": setup.assumed._asdict()}
    given["device"] = {**vars(setup.device), "peak": dict(setup.device.peak)}
    found = plan._asdict() | {
        "seconds": plan.seconds._asdict() | {"total": plan.seconds.total},
        "memory": plan.memory._asdict() | {"activations": plan.memory.activations(plan.max_tokens)},
        "updates_per_second": plan.updates_per_second,
        "hours": setup.updates * plan.seconds.total / 3600,
    }
    return {"prediction": True, "setup": given, "plan": found}
