"""Which form of RSA's sum is the fastest at which length: python benchmarks/rsa_forms.py.

One self-attention module of the base size (8 heads of 64), 2048 tokens a batch, forward and
backward, the decoder's causal and the encoder's symmetric matrix; beside it fairseq's own
module. The forms take turns.
"""

import argparse
from argparse import Namespace
from pathlib import Path

import torch
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import MultiheadAttention
from measuring import Run, add_device, in_turns, middle, record, rounded
from torch import nn

import fairseq_recur  # noqa: F401  (adapts fairseq)
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


def step(module: nn.Module, side: str, length: int, device: str) -> Run:
    """A function that runs one forward and backward pass."""
    x = torch.randn(length, TOKENS // length, WIDTH, device=device, requires_grad=True)
    mask = None
    if side == "decoder":
        mask = torch.full((length, length), float("-inf"), device=device).triu(1)

    def run() -> None:
        out, _ = module(x, x, x, need_weights=False, attn_mask=mask)
        out.sum().backward()

    return run


def measure(side: str, length: int, args: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds of every form at one length, the forms in turns."""
    options = {"rsa_heads": args.heads, "rsa_max_power": args.max_power}
    steps = {
        form: step(build(side, args.device, rsa_form=form, **options), side, length, args.device)
        for form in ("dot", *FORMS)
    }
    times = in_turns(steps, args.rounds, args.device, args.inner)
    return {form: rounded([t * 1e3 for t in found]) for form, found in times.items()}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_device(parser)
    parser.add_argument("--heads", default="8,0,0,0,0,0", help="as --rsa-heads")
    parser.add_argument("--max-power", type=int, default=200, help="as --rsa-max-power")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--inner", type=int, default=3, help="runs of which a round takes the fastest"
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    rows = []
    for side in ("encoder", "decoder"):
        for length in args.lengths:
            times = measure(side, length, args)
            rows.append({"side": side, "length": length, "ms": times})
            cells = [f"{form} {middle(t, 1)}" for form, t in times.items()]
            print(f"{side:8}{length:>6}  " + "  ".join(cells), flush=True)
    if args.output:
        record(args.output, rows)


if __name__ == "__main__":
    main()
