"""The options of the parts for the cross-attention."""

from dataclasses import dataclass, field

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from fairseq_recur.modules.parts import CROSS_ATTENTION
from fairseq_recur.modules.segment_memory import GLOBAL_TOKENS, XL_MEMORIES
from fairseq_recur.modules.segmented_attention import TARGET_LENGTHS
from fairseq_recur.modules.srformer import FORMS
from fairseq_recur.ops.segmented_attention import NORMS


@dataclass
class CrossAttentionConfig(FairseqDataclass):
    """Options of the decoder's attention over the encoder."""

    cross_attention: ChoiceEnum(list(CROSS_ATTENTION)) = field(
        default="dot",
        metadata={
            "help": "part for the decoder's attention over the encoder: dot (standard), srformer "
            "(Long et al. 2023), and to compare with segmented, xl, global"
        },
    )
    segment_size: int = field(default=64, metadata={"help": "source tokens in a segment, s"})
    target_length: int = field(
        default=128,
        metadata={
            "help": "target length q over which the segments are spread: query t reads segment "
            "t m / q of m; later ones read the last. For --target-length-mode fixed, and for "
            "decoding in the mode reference"
        },
    )
    target_length_mode: ChoiceEnum(list(TARGET_LENGTHS)) = field(
        default="fixed",
        metadata={
            "help": "q: always --target-length (fixed), --target-ratio times the source's length "
            "(ratio), or the reference's length in training, as in the paper (reference)"
        },
    )
    target_ratio: float = field(
        default=1.0, metadata={"help": "target tokens for each source token, in the mode ratio"}
    )
    srformer_leak_init: float = field(
        default=1.0, metadata={"help": "initial leak of the accumulate-and-fire neuron"}
    )
    srformer_threshold_init: float = field(
        default=0.1,
        metadata={
            "help": "initial threshold of the accumulate-and-fire neuron; 0.1 is the paper's, for "
            "pretrained models; from scratch a larger one, such as 10, learns sooner"
        },
    )
    srformer_norm: ChoiceEnum(list(NORMS)) = field(
        default="key",
        metadata={
            "help": "norm(K) that divides the recurrent term: for each key channel over the "
            "positions (key), over both (frobenius), or none (ablation II)"
        },
    )
    srformer_clamp: float = field(
        default=0.0,
        metadata={"help": "bound on the entries of K^T V and K_i^T V_i; 0: none (2 for BART)"},
    )
    srformer_sigma: bool = field(
        default=False,
        metadata={
            "help": "learn sigma and add sigma O_S + (1 - sigma) O_R (eq. 10), not O_S + O_R"
        },
    )
    srformer_surrogate: ChoiceEnum(["none", "piecewise"]) = field(
        default="none",
        metadata={"help": "derivative of the neuron's step: none, or 0.3 max(0, 1 - |y|)"},
    )
    srformer_no_segmented_term: bool = field(
        default=False, metadata={"help": "ablation I: leave out O_S"}
    )
    srformer_no_neuron: bool = field(
        default=False, metadata={"help": "ablation III: P_i itself, without accumulate-and-fire"}
    )
    srformer_current_segment: bool = field(
        default=False,
        metadata={"help": "ablation IV: accumulate the segment that is read, not all others"},
    )
    srformer_form: ChoiceEnum(["auto", *FORMS]) = field(
        default="auto",
        metadata={
            "help": "how to differentiate the scan over the segments: keep its matrices (stored) "
            "or compute them again where no segment is skipped (auto), on a CPU by compiled code; "
            "recomputed: as auto, by torch's operations, and options that only stored knows are "
            "an error"
        },
    )
    xl_memory: ChoiceEnum(list(XL_MEMORIES)) = field(
        default="raw",
        metadata={
            "help": "memory of xl: the previous segment's keys and values (raw), or an RNN's "
            "states over them, as in SRformer's published code (rnn)"
        },
    )
    global_tokens: ChoiceEnum(list(GLOBAL_TOKENS)) = field(
        default="mean",
        metadata={
            "help": "tokens of global: means of each segment's keys and values (mean), or "
            "LongT5's normed sums of its states, projected (transient)"
        },
    )
