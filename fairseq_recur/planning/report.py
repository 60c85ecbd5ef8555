"""A plan as text."""

from fairseq_recur.planning.plan import Plan, Setup, gigabytes

Row = tuple[str, str]


def report(setup: Setup, plan: Plan) -> str:
    """Format the plan, one name and value per line."""
    blocks = [_setup(setup), _model(plan), _memory(setup, plan), _time(setup, plan)]
    width = max(len(name) for rows in blocks for name, _ in rows) + 2
    text = "\n\n".join(
        "\n".join(f"{name:<{width}}{value}" for name, value in rows) for rows in blocks
    )
    return "A prediction; docs/planning.md describes the method.\n\n" + text


def command(setup: Setup, plan: Plan) -> str:
    """The environment variables with which scripts/launch/ runs this training."""
    precision = f"PRECISION={setup.precision}"
    efficient = " MEMORY_EFFICIENT=1" if setup.memory_efficient else ""
    nodes = f" NODES={setup.nodes}" if setup.nodes > 1 else ""
    return (
        f"GPUS={setup.gpus}{nodes} BATCH_TOKENS={setup.batch} MAX_TOKENS={plan.max_tokens} "
        f"{precision}{efficient}"
    )


def _setup(setup: Setup) -> list[Row]:
    nodes = f" on each of {setup.nodes} nodes" if setup.nodes > 1 else ""
    source, target = setup.lengths
    flags = f" {' '.join(setup.flags)}" if setup.flags else ""
    return [
        ("model", f"{setup.arch}{flags}"),
        ("vocabulary", " and ".join(f"{n:,}" for n in dict.fromkeys(setup.vocabulary))),
        ("sentences", f"{source} and {target} tokens on average, at most {setup.longest}"),
        ("device", f"{setup.gpus} x {setup.device.name}{nodes}, {setup.precision}"),
        ("figures from", setup.device.source),
        ("assumed", _assumed(setup)),
    ]


def _assumed(setup: Setup) -> str:
    assumed = setup.assumed
    if assumed.mfu:
        return f"{assumed.mfu:.0%} of the peak by FLOPs only"
    return (
        f"{assumed.matmul:.0%} of the peak, {assumed.bandwidth:.0%} of the bandwidth, "
        f"{assumed.overhead * 1e6:g} us per operation at least"
    )


def _model(plan: Plan) -> list[Row]:
    total = sum(plan.flops.values())
    rows = [
        ("parameters", f"{plan.parameters:,}"),
        ("FLOPs per token", f"{total / 1e6:,.1f} M, forward and backward"),
    ]
    for part, flops in plan.flops.items():
        rows.append((f"  {part}", f"{flops / 1e6:,.1f} M ({flops / total:.1%})"))
    return [*rows, ("operations per step", f"{plan.operations:,}")]


def _memory(setup: Setup, plan: Plan) -> list[Row]:
    memory = plan.memory
    activations = memory.activations(plan.max_tokens)
    kinds = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "fp32 copies": memory.masters,
        "Adam": memory.optimizer,
        "gradient buckets": memory.buckets,
        "activations": activations,
    }
    used = memory.static + activations
    return [
        ("memory", f"{gigabytes(used)} of {gigabytes(memory.capacity)} GB, "
                   f"{gigabytes(memory.reserve)} of them reserved"),
        *((f"  {kind}", f"{gigabytes(size)} GB") for kind, size in kinds.items() if size),
        ("activations per token", f"{memory.slope / 1e3:,.1f} kB for the longest sentences, "
                                f"{plan.kept / 1e3:,.1f} kB kept for sentences of mean length"),
        ("largest --max-tokens", f"{plan.fits:,}"),
        ("--max-tokens", f"{plan.max_tokens}"),
        ("--update-freq", f"{plan.update_freq}"),
        ("tokens per update", f"{setup.batch:,}"),
    ]  # fmt: skip


def _time(setup: Setup, plan: Plan) -> list[Row]:
    seconds = plan.seconds
    kinds = ("matrix products", "memory traffic", "latency", "optimizer", "all-reduce")
    shares = {
        f"  {kind}": f"{value * 1e3:,.1f} ms ({value / seconds.total:.0%})"
        for kind, value in zip(kinds, seconds)
        if value
    }
    return [
        ("time per update", f"{seconds.total * 1e3:,.1f} ms"),
        *shares.items(),
        ("updates per second", f"{plan.updates_per_second:.3g}"),
        ("tokens per second", f"{setup.batch * plan.updates_per_second:,.0f}"),
        ("share of the peak", f"{plan.mfu:.1%} (MFU; computed from the above)"),
        (f"{setup.updates:,} updates", f"{setup.updates * seconds.total / 3600:,.1f} hours"),
        ("scripts/launch", command(setup, plan)),
    ]
