"""The options of the parts for self-attention, which all models share."""

import math
from dataclasses import dataclass, field

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from fairseq_recur.modules.mixture import FORMS
from fairseq_recur.modules.parts import SELF_ATTENTION


@dataclass
class SelfAttentionConfig(FairseqDataclass):
    """Options of a decoder's self-attention; an encoder's part takes the same ones."""

    decoder_self_attention: ChoiceEnum(list(SELF_ATTENTION)) = field(
        default="dot",
        metadata={
            "help": "part for the decoder's self-attention: dot (standard), rsa (Huang et al. "
            "2023), and to compare with relative (Shaw et al. 2018), toeplitz, full_matrix; "
            "directional is for the encoder alone"
        },
    )
    rsa_heads: str = field(
        default="",
        metadata={
            "help": "numbers of heads with each kind of recurrence encoding matrix, as six "
            "numbers K1,...,K6: regular, cosine, sine, and dilated regular, cosine, sine; they "
            "come first, heads that are left over are ordinary; empty: every head is regular"
        },
    )
    rsa_dilations: str = field(
        default="",
        metadata={"help": "dilations of the dilated heads in their order, with commas between"},
    )
    rsa_max_power: int = field(
        default=200,
        metadata={"help": "highest power K of a decay, further entries are 0; 0: no limit"},
    )
    rsa_share: ChoiceEnum(["pairs", "none"]) = field(
        default="pairs",
        metadata={
            "help": "whether the j-th cosine and the j-th sine head share decay and angle "
            "(pairs), as a conjugate pair of eigenvalues does, or have their own (none)"
        },
    )
    rsa_gate_init: str = field(
        default="-1",
        metadata={
            "help": "initial mu of the gate sigmoid(mu), the share of the matrix: a number, or "
            "random for another one from [-3, 3] in each layer; also for toeplitz, full_matrix"
        },
    )
    rsa_eta_init: str = field(
        default="1,2",
        metadata={
            "help": "range LOW,HIGH over which eta of the regular heads is spread at first, half "
            "of it negated; lambda = tanh(eta)"
        },
    )
    rsa_nu_init: str = field(
        default="1,2",
        metadata={
            "help": "range LOW,HIGH over which nu of the cyclical heads is spread at first; "
            "gamma = sigmoid(nu)"
        },
    )
    rsa_theta_init: float = field(
        default=math.pi / 4,
        metadata={"help": "initial angle theta of the cyclical heads, in radians"},
    )
    rsa_dropout: ChoiceEnum(["softmax", "mixed"]) = field(
        default="softmax",
        metadata={
            "help": "what --attention-dropout drops: entries of the softmax alone, or of its "
            "mixture with the matrix; also for toeplitz"
        },
    )
    rsa_normalize: bool = field(
        default=False,
        metadata={
            "help": "divide rows of the matrix whose absolute values add up to more than one by "
            "that sum; also for toeplitz, full_matrix"
        },
    )
    rsa_form: ChoiceEnum(["auto", *FORMS]) = field(
        default="auto",
        metadata={
            "help": "how to compute softmax(QK)V and the matrix's product: as one mixed map, as "
            "two dense products, or the second in chunks; auto: by length, as measured; also "
            "for toeplitz, full_matrix"
        },
    )
    learned_matrix_length: int = field(
        default=256,
        metadata={"help": "lags of toeplitz and positions of full_matrix that have parameters"},
    )
    relative_clip: int = field(
        default=16,
        metadata={"help": "largest distance of its own in relative; larger ones share it"},
    )
