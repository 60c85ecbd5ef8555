"""The three mechanisms for any PyTorch model: plain arguments, batch first, no fairseq objects.

Inputs are (B, L, C). A padding mask is (B, L) bool, True at padding, as for
``torch.nn.MultiheadAttention``. The parts are those of the models; docs/outside_fairseq.md has
examples.
"""

from argparse import Namespace
from numbers import Integral, Real
from typing import Any, get_args

from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_recur.errors import ConfigError, refuse
from fairseq_recur.modules.biarn import BiARN
from fairseq_recur.modules.context import Context, Padding, Source, additive_mask, causal_mask
from fairseq_recur.modules.options import (
    declared,
    out_of_range,
    unknown_choices,
    without_effect,
)
from fairseq_recur.modules.recurrence_encoder import RecurrenceEncoder
from fairseq_recur.modules.rem import RecurrenceEncodingMatrices
from fairseq_recur.modules.self_attention import DotSelfAttention
from fairseq_recur.modules.srformer import SRformerAttention


def host(
    parts: list[Any],
    options: dict[str, Any],
    embed_dim: int,
    num_heads: int,
    dropout: float,
    side: str = "encoder",
) -> TransformerConfig:
    """Return the configuration that parts expect of their host.

    Args:
        parts: classes that declare options
        options: some of these options, by name
        embed_dim: C
        num_heads: H, which divides C
        dropout: of attention maps and layers
        side: "encoder" or "decoder", where the parts stand

    Raises:
        ConfigError: C cannot be split among the heads, an option is unknown, or the options cannot
            be used
    """
    if min(embed_dim, num_heads) < 1 or embed_dim % num_heads:
        raise ConfigError(
            f"embed_dim={embed_dim} cannot be split evenly among num_heads={num_heads}; choose a "
            "positive multiple of the heads"
        )
    every = {name: made for part in parts for name, made in declared(part).items()}
    known = {name: made for name, made in every.items() if not made.metadata.get("of_model")}
    unknown = ", ".join(sorted(options.keys() - known.keys()))
    if unknown:
        raise ConfigError(f"unknown options: {unknown}; expected some of {', '.join(known)}")
    options = {name: as_declared(name, value, known[name].type) for name, value in options.items()}
    defaults = {name: made.default for name, made in every.items()}
    cfg = Namespace(**sizes(embed_dim, num_heads, dropout), **{**defaults, **options})
    problems = [*unknown_choices(cfg, known), *out_of_range(cfg, known)]
    if not problems:
        placed = [(side, part) for part in parts]
        given = [name for name, value in options.items() if value != defaults[name]]
        problems = [
            *(p for name in given for p in without_effect(cfg, name, known[name], placed)),
            *(p for part in parts if hasattr(part, "problems") for p in part.problems(cfg, side)),
        ]
    refuse("the options cannot be used", problems)
    return TransformerConfig.from_namespace(cfg)


def sizes(embed_dim: int, num_heads: int, dropout: float) -> dict[str, Any]:
    """The options of a host that its arguments give, by name; both stacks have the same."""
    found: dict[str, Any] = {
        "dropout": dropout, "attention_dropout": dropout, "host": "transformer",
        "no_cross_attention": False, "cross_self_attention": False,
    }  # fmt: skip
    for stack in ("encoder", "decoder"):
        found[f"{stack}_embed_dim"] = embed_dim
        found[f"{stack}_ffn_embed_dim"] = 4 * embed_dim
        found[f"{stack}_attention_heads"] = num_heads
    return found


KINDS: dict[type, tuple[Any, str]] = {
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: ((str, Real), "a text, with commas between numbers"),
}
"""What may be given for an option of a type, also in words."""


def as_declared(name: str, value: Any, declared_type: Any) -> Any:
    """Return the value of an option in its type, as a command line would give it.

    A number may be given where the type is a text, and a whole number where it is a float.

    Raises:
        ConfigError: it is of another type
    """
    kinds = get_args(declared_type) or (declared_type,)
    if value is None and type(None) in kinds:
        return None
    kind = kinds[0]
    if kind not in KINDS:  # a choice, which the checks of all options compare with the names
        return value
    accepted, words = KINDS[kind]
    if not isinstance(value, accepted) or isinstance(value, bool) != (kind is bool):
        raise ConfigError(f"{name}={value!r}: expected {words}")
    return kind(value)


