"""The memory of a language model: what its layers read before a segment of text."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_recur.modules.options import option
from fairseq_recur.modules.stream_memory import StreamMemory


def reach(cfg: Any, side: str) -> int | None:
    """The number of positions that a position sees, itself included; None without a limit."""
    limited = side == "decoder" and getattr(cfg, "memory_same_length", False)
    return int(cfg.memory_length) if limited else None


class TextMemory(StreamMemory):
    """What the memories of a language model share.

    Args:
        cfg: the host's configuration
        length: positions before a segment whose states are kept
        reach: number of positions that a position sees, itself included; None without a limit
    """

    of_positions: ClassVar[bool] = False
    """Whether attention maps read what it keeps, as of an `XLMemory`."""

    limit: ClassVar[str]
    """The option that says how many positions are `visible`."""

    state_length = 0
    """Vectors of the state of a recurrent part."""

    def __init__(self, cfg: TransformerConfig, length: int = 0, reach: int | None = None) -> None:
        super().__init__(cfg.decoder.layers)
        self.length, self.reach = length, reach
        self.segment, self.width = int(cfg.tokens_per_sample), cfg.decoder.embed_dim

    @classmethod
    def visible(cls, cfg: Any) -> int | None:
        """The number of positions that a position sees, itself included; None without a limit."""
        raise NotImplementedError(cls.__name__)

    @staticmethod
    def problems_of_host(cfg: Any) -> Iterator[str]:
        """What every memory needs of the model around it."""
        if cfg.decoder_layers < 1:
            yield (
                f"--decoder-layers {cfg.decoder_layers}: a memory needs at least one layer that it "
                "keeps something for; give 1 or more, or --decoder-memory none"
            )
        if cfg.decoder_layerdrop > 0:
            yield (
                f"--decoder-layerdrop {cfg.decoder_layerdrop}: a layer that was dropped leaves no "
                "states for the memory; set it to 0, or --decoder-memory none"
            )
        if cfg.base_layers:
            yield (
                f"--base-layers {cfg.base_layers}: the memory has no place for layers that fairseq "
                "adds; leave it out, or set --decoder-memory none"
            )
        if not cfg.no_token_positional_embeddings:
            yield (
                "--decoder-memory needs --no-token-positional-embeddings: absolute positions would "
                "repeat in the memory and the segment; --decoder-self-attention xl has relative "
                "ones"
            )

    def fill(self, starts: Tensor, like: Tensor) -> None:
        """Fill the memory to its full size, with arbitrary numbers.

        Args:
            starts: (B,) int64 numbers of the first positions of the next batch
            like: a tensor of the dtype and device of the states
        """
        self.starts = starts - self.length
        self.states = like.new_empty(self.layers, self.length, len(starts), self.width)
        self.carried = like.new_empty(0, 0, 0)
        if self.state_length:
            self.carried = like.new_empty(len(starts), self.state_length, self.width)

    @classmethod
    def prune(cls, cfg: Any) -> None:
        """Adapt the options, flat, to ``--decoder-layers-to-keep``; here nothing changes."""

    def build_layer(self, cfg: TransformerConfig) -> nn.Module:
        """The layer `recurrent`, of which this memory has none."""
        raise NotImplementedError(type(self).__name__)

    def bottleneck(self, cfg: TransformerConfig) -> nn.Module | None:
        """What the layers read and write between chunks, or None."""
        return None

    def first_visible(self, position: int) -> int:
        """The first position that a position sees, if the text is cut as in training."""
        if self.reach is not None:
            return max(0, position - self.reach + 1)
        return max(0, position // self.segment * self.segment - self.length)


class XLMemory(TextMemory):
    """Transformer-XL's memory: the last positions before a segment of text (Dai et al. 2019)."""

    about = "the states of their last positions, Dai et al. 2019"

    @dataclass
    class Options:
        """Options of the memory's length."""

        memory_length: int = option(
            512, "positions before a segment whose states are kept in the memory"
        )
        memory_same_length: bool = option(
            False,
            "each position sees as many positions as the memory is long, itself included, also "
            "within its segment; by default it sees all of its segment and all of the memory",
        )

    of_positions, limit = True, "--memory-length"

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(cfg, int(cfg.memory_length), reach(cfg, "decoder"))

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """Problems with the combination of this part's options, one message each."""
        yield from cls.problems_of_host(cfg)
        if cfg.memory_same_length and not cfg.memory_length:
            yield (
                "--memory-same-length with --memory-length 0 lets a position see nothing; give a "
                "longer memory"
            )

    @classmethod
    def visible(cls, cfg: Any) -> int | None:
        """As in `TextMemory.visible`."""
        return reach(cfg, "decoder")
