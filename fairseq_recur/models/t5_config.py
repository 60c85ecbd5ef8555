"""The options that choose the host's arithmetic, and those of a T5."""

from dataclasses import dataclass, field

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

HOSTS = ("transformer", "t5")


@dataclass
class T5Config(FairseqDataclass):
    """Everything else about a T5 has an option of fairseq's Transformer."""

    host: ChoiceEnum(list(HOSTS)) = field(
        default="transformer",
        metadata={
            "help": "arithmetic of the model around the parts: fairseq's Transformer, or T5 "
            "(Raffel et al. 2020), whose other options --arch t5_small sets"
        },
    )
    t5_relative_buckets: int = field(
        default=32, metadata={"help": "buckets of T5's relative position bias"}
    )
    t5_relative_max_distance: int = field(
        default=128, metadata={"help": "distance from which on T5's bias is the same"}
    )
    t5_head_dim: int = field(
        default=0,
        metadata={"help": "width of a head in T5 (d_kv); 0 for the model's width by the heads"},
    )
    t5_gated: bool = field(
        default=False,
        metadata={
            "help": "the feed-forward network multiplies the activation by a second projection "
            "(T5 v1.1, with --activation-fn gelu_accurate)"
        },
    )
    t5_untied_output: bool = field(
        default=False,
        metadata={
            "help": "an output matrix of its own, whose logits are not scaled, also with "
            "--share-all-embeddings (T5 v1.1)"
        },
    )