def check_sizes(**inputs: Tensor) -> None:
    """Check that no dimension of the inputs is empty.

    Raises:
        ValueError: one is
    """
    for name, x in inputs.items():
        if x.numel() == 0:
            raise ValueError(
                f"{name} has the shape {tuple(x.shape)}; expected at least one sentence of at "
                "least one position"
            )


class RSASelfAttention(nn.Module):
    """Self-attention mixed with recurrence encoding matrices (Huang et al. 2023, eq. 4).

    Args:
        embed_dim: C
        num_heads: H
        causal: whether a position attends only to itself and earlier ones
        dropout: of the attention map
        options: of `RecurrenceEncodingMatrices`, such as ``rsa_heads="2,1,1,0,0,0"``

    Raises:
        ConfigError: as `host`
    """

    def __init__(
        self, embed_dim: int, num_heads: int, causal: bool = False, dropout: float = 0.0,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        side = "decoder" if causal else "encoder"
        cfg = host([RecurrenceEncodingMatrices], options, embed_dim, num_heads, dropout, side)
        self.causal = causal
        self.attention = DotSelfAttention(cfg, side, RecurrenceEncodingMatrices(cfg, side))

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Return (B, L, C) for *x* (B, L, C) and a padding mask (B, L) or None.

        Raises:
            ValueError: *x* is empty
        """
        check_sizes(x=x)
        padding, future = Padding.of(key_padding_mask), None
        if self.causal:
            future = causal_mask(x.size(1), x.size(1), x)
        context = Context(
            padding=padding,
            mask=additive_mask(future, padding, x.dtype),
            causal=self.causal and padding is None,
            future=future,
        )
        return self.attention(x.transpose(0, 1), context)[0].transpose(0, 1)


class SRformerCrossAttention(nn.Module):
    """Cross-attention over one segment, and a recurrent summary of the others (Long et al. 2023).

    Args:
        embed_dim: C of the queries and of the memory
        num_heads: H
        dropout: of the attention map
        options: of `SRformerAttention`, such as ``segment_size=64, target_length=128``

    Raises:
        ConfigError: as `host`
    """

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, **options: Any
    ) -> None:
        super().__init__()
        cfg = host([SRformerAttention], options, embed_dim, num_heads, dropout, "decoder")
        self.attention = SRformerAttention(cfg)

    def forward(
        self, x: Tensor, memory: Tensor, memory_padding_mask: Tensor | None = None,
        padding_mask: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Attend from each position of *x* to the memory.

        Args:
            x: (B, T, C)
            memory: (B, S, C)
            memory_padding_mask: (B, S) bool, or None
            padding_mask: (B, T) bool, of *x*, whose real lengths ``target_length_mode="reference"``
                needs; or None

        Returns:
            (B, T, C)

        Raises:
            ValueError: *x* or *memory* is empty
        """
        check_sizes(x=x, memory=memory)
        states = memory.transpose(0, 1)
        source = Source.of(states, Padding.of(memory_padding_mask))
        context = Context(
            encoder_out=states,
            encoder_padding=memory_padding_mask,
            source=source,
            segments=self.attention.segments(source, x.size(1), Padding.of(padding_mask)),
        )
        return self.attention(x.transpose(0, 1), context)[0].transpose(0, 1)


class BiARNEncoder(nn.Module):
    """The recurrence encoder with attentive recurrent networks (Hao et al. 2019, eqs. 7-8, 12-13).

    Args:
        embed_dim: C
        num_heads: H, of the multi-head form
        dropout: of the layers
        options: of `BiARN` and `RecurrenceEncoder`, such as ``recurrence_steps=8``

    Raises:
        ConfigError: as `host`
    """

    def __init__(
        self, embed_dim: int, num_heads: int = 1, dropout: float = 0.0, **options: Any
    ) -> None:
        super().__init__()
        cfg = host([BiARN, RecurrenceEncoder], options, embed_dim, num_heads, dropout)
        self.encoder = RecurrenceEncoder(cfg, BiARN)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Return (B, R, 2C), a state per step, for *x* (B, L, C) and a padding mask or None.

        The width is C with recurrence_width "half" or "projected". R is L with recurrence_steps=-1.

        Raises:
            ValueError: *x* is empty
        """
        check_sizes(x=x)
        return self.encoder(x, Padding.of(key_padding_mask))[0].transpose(0, 1)
