"""Which form of RSA's sum is the fastest at which length: python benchmarks/rsa_forms.py

One self-attention module of the base size (8 heads of 64), 2048 tokens a batch, forward and
backward, the decoder's causal and the encoder's symmetric matrix; beside it fairseq's own
module. The forms take turns; a table of medians and the JSON with every repeat come out.
"""

import argparse
import json
import platform
import statistics
import time
from argparse import Namespace
from pathlib import Path
from typing import Callable, Dict, List

import torch
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import MultiheadAttention
from torch import nn

import fairseq_recur  # noqa: F401  (adapts fairseq)
from fairseq_recur.experiments import machine
from fairseq_recur.models.attention_config import SelfAttentionConfig
from fairseq_recur.modules.mixture import FORMS
from fairseq_recur.modules.parts import SELF_ATTENTION

WIDTH, HEADS, TOKENS = 512, 8, 2048
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)


def build(side: str, device: str, **options: object) -> nn.Module:
    """An RSA module of the base size, or with form "dot" fairseq's."""
    if options["rsa_form"] == "dot":
        return MultiheadAttention(WIDTH, HEADS, self_attention=True).to(device)
    values = {name: f.default for name, f in SelfAttentionConfig.__dataclass_fields__.items()}
    names = ("encoder_embed_dim", "decoder_embed_dim")
    heads = ("encoder_attention_heads", "decoder_attention_heads")
    host = {**dict.fromkeys(names, WIDTH), **dict.fromkeys(heads, HEADS)}
    cfg = TransformerConfig.from_namespace(Namespace(**{**values, **host, **options}))
    return SELF_ATTENTION["rsa"](cfg, side, nn.Identity).to(device)


def step(module: nn.Module, side: str, length: int, device: str) -> Callable[[], float]:
    """A function that runs one forward and backward pass and returns its milliseconds."""
    x = torch.randn(length, TOKENS // length, WIDTH, device=device, requires_grad=True)
    mask = None
    if side == "decoder":
        mask = torch.full((length, length), float("-inf"), device=device).triu(1)

    def run() -> float:
        start = now(device)
        out, _ = module(x, x, x, need_weights=False, attn_mask=mask)
        out.sum().backward()
        return (now(device) - start) * 1e3

    return run


def now(device: str) -> float:
    """The time at which the device has done its work, in seconds."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def measure(side: str, length: int, args: argparse.Namespace) -> Dict[str, List[float]]:
    """Milliseconds of every form at one length, the forms in turns."""
    steps = {
        form: step(
            build(side, args.device, rsa_form=form, rsa_heads=args.heads,
                  rsa_max_power=args.max_power),
            side, length, args.device,
        )
        for form in ("dot", *FORMS)
    }  # fmt: skip
    for run in steps.values():
        run()
    times: Dict[str, List[float]] = {form: [] for form in steps}
    for _ in range(args.repeats):
        for form, run in steps.items():
            times[form].append(round(min(run() for _ in range(args.inner)), 3))
    return times


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--heads", default="8,0,0,0,0,0", help="as --rsa-heads")
    parser.add_argument("--max-power", type=int, default=200, help="as --rsa-max-power")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--inner", type=int, default=3, help="runs of which a repeat is the best")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    rows = []
    print(f"{'side':8}{'length':>7}" + "".join(f"{form:>22}" for form in ("dot", *FORMS)))
    for side in ("encoder", "decoder"):
        for length in args.lengths:
            times = measure(side, length, args)
            rows.append({"side": side, "length": length, "ms": times})
            cells = [
                f"{statistics.median(t):.1f} ({min(t):.1f}-{max(t):.1f})" for t in times.values()
            ]
            print(f"{side:8}{length:>7}" + "".join(f"{cell:>22}" for cell in cells), flush=True)
    if args.output:
        args.output.write_text(json.dumps({**provenance(args), "rows": rows}, indent=1) + "\n")


def provenance(args: argparse.Namespace) -> Dict[str, object]:
    """Where the figures come from."""
    options = {k: v for k, v in vars(args).items() if k != "output"}
    return {
        "command": "python benchmarks/rsa_forms.py",
        "options": options,
        "commit": machine.commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "machine": machine.machine(),
    }


if __name__ == "__main__":
    main()
