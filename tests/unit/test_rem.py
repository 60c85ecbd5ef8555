"""Recurrence encoding matrices: kernels, products, the three forms, and Proposition 1."""

import math
from collections.abc import Sequence

import numpy
import pytest
import torch
from torch import Tensor

from fairseq_recur.ops import mixture, naive, rem, toeplitz
from fairseq_recur.ops.jordan import linear_rnn_heads
from fairseq_recur.ops.relative_positions import relative_attention
from tests.unit.test_ops import LENGTHS, random

# One head of each kind: a regular one each way, the cyclical pair, and dilated ones.
DECAYS = [0.9, -0.8, 0.95, 0.95, 0.7]
ANGLES = [0.0, 0.0, 0.7, 0.7, 1.9]
SINE = torch.tensor([False, False, False, True, True])
DILATIONS = [1, 2, 1, 3, 1]
ONCE = torch.ones(5, dtype=torch.int64)


def assert_same(fast: Sequence[Tensor], slow: Tensor, inputs: Sequence[Tensor]) -> None:
    """Equal values, and equal gradients; short sequences do not reach every parameter: zero."""
    weight = torch.randn_like(slow)
    expected = gradients(slow, weight, inputs)
    for out in fast:
        torch.testing.assert_close(out, slow, rtol=1e-10, atol=1e-12)
        for of_fast, of_slow in zip(gradients(out, weight, inputs), expected):
            torch.testing.assert_close(of_fast, of_slow, rtol=1e-9, atol=1e-11)


