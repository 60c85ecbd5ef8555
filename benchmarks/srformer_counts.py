"""The number of multiply-adds of SRformer's cross-attention: one formula per function.

The letters are those of Long et al. 2023: q target positions, k source positions, d width of a
head, s segment size, m = ceil(k / s) segments, C width of the model. Unless stated otherwise, a
function counts one head of one layer. A multiply-add is two FLOPs. With fewer queries than segments
the neurons skip some segments (docs/srformer.md), which is not subtracted here.

`tests/unit/test_srformer_flops.py` compares the formulas with torch's FLOP counter.
"""

from typing import NamedTuple


class Model(NamedTuple):
    """Sizes of an encoder-decoder: C, heads, layers per side, width of the FFN, vocabulary."""

    width: int
    heads: int
    layers: int
    inner: int
    words: int


def segments(k: int, s: int) -> int:
    """M = ceil(k / s)."""
    return -(-k // s)


# As counted in the paper: Table 1.


def paper_full(q: int, k: int, d: int) -> int:
    """Q k d, Table 1: the scores Q K^T (eq. 1), or the sum over V (eq. 2), not both."""
    return q * k * d


def paper_segmented(q: int, s: int, d: int) -> int:
    """Q s d, Table 1: one of the two products of eqs. 4 and 6."""
    return q * s * d


def paper_srformer(q: int, k: int, s: int, d: int) -> int:
    """Q s d + k d^2, Table 1: the second term is K_i^T V_i of all segments (eq. 16).

    Section 3.5 omits Q_t P (eq. 13), because q << k, and the neuron with its linear layer.
    """
    return paper_segmented(q, s, d) + k * d**2


def paper_full_memory(q: int, k: int, d: int) -> int:
    """Q k + k d numbers, Table 1: the weights, and the keys or the values, not both."""
    return q * k + k * d


def paper_srformer_memory(q: int, k: int, s: int, d: int) -> int:
    """Q s + k d + m d^2 numbers, Table 1."""
    return q * s + k * d + segments(k, s) * d**2


# The full count. Forward pass.


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
    """K_i^T V_i of all segments (eq. 16); K^T V is their sum. The last segment is padded."""
    return segments(k, s) * s * d**2


def linear(k: int, s: int, d: int) -> int:
    """W P_i for all segments, the linear layer of appendix A.2: m d^3."""
    return segments(k, s) * d**3


def folded_linear(k: int, s: int, d: int) -> int:
    """The same, as V_i W^T before the product with K_i^T: m s d^2."""
    return segments(k, s) * s * d**2


def source_once(k: int, s: int, d: int, folded: bool) -> int:
    """Everything that depends only on the source."""
    return keys_by_values(k, s, d) + (folded_linear if folded else linear)(k, s, d)


def srformer(q: int, k: int, s: int, d: int, folded: bool = False) -> int:
    """All products of Algorithm 1 or, if *folded*, of the form with W folded into V."""
    return local(q, s, d) + read_out(q, d) + source_once(k, s, d, folded)


def neuron_updates(k: int, s: int, d: int) -> int:
    """Element-wise work in addition to the products: m d^2 memory cells are updated."""
    return segments(k, s) * d**2


def exponentials(q: int, keys: int) -> int:
    """Element-wise work of a softmax: q k for full attention, q s for O_S."""
    return q * keys


def projections(q: int, k: int, d: int, width: int) -> int:
    """Projections of Q, K, V and the output, per head: the same for both attentions."""
    return 2 * (q + k) * width * d


# The full count. Forward and backward pass.


def full_training(q: int, k: int, d: int, fused: bool) -> int:
    """Each product has two in its backward pass; a fused kernel recomputes the scores."""
    return 3 * full(q, k, d) + (q * k * d if fused else 0)


def stored_training(q: int, k: int, s: int, d: int) -> int:
    """Algorithm 1 differentiated by torch, as with ``--srformer-form stored``."""
    return 3 * srformer(q, k, s, d)


def recomputed_training(q: int, k: int, s: int, d: int) -> int:
    """The form ``--srformer-form recomputed``, which folds if s < d.

    Its backward pass recomputes the scores, K_i^T V_i and x_i. If folded, it differentiates
    V_i W^T instead of W P_i.
    """
    folded = s < d
    again = q * s * d + source_once(k, s, d, folded)
    return 3 * srformer(q, k, s, d, folded) + again


# The full count. Decoding.


def full_step(k: int, d: int) -> int:
    """One position of one beam, with cached keys and values."""
    return full(1, k, d)


def srformer_step(s: int, d: int) -> int:
    """One position of one beam, with cached RAF(P_i): it does not grow with k."""
    return local(1, s, d) + read_out(1, d)


def full_decoding(steps: int, beam: int, k: int, d: int) -> int:
    """A sentence of the given number of steps."""
    return steps * beam * full_step(k, d)


def srformer_decoding(steps: int, beam: int, k: int, s: int, d: int, shared: bool = True) -> int:
    """A sentence; if *shared*, the source terms are computed once, not once per beam."""
    once = (1 if shared else beam) * source_once(k, s, d, folded=False)
    return steps * beam * srformer_step(s, d) + once


# Break-even points.


def paper_break_even(k: int, s: int, d: int) -> float:
    """The q from which `paper_srformer` is below `paper_full`: more than d for every k."""
    return k * d / (k - s)


def break_even(k: int, s: int, d: int, folded: bool) -> float:
    """The q from which `srformer` is below `full`.

    For long sources this approaches d (1 + d/s) / 2, or d if W is folded in.
    """
    return source_once(k, s, d, folded) / (full_step(k, d) - srformer_step(s, d))


def break_even_source(q: int, s: int, d: int, folded: bool) -> float | None:
    """The k from which `srformer` is below `full`, if s divides k; None if there is no such k."""
    saved = 2 * q - d * (2 if folded else 1 + d / s)
    return (2 * q * s + q * d) / saved if saved > 0 else None


# The whole model.


def encoder(k: int, model: Model) -> int:
    """All encoder layers: projections, attention over k positions, FFN."""
    layer = 4 * k * model.width**2 + 2 * k**2 * model.width + 2 * k * model.width * model.inner
    return model.layers * layer


def decoder_without_cross(q: int, model: Model) -> int:
    """All decoder layers without the cross-attention, and the output projection."""
    layer = 4 * q * model.width**2 + 2 * q**2 * model.width + 2 * q * model.width * model.inner
    return model.layers * layer + q * model.width * model.words


def decoder_step(position: int, model: Model) -> int:
    """One position of one beam without the attention over the source, earlier ones cached.

    The projections of keys and values in the cross-attention are cached, too.
    """
    layer = 6 * model.width**2 + 2 * position * model.width + 2 * model.width * model.inner
    return model.layers * layer + model.width * model.words


def cross_attention(attention: int, model: Model) -> int:
    """All layers and heads of the cross-attention, given the count of one head."""
    return model.layers * model.heads * attention
