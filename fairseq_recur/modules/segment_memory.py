"""The systems that SRformer is compared with: segments with a memory (Long et al. 2023, 4.2)."""

from dataclasses import dataclass

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_recur.modules.options import option
from fairseq_recur.modules.part import MonitoredModule, Part
from fairseq_recur.modules.recurrence import recurrent_norm
from fairseq_recur.modules.segmented_attention import PreparedSource, SegmentedAttention, Segments


class MemoryAttention(SegmentedAttention):
    """softmax(Q_t [A_i K_i]^T) [B_i V_i], with further keys A_i and values B_i for each segment.

    Keys and values of a segment and of the memory stand in one softmax.
    """

    def attend(self, queries: Tensor, source: PreparedSource) -> tuple[Tensor, Tensor]:
        """As in `SegmentedAttention.attend`; weights on the memory are not returned."""
        batch, _, steps = queries.size()[:3]
        more = source["memory_keys"].size(3)

        def joined(memory: Tensor, own: Tensor) -> Tensor:
            return torch.cat([memory.expand(-1, -1, own.size(2), -1, -1), own], dim=3)

        size = source["keys"].size(3)
        own = source.get("mask", queries.new_zeros(1, 1, 1, 1, size, dtype=torch.float32))
        mask = torch.cat(
            [
                source["memory_mask"].expand(batch, 1, steps, 1, more),
                own.expand(batch, 1, steps, 1, size),
            ],
            dim=4,
        )
        both = {
            "keys": joined(source["memory_keys"], source["keys"]),
            "values": joined(source["memory_values"], source["values"]),
            "mask": mask,
        }
        out, weights = super().attend(queries, both)
        return out, weights[..., more:]


class SegmentRNNs(MonitoredModule, Part, nn.Module):
    """The two RNNs of the published comparison system, over keys and over values.

    Args:
        width: of a head, D
    """

    slot = "cross-attention"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.keys = nn.RNN(width, width, batch_first=True)
        self.values = nn.RNN(width, width, batch_first=True)

    def monitored(self) -> dict[str, Tensor]:
        """The `recurrent_norm` of both."""
        return {
            "recurrent_norm": recurrent_norm(
                r.get_parameter("weight_hh_l0") for r in (self.keys, self.values)
            )
        }

    def forward(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Their states at each position, (B, H, N, s, D) of the same; carried across segments."""
        return self.run(self.keys, keys), self.run(self.values, values)

    @staticmethod
    def run(rnn: nn.RNN, x: Tensor) -> Tensor:
        """One RNN over each head's positions; those after the real ones come last."""
        out, _ = rnn(x.flatten(2, 3).flatten(0, 1))
        return out.view(x.size())


class XLAttention(MemoryAttention):
    """The previous segment's keys and values as a memory, as in Transformer-XL (Dai et al. 2019).

    Args:
        cfg: the host's configuration
    """

    @dataclass
    class Options(SegmentedAttention.Options):
        """Adds the kind of memory."""

        xl_memory: ChoiceEnum(["raw", "rnn"]) = option(  # type: ignore[valid-type]
            "raw",
            "memory of xl: the previous segment's keys and values (raw), or the states of an RNN "
            "over them, as in SRformer's published code (rnn)",
        )

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(cfg)
        self.rnns = SegmentRNNs(self.head_dim) if cfg.xl_memory == "rnn" else None

    def prepare(self, keys: Tensor, values: Tensor, segments: Segments) -> PreparedSource:
        """Beside the segments the memory: what the step before has read."""
        source = super().prepare(keys, values, segments)
        keys, values = source["keys"], source["values"]
        if self.rnns is not None:
            keys, values = self.rnns(keys, values)
        lowest = torch.finfo(torch.float32).min
        own = source.get("mask", torch.zeros((), device=keys.device))
        own = own.expand(keys.size(0), 1, keys.size(2), 1, keys.size(3))
        source["memory_keys"], source["memory_values"] = shifted(keys), shifted(values)
        source["memory_mask"] = torch.cat(
            [torch.full_like(own[:, :, :1], lowest), own[:, :, :-1]], 2
        )
        return source


class TransientNorm(Part, nn.RMSNorm):
    """The norm of LongT5's transient global tokens."""

    slot = "cross-attention"


class GlobalAttention(MemoryAttention):
    """A token for each segment that all queries see, as in LongT5 (Guo et al. 2022).

    "mean" is the published comparison system: the mean of a segment's keys and of its values.
    "transient" is LongT5's: the sum of a segment's states, normed, through the same projections.

    Args:
        cfg: the host's configuration
    """

    @dataclass
    class Options(SegmentedAttention.Options):
        """Adds the kind of tokens."""

        global_tokens: ChoiceEnum(["mean", "transient"]) = option(  # type: ignore[valid-type]
            "mean",
            "tokens of global: means of each segment's keys and values (mean), or LongT5's "
            "normed sums of its states, projected (transient)",
        )

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(cfg)
        transient = cfg.global_tokens == "transient"
        self.norm = TransientNorm(cfg.encoder.embed_dim, eps=1e-6) if transient else None

    def prepare(self, keys: Tensor, values: Tensor, segments: Segments) -> PreparedSource:
        """Beside the segments the global tokens, the same at all steps."""
        source = super().prepare(keys, values, segments)
        if segments.mask is None:
            real = keys.new_full((1, 1, keys.size(2), 1), keys.size(3))
        else:
            real = (segments.mask == 0).sum(4).to(keys.dtype)
        if self.norm is None:
            tokens = [x.sum(3) / real.clamp(min=1) for x in (keys, values)]
        else:
            states = self.norm(segments.states.sum(3)).squeeze(1).transpose(0, 1)  # (M, B, C)
            tokens = [self.split(project(states)) for project in (self.k_proj, self.v_proj)]
        source["memory_keys"], source["memory_values"] = (x.unsqueeze(2) for x in tokens)
        empty = real.squeeze(3)[:, :, None, None] == 0
        lowest = torch.finfo(torch.float32).min
        source["memory_mask"] = torch.zeros_like(empty, dtype=torch.float32).masked_fill(
            empty, lowest
        )
        return source


def shifted(x: Tensor) -> Tensor:
    """Each step's x at the next step, zeros at the first: (B, H, N, s, D)."""
    return torch.cat([torch.zeros_like(x[:, :, :1]), x[:, :, :-1]], dim=2)
