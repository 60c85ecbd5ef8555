"""How many multiply-adds SRformer's cross-attention takes: one formula a function.

Letters are those of Long et al. 2023: q target positions, k source positions, d width of a head, s
segment size, m = ceil(k / s) segments; C width of the model. A function counts for one head of one
layer unless it says otherwise. A multiply-add is two FLOPs. With fewer queries than segments the
neurons skip some (docs/srformer.md), which is not taken off here.

`tests/unit/test_srformer_flops.py` compares these with torch's own counter.
"""

from typing import NamedTuple


class Model(NamedTuple):
    """Sizes of an encoder-decoder: C, heads, layers on each side, FFN's width, vocabulary."""

    width: int
    heads: int
    layers: int
    inner: int
    words: int


def segments(k: int, s: int) -> int:
    """M = ceil(k / s)."""
    return -(-k // s)


# The paper's way: Table 1.


def paper_full(q: int, k: int, d: int) -> int:
    """Q k d, Table 1: the scores Q K^T (eq. 1), or the sum over V (eq. 2), but not both."""
    return q * k * d


def paper_segmented(q: int, s: int, d: int) -> int:
    """Q s d, Table 1: one of the two products of eqs. 4 and 6."""
    return q * s * d


def paper_srformer(q: int, k: int, s: int, d: int) -> int:
    """Q s d + k d^2, Table 1: the second term is K_i^T V_i of all segments (eq. 16).

    Left out in section 3.5: Q_t P (eq. 13) as q << k, and the neuron with its linear layer.
    """
    return paper_segmented(q, s, d) + k * d**2


def paper_full_memory(q: int, k: int, d: int) -> int:
    """Q k + k d numbers, Table 1: the weights, and keys or values, but not both."""
    return q * k + k * d


def paper_srformer_memory(q: int, k: int, s: int, d: int) -> int:
    """Q s + k d + m d^2 numbers, Table 1."""
    return q * s + k * d + segments(k, s) * d**2


# Everything. Forward pass.


def full(q: int, k: int, d: int) -> int:
    """Both products of full attention, eqs. 1 and 2."""
    return 2 * q * k * d


def local(q: int, s: int, d: int) -> int:
    """Both products of O_S, eqs. 4 and 6."""
    return 2 * q * s * d


def read_out(q: int, d: int) -> int:
    """Q_t RAF(P_i), eq. 13."""
    return q * d**2


def keys_by_values(k: int, s: int, d: int) -> int:
    """K_i^T V_i of all segments (eq. 16); K^T V is their sum. The last one is filled up."""
    return segments(k, s) * s * d**2


def linear(k: int, s: int, d: int) -> int:
    """W P_i for all segments, the linear layer of appendix A.2: m d^3."""
    return segments(k, s) * d**3


def folded_linear(k: int, s: int, d: int) -> int:
    """The same by V_i W^T before K_i^T is multiplied with it: m s d^2."""
    return segments(k, s) * s * d**2


def source_once(k: int, s: int, d: int, folded: bool) -> int:
    """What depends on the source alone."""
    return keys_by_values(k, s, d) + (folded_linear if folded else linear)(k, s, d)


def srformer(q: int, k: int, s: int, d: int, folded: bool = False) -> int:
    """All products of Algorithm 1, or of the form with W folded into V."""
    return local(q, s, d) + read_out(q, d) + source_once(k, s, d, folded)


def neuron_updates(k: int, s: int, d: int) -> int:
    """Element-wise work beside the products: memory cells m d^2 that are updated."""
    return segments(k, s) * d**2


def exponentials(q: int, keys: int) -> int:
    """Element-wise work of a softmax: q k for full attention, q s for O_S."""
    return q * keys


def projections(q: int, k: int, d: int, width: int) -> int:
    """Of Q, K, V and the output, a head's share: the same for both attentions."""
    return 2 * (q + k) * width * d


# Everything. Forward and backward pass.


def full_training(q: int, k: int, d: int, fused: bool) -> int:
    """Each product has two in its backward pass; a fused kernel computes the scores again."""
    return 3 * full(q, k, d) + (q * k * d if fused else 0)


def stored_training(q: int, k: int, s: int, d: int) -> int:
    """Algorithm 1 differentiated by torch, as with ``--srformer-form stored``."""
    return 3 * srformer(q, k, s, d)


def recomputed_training(q: int, k: int, s: int, d: int) -> int:
    """``--srformer-form recomputed``, which folds where s < d.

    Its backward pass computes the scores, K_i^T V_i and x_i again, and differentiates V_i W^T
    in place of W P_i where that is folded.
    """
    folded = s < d
    again = q * s * d + source_once(k, s, d, folded)
    return 3 * srformer(q, k, s, d, folded) + again


# Everything. Decoding.


def full_step(k: int, d: int) -> int:
    """One position of one beam, keys and values being kept."""
    return full(1, k, d)


def srformer_step(s: int, d: int) -> int:
    """One position of one beam, RAF(P_i) being kept: it does not grow with k."""
    return local(1, s, d) + read_out(1, d)


def full_decoding(steps: int, beam: int, k: int, d: int) -> int:
    """A sentence of so many steps."""
    return steps * beam * full_step(k, d)


def srformer_decoding(steps: int, beam: int, k: int, s: int, d: int, shared: bool = True) -> int:
    """A sentence; *shared*: what depends on the source is computed once and not for each beam."""
    once = (1 if shared else beam) * source_once(k, s, d, folded=False)
    return steps * beam * srformer_step(s, d) + once


# Where SRformer starts to pay.


def paper_break_even(k: int, s: int, d: int) -> float:
    """The q from which `paper_srformer` is below `paper_full`: above d for every k."""
    return k * d / (k - s)


def break_even(k: int, s: int, d: int, folded: bool) -> float:
    """The q from which `srformer` is below `full`.

    For long sources this falls to d (1 + d/s) / 2, and to d where W is folded in.
    """
    return source_once(k, s, d, folded) / (full_step(k, d) - srformer_step(s, d))


def break_even_source(q: int, s: int, d: int, folded: bool) -> float | None:
    """The k from which `srformer` is below `full`, s dividing k; None: no k is long enough."""
    saved = 2 * q - d * (2 if folded else 1 + d / s)
    return (2 * q * s + q * d) / saved if saved > 0 else None


# The whole model.


def encoder(k: int, model: Model) -> int:
    """All layers of a host's encoder: projections, attention over k positions, FFN."""
    layer = 4 * k * model.width**2 + 2 * k**2 * model.width + 2 * k * model.width * model.inner
    return model.layers * layer


def decoder_without_cross(q: int, model: Model) -> int:
    """All layers of its decoder but for the cross-attention, and the output words."""
    layer = 4 * q * model.width**2 + 2 * q**2 * model.width + 2 * q * model.width * model.inner
    return model.layers * layer + q * model.width * model.words


def decoder_step(position: int, model: Model) -> int:
    """One position of one beam but for the attention over the source, earlier ones being kept.

    Of the cross-attention's projections those of keys and values are kept, too.
    """
    layer = 6 * model.width**2 + 2 * position * model.width + 2 * model.width * model.inner
    return model.layers * layer + model.width * model.words


def cross_attention(attention: int, model: Model) -> int:
    """All layers and heads of it, by one head's count."""
    return model.layers * model.heads * attention
