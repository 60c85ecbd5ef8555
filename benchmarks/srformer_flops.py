"""Multiply-adds of SRformer's cross-attention: as counted in its paper, and in full.

    python benchmarks/srformer_flops.py [--output FILE]

Nothing is measured: every figure follows from the sizes. `srformer_counts.py` has the formulas and
explains their letters.
"""

import json

import srformer_counts as counts
from command_lines import command_line
from srformer_counts import Model

from fairseq_recur.files import write_text

MODELS = {
    "T5-small": Model(512, 8, 6, 2048, 32128),
    "BART-base": Model(768, 12, 6, 3072, 50265),
    "BART-large": Model(1024, 16, 12, 4096, 50265),
}
"""The paper uses the first two; all three have heads of width 64."""

BEAM = 4
WIDTH = 64
"""d"""

SETTINGS = {
    "Table 1": (128, 1024, 64),
    "Fig. 4": (128, 1024, 16),
    "Fig. 4, smallest": (128, 1024, 8),
    "XSum's 23 words": (23, 1024, 64),
    "Fig. 5, longest": (1024, 8192, 64),
    "q 512, k 4096": (512, 4096, 64),
    "q 2048, k 16384": (2048, 16384, 64),
    "9 words of 10,240": (9, 10240, 1024),
}
"""q, k and s. The paper uses q 128 and k 1024 for all data sets; section 4.1 has XSum's words."""


def attention_row(q: int, k: int, s: int, d: int = WIDTH) -> dict[str, object]:
    """Count one head of one layer, forward."""
    return {
        "q": q, "k": k, "s": s, "segments": counts.segments(k, s),
        "paper": {
            "full": counts.paper_full(q, k, d), "srformer": counts.paper_srformer(q, k, s, d)
        },
        "all": {
            "full": counts.full(q, k, d),
            "srformer": counts.srformer(q, k, s, d),
            "folded": counts.srformer(q, k, s, d, folded=True),
        },
        "break_even_q": {
            "paper": counts.paper_break_even(k, s, d),
            "srformer": counts.break_even(k, s, d, False),
            "folded": counts.break_even(k, s, d, True),
        },
        "break_even_k": {
            "srformer": counts.break_even_source(q, s, d, False),
            "folded": counts.break_even_source(q, s, d, True),
        },
        "paper_memory": {
            "full": counts.paper_full_memory(q, k, d),
            "srformer": counts.paper_srformer_memory(q, k, s, d),
        },
        "neuron_updates": counts.neuron_updates(k, s, d),
        "exponentials": {"full": counts.exponentials(q, k), "srformer": counts.exponentials(q, s)},
    }  # fmt: skip


def training_row(q: int, k: int, s: int, d: int = WIDTH) -> dict[str, int]:
    """Count one head of one layer, forward and backward."""
    return {
        "full": counts.full_training(q, k, d, fused=False),
        "full, fused": counts.full_training(q, k, d, fused=True),
        "stored": counts.stored_training(q, k, s, d),
        "recomputed": counts.recomputed_training(q, k, s, d),
    }


def decoding_row(q: int, k: int, s: int, beam: int, d: int = WIDTH) -> dict[str, int]:
    """Count one head of one layer, for q decoding steps with a beam."""
    return {
        "full, a step": counts.full_step(k, d),
        "srformer, a step": counts.srformer_step(s, d),
        "srformer, once": counts.source_once(k, s, d, False),
        "full": counts.full_decoding(q, beam, k, d),
        "srformer": counts.srformer_decoding(q, beam, k, s, d),
        "srformer, each beam": counts.srformer_decoding(q, beam, k, s, d, shared=False),
    }


def model_row(model: Model, q: int, k: int, s: int) -> dict[str, int]:
    """Count a whole model, forward."""
    d = model.width // model.heads
    of_head = {
        "projections": counts.projections(q, k, d, model.width),
        "full": counts.full(q, k, d),
        "srformer": counts.srformer(q, k, s, d, folded=s < d),
    }
    return {
        "encoder": counts.encoder(k, model),
        "decoder but cross-attention": counts.decoder_without_cross(q, model),
        **{name: counts.cross_attention(x, model) for name, x in of_head.items()},
    }


def step_row(model: Model, q: int, k: int, s: int) -> dict[str, int]:
    """Count a whole decoder, for the last step of one beam."""
    d = model.width // model.heads
    return {
        "but attention over the source": counts.decoder_step(q, model),
        "full": counts.cross_attention(counts.full_step(k, d), model),
        "srformer": counts.cross_attention(counts.srformer_step(s, d), model),
    }


def thousands(number: float) -> str:
    """Format in thousands, as in Table 1."""
    return f"{number / 1e3:,.0f}"


def share(part: float, whole: float) -> str:
    """Format a ratio in percent."""
    return f"{100 * part / whole:.1f} %"


