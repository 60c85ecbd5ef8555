"""Which form of RSA's sum is the fastest at which length: python benchmarks/rsa_forms.py.

One self-attention module of base size (8 heads of width 64), 2048 tokens per batch, forward and
backward, with the decoder's causal and the encoder's symmetric matrix, compared with fairseq's own
module. The forms take turns.
"""

import argparse
from argparse import Namespace

import torch
from command_lines import command_line
from fairseq.models.transformer import TransformerConfig
from measuring import Run, in_turns, milliseconds
from reports import Report

import fairseq_recur  # noqa: F401  (applies the compatibility layer to fairseq)
from fairseq_recur.models.config import encoder_decoder_config
from fairseq_recur.modules.context import Context
from fairseq_recur.modules.mixture import FORMS
from fairseq_recur.modules.parts import build_self_attention
from fairseq_recur.modules.self_attention import SelfAttention

WIDTH, HEADS, TOKENS = 512, 8, 2048
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)


def build(side: str, device: str, **options: object) -> SelfAttention:
    """Build an RSA module of base size or, for the form "dot", fairseq's arithmetic."""
    if options["rsa_form"] == "dot":
        options |= {"encoder_self_attention": "dot", "decoder_self_attention": "dot"}
    rsa = {"encoder_self_attention": "rsa", "decoder_self_attention": "rsa"}
    widths = dict.fromkeys(("encoder_embed_dim", "decoder_embed_dim"), WIDTH)
    heads = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), HEADS)
    values = {**vars(encoder_decoder_config()()), **widths, **heads, **rsa, **options}
    return build_self_attention(TransformerConfig.from_namespace(Namespace(**values)), side).to(
        device
    )


def context_of(side: str, length: int, device: str) -> Context:
    """What a layer on a side knows of a batch without padding."""
    if side == "encoder":
        return Context()
    hidden = torch.full((length, length), float("-inf"), device=device).triu(1)
    mask = hidden.clamp(min=torch.finfo(hidden.dtype).min)
    return Context(mask=mask, causal=True, future=hidden)


def step(module: SelfAttention, side: str, length: int, device: str) -> Run:
    """Return a function that does one forward and backward pass."""
    x = torch.randn(length, TOKENS // length, WIDTH, device=device, requires_grad=True)
    context = context_of(side, length, device)

    def run() -> None:
        out, _ = module(x, context)
        out.sum().backward()

    return run


def measure(side: str, length: int, args: argparse.Namespace) -> dict[str, list[float]]:
    """Return the milliseconds of every form at one length."""
    options = {
        "rsa_heads": args.heads,
        "rsa_max_power": args.max_power,
        "attention_dropout": args.attention_dropout,
    }
    if args.dilations is not None:
        options["rsa_dilations"] = args.dilations
    steps = {
        form: step(build(side, args.device, rsa_form=form, **options), side, length, args.device)
        for form in ("dot", *FORMS)
    }
    times = in_turns(steps, args.rounds, args.device, args.inner)
    return {form: milliseconds(found) for form, found in times.items()}


def main() -> None:
    """Run the benchmark."""
    parser = command_line(__doc__, rounds=5, inner=3)
    parser.add_argument("--heads", default="8,0,0,0,0,0", help="value of --rsa-heads")
    parser.add_argument("--dilations", help="value of --rsa-dilations (default: the preset's)")
    parser.add_argument("--max-power", type=int, default=200, help="value of --rsa-max-power")
    parser.add_argument("--attention-dropout", type=float, default=0.0, metavar="P")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    args = parser.parse_args()
    wrong = [length for length in args.lengths if not 1 <= length <= TOKENS]
    if wrong:
        found = " ".join(map(str, wrong))
        parser.error(f"--lengths {found}: expected 1 to {TOKENS}, the tokens of a batch")
    report = Report(args.output)
    for side in ("encoder", "decoder"):
        for length in args.lengths:
            report.add({"side": side, "length": length, "ms": measure(side, length, args)})


if __name__ == "__main__":
    main()