def gradients(out: Tensor, weight: Tensor, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    total = (out * weight).sum() + sum(0.0 * x.sum() for x in inputs)
    return torch.autograd.grad(total, inputs, retain_graph=True)


def parameters() -> tuple[Tensor, Tensor]:
    return tuple(torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (DECAYS, ANGLES))


def naive_matrices(
    decay: Tensor, angle: Tensor, dilations: list[int], shape: tuple[int, int, int], masked: bool,
    max_power: int,
) -> Tensor:  # fmt: skip
    queries, keys, offset = shape
    return torch.stack(
        [
            naive.rem(
                decay[h], angle[h], bool(SINE[h]), dilations[h],
                list(range(offset, offset + queries)), list(range(keys)), masked, max_power,
            )
            for h in range(len(dilations))
        ]
    )  # fmt: skip


@pytest.mark.parametrize("max_power", [0, 3])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(
    "shape",
    [(1, 1, 0), (17, 17, 0), (5, 12, 7), (1, 9, 8), (6, 9, 2), (9, 4, 0)],
    ids=["one", "square", "memory", "step", "cross", "longer"],
)
def test_matrix(shape: tuple[int, int, int], masked: bool, max_power: int) -> None:
    """One rule for square, memory and cross shapes; zero diagonal, off the grid, past the cap."""
    decay, angle = parameters()
    queries, keys, offset = shape
    kernel = rem.rem_kernel(
        decay, angle, SINE, torch.tensor(DILATIONS), offset + queries + keys, max_power
    )
    fast = toeplitz.toeplitz_matrix(kernel, None if masked else kernel, queries, keys, offset)
    slow = naive_matrices(decay, angle, DILATIONS, shape, masked, max_power)
    assert_same([fast], slow, [decay, angle])


@pytest.mark.parametrize("max_power", [0, 4])
def test_kernel_equals_numpy(max_power: int) -> None:
    decay, angle = (x.detach() for x in parameters())
    kernel = rem.rem_kernel(decay, angle, SINE, ONCE, 12, max_power)
    n = numpy.arange(12)
    turn = n * numpy.array(ANGLES)[:, None]
    expected = numpy.array(DECAYS)[:, None] ** n * numpy.where(
        SINE.numpy()[:, None], numpy.sin(turn), numpy.cos(turn)
    )
    expected[:, (n == 0) | ((n > max_power) & (max_power > 0))] = 0
    numpy.testing.assert_allclose(kernel.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("dilation", [1, 2, 5])
def test_dilated_matrix_is_the_kronecker_form(dilation: int) -> None:
    """P kron I_d, cut to the first T rows and columns (section 3, "Dilated REM variants")."""
    decay, angle = (x.detach() for x in parameters())
    length = 23
    factor = torch.full((5,), dilation)
    kernel = rem.rem_kernel(decay, angle, SINE, factor, length)
    plain = rem.rem_kernel(decay, angle, SINE, ONCE, length)
    dilated = toeplitz.toeplitz_matrix(kernel, None, length, length)
    small = toeplitz.toeplitz_matrix(plain, None, length, length)
    identity = torch.eye(dilation, dtype=torch.float64)
    for matrix, head in zip(dilated, small):
        assert torch.equal(matrix, torch.kron(head, identity)[:length, :length])


@pytest.mark.parametrize("length", LENGTHS)
def test_products_equal_the_linear_recurrence(length: int) -> None:
    """P V, dense and chunked, is h_t = lambda (h_{t-1} + v_{t-1}), or a part of its complex kin."""
    decay, angle = parameters()
    values = random(2, 5, length, 3)
    kernel = rem.rem_kernel(decay, angle, SINE, ONCE, length)
    dense = toeplitz.toeplitz_matrix(kernel, None, length, length) @ values
    chunked = rem.recurrent_product(decay, angle, SINE, values, chunk=16)
    slow = []
    for b in range(2):
        heads = []
        for h in range(5):
            if ANGLES[h] == 0:
                states = naive.regular_recurrence(decay[h], list(values[b, h]))
            else:
                both = naive.cyclical_recurrence(decay[h], angle[h], list(values[b, h]))
                states = both[int(SINE[h])]
            heads.append(torch.stack(states))
        slow.append(torch.stack(heads))
    regular = ANGLES.index(0.7)
    slow = torch.stack(slow)
    # The angle of a regular head is no parameter.
    for heads, inputs in (
        (slice(regular), [decay, values]),
        (slice(regular, 5), [decay, angle, values]),
    ):
        assert_same([dense[:, heads], chunked[:, heads]], slow[:, heads], inputs)


@pytest.mark.parametrize("chunk", [4, 64])
@pytest.mark.parametrize("max_power", [1, 5, 40])
@pytest.mark.parametrize("length", LENGTHS)
def test_banded_product(length: int, max_power: int, chunk: int) -> None:
    decay, angle = parameters()
    values = random(2, 5, length, 3)
    kernel = rem.rem_kernel(decay, angle, SINE, ONCE, max_power + 1, max_power)
    whole = rem.rem_kernel(decay, angle, SINE, ONCE, length, max_power)
    dense = toeplitz.toeplitz_matrix(whole, None, length, length) @ values
    fast = toeplitz.banded_product(kernel, values, chunk)
    assert_same([fast], dense, [decay, angle, values])


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_forms_of_the_mixture(length: int, padded: bool, masked: bool) -> None:
    """One map and two outputs equal eq. 4 as loops; ordinary heads are plain attention."""
    decay, angle = parameters()
    mu = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    query, key, value = (random(2, 3, length, 2) for _ in range(3))
    real = [length, (length + 1) // 2 if padded else length]
    padding = torch.stack([torch.arange(length) >= n for n in real])
    mask = torch.zeros(2, 1, length, length, dtype=torch.float64)
    mask = mask.masked_fill(padding[:, None, None, :], -1e300)
    if masked:
        mask = mask.masked_fill(torch.ones(length, length).triu(1).bool(), -1e300)
    gate = torch.cat([torch.sigmoid(mu).expand(2), mu.new_zeros(1)]).view(3, 1, 1)
    mixing = [1, 3]  # a regular head and a dilated sine head; the third is ordinary
    kernel = rem.rem_kernel(
        decay[mixing], angle[mixing], SINE[mixing], torch.tensor(DILATIONS)[mixing], length
    )
    matrix = toeplitz.toeplitz_matrix(kernel, None if masked else kernel, length, length)
    visible = value.masked_fill(padding[:, None, :, None], 0.0)
    whole = torch.nn.functional.pad(matrix, (0, 0, 0, 0, 0, 1))
    one, weights = mixture.mixed_map(query, key, visible, whole, gate, mask)
    two = mixture.mixed_outputs(query, key, visible, matrix @ visible[:, :2], gate, mask)
    torch.testing.assert_close(weights @ visible, one)
    for b, n in list(enumerate(real))[padded:][:1]:
        heads = []
        for h in range(3):
            plain = torch.zeros(n, n, dtype=torch.float64)
            p = matrix[h, :n, :n] if h < 2 else plain
            vectors = (list(x[b, h, :n]) for x in (query, key, value))
            heads.append(naive.rsa_head(*vectors, p, gate[h, 0, 0], masked))
        fast = [one[b, :, :n], two[b, :, :n]]
        assert_same(fast, torch.stack(heads), [query, key, value, mu, decay, angle])


@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_proposition_1(width: int, dilation: int) -> None:
    """Heads reproduce the states of a linear RNN, and dilated those of a dilated one."""
    w_h = torch.randn(width, width, dtype=torch.float64) / width**0.5
    inputs = torch.randn(60, width, dtype=torch.float64)
    heads = linear_rnn_heads(w_h)
    factor = torch.full(heads.decay.shape, dilation)
    kernel = rem.rem_kernel(heads.decay, heads.angle, heads.sine, factor, 60)
    matrix = toeplitz.toeplitz_matrix(kernel, None, 60, 60)
    found = inputs + torch.einsum("kts,kcd,sd->tc", matrix, heads.mixing, inputs)
    expected = naive.linear_rnn(w_h, list(inputs), dilation)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_proposition_1_counts_its_heads() -> None:
    """r real eigenvalues and s pairs give r + 2 s heads; zeros give none (Proposition 2)."""
    blocks = torch.block_diag(
        torch.tensor([[0.9]]), torch.tensor([[-0.5]]),
        0.8 * torch.tensor([[math.cos(1.0), math.sin(1.0)], [-math.sin(1.0), math.cos(1.0)]]),
        torch.tensor([[0.0]]),
    ).double()  # fmt: skip
    basis = torch.randn(5, 5, dtype=torch.float64)
    heads = linear_rnn_heads(basis @ blocks @ torch.linalg.inv(basis))
    assert len(heads.decay) == 4 and int(heads.sine.sum()) == 1
    assert sorted(heads.decay.tolist()) == pytest.approx([-0.5, 0.8, 0.8, 0.9], abs=1e-6)


def test_proposition_1_needs_distinct_eigenvalues() -> None:
    with pytest.raises(ValueError, match="distinct"):
        linear_rnn_heads(torch.tensor([[0.5, 1.0], [0.0, 0.5]], dtype=torch.float64))
    with pytest.raises(ValueError, match="no recurrence"):
        linear_rnn_heads(torch.zeros(3, 3, dtype=torch.float64))


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("length", LENGTHS)
def test_relative_attention(length: int, masked: bool) -> None:
    query, key, value = (random(2, 2, length, 3) for _ in range(3))
    tables = random(2, 9, 3), random(2, 9, 3)
    mask = None
    if masked:
        hidden = torch.ones(length, length).triu(1).bool()
        mask = torch.zeros(length, length, dtype=torch.float64).masked_fill(hidden, -1e300)
    fast, weights = relative_attention(query, key, value, *tables, mask)
    slow = torch.stack(
        [
            torch.stack(
                [
                    naive.relative_head(
                        list(query[b, h]), list(key[b, h]), list(value[b, h]),
                        tables[0][h], tables[1][h], masked,
                    )
                    for h in range(2)
                ]
            )
            for b in range(2)
        ]
    )  # fmt: skip
    assert_same([fast], slow, [query, key, value, *tables])
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


def test_gradients_by_finite_differences() -> None:
    decay, angle = parameters()
    values = random(1, 5, 20, 2)

    def product(decay: Tensor, angle: Tensor, values: Tensor) -> Tensor:
        return rem.recurrent_product(decay, angle, SINE, values, chunk=6)

    assert torch.autograd.gradcheck(product, (decay, angle, values))