def show(title: str, head: list[str], rows: list[list[str]]) -> None:
    """Print a table in Markdown."""
    print(f"\n{title}\n\n| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def show_attention() -> None:
    """Print the forward pass, and the break-even lengths."""
    rows, ends = [], []
    for name, (q, k, s) in SETTINGS.items():
        row = attention_row(q, k, s)
        paper, every = row["paper"], row["all"]
        rows.append([
            name, f"{q}, {k}, {s}", thousands(paper["full"]), thousands(paper["srformer"]),
            share(paper["srformer"], paper["full"]), thousands(every["full"]),
            thousands(every["srformer"]), share(every["srformer"], every["full"]),
            thousands(every["folded"]), share(every["folded"], every["full"]),
        ])  # fmt: skip
        source = ["never" if x is None else f"{x:.0f}" for x in row["break_even_k"].values()]
        ends.append([name, *(f"{x:.0f}" for x in row["break_even_q"].values()), *source])
    head = ["", "q, k, s", "paper: full", "SRformer", "", "all: full", "Algorithm 1", "", "folded"]
    show("Thousands of multiply-adds per head, forward", [*head, ""], rows)
    head = ["", "paper: q", "Algorithm 1: q", "folded: q", "Algorithm 1: k", "folded: k"]
    show(
        "Break-even: the q (at this k) and the k (at this q) from which SRformer takes fewer",
        head,
        ends,
    )


def show_rest(beam: int) -> None:
    """Print memory, training and decoding."""
    memory, training, decoding = [], [], []
    for name, setting in SETTINGS.items():
        row = attention_row(*setting)["paper_memory"]
        memory.append([name, *map(thousands, row.values()), share(row["srformer"], row["full"])])
        found = training_row(*setting)
        training.append([name, *map(thousands, found.values())])
        found = decoding_row(*setting, beam)
        decoding.append([name, *map(thousands, found.values())])
    show("Memory as in Table 1, in thousands of numbers", ["", "full", "SRformer", ""], memory)
    show("Thousands of multiply-adds, forward and backward", ["", *training_row(1, 1, 1)], training)
    show(
        f"Thousands of multiply-adds, decoding q words, beam {beam}",
        ["", *decoding_row(1, 1, 1, 1)],
        decoding,
    )


def show_models() -> None:
    """Print whole models: the forward pass of a source, and a decoding step."""
    models, steps = [], []
    for name, model in MODELS.items():
        for setting in (SETTINGS["Table 1"], SETTINGS["Fig. 5, longest"]):
            found = model_row(model, *setting)
            both = [found["projections"] + found[x] for x in ("full", "srformer")]
            rest = found["encoder"] + found["decoder but cross-attention"]
            models.append([
                f"{name}, {setting}", *(f"{x / 1e9:.2f}" for x in found.values()),
                share(both[1], both[0]), share(found["full"], rest + both[0]),
                share(rest + both[1], rest + both[0]),
            ])  # fmt: skip
            found = step_row(model, *setting)
            rest = found["but attention over the source"]
            steps.append([
                f"{name}, {setting}", *(f"{x / 1e6:.2f}" for x in found.values()),
                share(rest + found["srformer"], rest + found["full"]),
            ])  # fmt: skip
    head = ["model, (q, k, s)", *model_row(MODELS["T5-small"], 1, 1, 1), "cross-attention with its "
            "projections", "full attention's products in the model", "model"]  # fmt: skip
    show("Billions of multiply-adds per source, forward", head, models)
    head = ["model, (q, k, s)", *step_row(MODELS["T5-small"], 1, 1, 1), "step"]
    show("Millions of multiply-adds, last step of one beam", head, steps)


def record(beam: int) -> dict[str, object]:
    """Return all figures."""
    return {
        "command": "python benchmarks/srformer_flops.py" + (beam != BEAM) * f" --beam {beam}",
        "unit": "multiply-adds; of one head of one layer, but for the whole models",
        "head_width": WIDTH,
        "beam": beam,
        "attention": {name: attention_row(*x) for name, x in SETTINGS.items()},
        "training": {name: training_row(*x) for name, x in SETTINGS.items()},
        "decoding": {name: decoding_row(*x, beam) for name, x in SETTINGS.items()},
        "models": {
            model: {name: model_row(sizes, *x) for name, x in SETTINGS.items()}
            for model, sizes in MODELS.items()
        },
        "last_step": {
            model: {name: step_row(sizes, *x) for name, x in SETTINGS.items()}
            for model, sizes in MODELS.items()
        },
    }


def main() -> None:
    """Print the tables and write the figures."""
    parser = command_line(__doc__, device=False)
    parser.add_argument("--beam", type=int, default=BEAM)
    args = parser.parse_args()
    show_attention()
    show_rest(args.beam)
    show_models()
    if args.output:
        write_text(args.output, json.dumps(record(args.beam), indent=1) + "\n")


if __name__ == "__main__":
    main()
