"""Recurrence encoding matrices: kernels, dilation, Proposition 1; `test_ops.py` has the loops."""

import math
import random
from collections.abc import Callable

import numpy
import pytest
import torch
from torch import Tensor

from fairseq_recur.ops import naive, rem, toeplitz

# One head of each kind: a regular one each way, the cyclical pair, and dilated ones.
DECAYS = [0.9, -0.8, 0.95, 0.95, 0.7]
ANGLES = [0.0, 0.0, 0.7, 0.7, 1.9]
SINE = torch.tensor([False, False, False, True, True])
ONCE = torch.ones(5, dtype=torch.int64)


def parameters() -> tuple[Tensor, Tensor]:
    return tuple(torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (DECAYS, ANGLES))


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


@pytest.mark.parametrize("length", [1, 4, 5, 6, 12])
def test_what_no_head_has_needs_no_tensor(length: int) -> None:
    """Angles, sines and dilations, if all heads are regular; at the highest power and around it."""
    decay, angle = (x.detach() for x in parameters())
    zero = torch.zeros_like(angle)
    for turn, given in (
        (zero, (None, None, None)), (zero, (None, None, ONCE)), (angle, (angle, None, None)),
    ):  # fmt: skip
        whole = rem.rem_kernel(decay, turn, zero.bool(), ONCE, length, 4)
        assert torch.equal(rem.rem_kernel(decay, *given, length, 4), whole)


@pytest.mark.parametrize("offset", [-7, -5, -1, 0, 3, 9])
@pytest.mark.parametrize("queries, keys", [(1, 1), (2, 5), (4, 1)])
@pytest.mark.parametrize("both", [True, False])
def test_any_two_sequences(offset: int, queries: int, keys: int, both: bool) -> None:
    """Entry by entry, also where all keys are later, or farther than the kernels reach."""
    past, future = torch.randn(2, 4), torch.randn(2, 3) if both else None
    matrix = toeplitz.toeplitz_matrix(past, future, queries, keys, offset)
    assert matrix.size() == (2, queries, keys)
    assert toeplitz.at_lags(past, 3, 2).size() == (2, 0)
    for i in range(queries):
        for j in range(keys):
            lag = offset + i - j
            kernel = past if lag >= 0 else future
            known = kernel is not None and abs(lag) < kernel.size(1)
            expected = kernel[:, abs(lag)] if known else torch.zeros(2)
            assert torch.equal(matrix[:, i, j], expected)


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


@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_proposition_1(width: int, dilation: int) -> None:
    """Heads reproduce the states of a linear RNN, and dilated those of a dilated one."""
    w_h = torch.randn(width, width, dtype=torch.float64) / width**0.5
    inputs = torch.randn(60, width, dtype=torch.float64)
    heads = naive.linear_rnn_heads(w_h)
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
    heads = naive.linear_rnn_heads(basis @ blocks @ torch.linalg.inv(basis))
    assert len(heads.decay) == 4 and int(heads.sine.sum()) == 1
    assert sorted(heads.decay.tolist()) == pytest.approx([-0.5, 0.8, 0.8, 0.9], abs=1e-6)


def test_ranks_of_the_mixing_matrices() -> None:
    """G of a regular head has rank 1, those of a pair of cyclical heads have rank 2."""
    w_h = torch.randn(7, 7, dtype=torch.float64)
    heads = naive.linear_rnn_heads(w_h)
    cyclical = heads.angle != 0
    assert cyclical.any() and not cyclical.all()
    ranks = torch.linalg.matrix_rank(heads.mixing, rtol=1e-9)
    assert torch.equal(ranks, torch.where(cyclical, 2, 1))


def gap_to_the_linear_rnn(
    activation: Callable[[float], float], recurrent: float, bias: float, steps: int
) -> tuple[list[float], list[float]]:
    """u_t and g_t - h_t of eqs. 5 and 7 from g_0 = h_0 = 0, with normal inputs of weight 0.7."""
    generator = random.Random(3)
    g = h = 0.0
    inputs, gaps = [], []
    for _ in range(steps):
        x = 0.7 * generator.gauss(0, 1) if bias == 0 else 0.0
        inputs.append(recurrent * g + x + bias)
        g, h = activation(inputs[-1]), recurrent * h + x + bias
        gaps.append(g - h)
    return inputs, gaps


@pytest.mark.parametrize("recurrent", [0.0, -0.5, 0.9])
@pytest.mark.parametrize("activation", [math.tanh, lambda u: 0.5 + math.tanh(u)])
def test_proposition_3(activation: Callable[[float], float], recurrent: float) -> None:
    """The gap is at most what the proof adds up at each step, and its mean square the bound."""
    inputs, gaps = gap_to_the_linear_rnn(activation, recurrent, 0.0, 4000)
    most = 0.0
    for u, gap in zip(inputs, gaps):
        most = abs(recurrent) * most + abs(activation(0.0)) + u**2 / 2
        assert abs(gap) <= most + 1e-12
    alpha, beta = (sum(abs(u) ** n for u in inputs) / len(inputs) for n in (2, 4))
    bound = (1 - abs(recurrent)) ** -2 * (1 + alpha + beta / 4)
    assert 0 < sum(gap**2 for gap in gaps) / len(gaps) <= bound


def test_proposition_3_needs_the_square() -> None:
    """The proof ends with (1 - |w|)^-2; with (1 - |w|)^-1, as printed, its steps do not hold."""
    inputs, gaps = gap_to_the_linear_rnn(lambda u: 0.9 + u, 0.5, -0.45, 200)
    assert max(map(abs, inputs[100:])) < 1e-12  # so alpha = beta = 0
    assert (1 - 0.5) ** -1 < gaps[-1] ** 2 < (1 - 0.5) ** -2


def test_proposition_1_needs_distinct_eigenvalues() -> None:
    with pytest.raises(ValueError, match="distinct"):
        naive.linear_rnn_heads(torch.tensor([[0.5, 1.0], [0.0, 0.5]], dtype=torch.float64))
    with pytest.raises(ValueError, match="no recurrence"):
        naive.linear_rnn_heads(torch.zeros(3, 3, dtype=torch.float64))
