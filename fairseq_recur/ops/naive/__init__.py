"""The papers written as loops: the executable specification.

Nothing in the package imports it: tests compare with it, and benchmarks have it as the baseline.

There is no batching, no masking and no optimization: a sentence is the list of its real tokens,
a state is a vector. Every function computes in the dtype of its inputs and is differentiable.
"""

# ruff: noqa: F403 (tests read each reference as `naive.NAME`)

from fairseq_recur.ops.naive.attention import *
from fairseq_recur.ops.naive.block_recurrent import *
from fairseq_recur.ops.naive.forecaster import *
from fairseq_recur.ops.naive.label_smoothing import *
from fairseq_recur.ops.naive.latent_bottleneck import *
from fairseq_recur.ops.naive.recurrence_encoder import *
from fairseq_recur.ops.naive.rsa import *
from fairseq_recur.ops.naive.segmented_comparisons import *
from fairseq_recur.ops.naive.sparse import *
from fairseq_recur.ops.naive.srformer import *
from fairseq_recur.ops.naive.transformer_xl import *
