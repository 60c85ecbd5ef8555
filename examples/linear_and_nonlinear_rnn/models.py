"""The three models, batched: N models with separate parameters, one per segment.

A model is a class with two methods. `draw(count, generator)` returns the initial parameters, a dict
of tensors with leading axis N. `predict(parameters, inputs)` maps (N, T, 2) to (N, T, 2). There is
no output projection: as in eq. 9, the state of the upper layer is the prediction.
"""

import math
from collections.abc import Callable

import torch
from synthetic import LAYERS, WIDTH
from torch import Tensor

from fairseq_recur.ops.attention import dot_product_attention
from fairseq_recur.ops.mixture import mixed_outputs
from fairseq_recur.ops.rem import recurrent_product

Parameters = dict[str, Tensor]
# Rows per block of the recurrent product; the result does not depend on it.
CHUNK = 10


def identity(values: Tensor) -> Tensor:
    """The activation of the linear RNN."""
    return values


def uniform(generator: torch.Generator, *shape: int) -> Tensor:
    """Draw from [-1/2, 1/2]: absolute row sums of W_h are then at most 1, so no RNN explodes."""
    return torch.rand(*shape, generator=generator) - 0.5


class RNN:
    """Eq. 9 with alpha = 1: h_t = activation(W_h h_{t-1} + W_z z_t + b), twice."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        self.activation = activation

    def draw(self, count: int, generator: torch.Generator) -> Parameters:
        """Draw 10 parameters per layer; the numbers do not depend on the activation."""
        parameters = {}
        for layer in range(LAYERS):
            parameters[f"{layer}.recurrent"] = uniform(generator, count, WIDTH, WIDTH)
            parameters[f"{layer}.input"] = uniform(generator, count, WIDTH, WIDTH)
            parameters[f"{layer}.bias"] = uniform(generator, count, WIDTH)
        return parameters

    def predict(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Map inputs (N, T, 2) to predictions (N, T, 2)."""
        below = inputs
        for layer in range(LAYERS):
            drive = affine(below, parameters[f"{layer}.input"], parameters[f"{layer}.bias"])
            recurrent = parameters[f"{layer}.recurrent"]
            state = torch.zeros_like(drive[:, 0]).unsqueeze(-1)
            states = []
            for x in drive.unsqueeze(-1).unbind(1):
                state = self.activation(torch.baddbmm(x, recurrent, state))
                states.append(state)
            below = torch.stack(states, dim=1).squeeze(-1)
        return below


class RSA:
    """The linear RNN combined with self-attention: multi-head RSA (eq. 4) replaces the RNN.

        z_t = W_x x_t + b + W_O [head_1, head_2]_t
        head_k = [(1 - g) softmax(Q_k K_k') + g P_k] V_k

    It is causal and has total width 2: two heads of width 1, and one gate g per layer. At g = 1,
    two regular heads represent every linear RNN of width 2 whose W_h has two distinct real
    eigenvalues (Proposition 1); one cyclical pair represents some of those with complex ones.
    """

    def __init__(self, kind: str, gate: float) -> None:
        self.kind, self.gate = kind, gate

    def draw(self, count: int, generator: torch.Generator) -> Parameters:
        """Draw 25 parameters per layer: REMs as in the paper, projections as for the RNNs."""
        parameters = {}
        for layer in range(LAYERS):
            for name in ("query", "key", "value", "output", "input"):
                parameters[f"{layer}.{name}"] = uniform(generator, count, WIDTH, WIDTH)
            parameters[f"{layer}.bias"] = uniform(generator, count, WIDTH)
            if self.kind == "regular":
                parameters[f"{layer}.eta"] = torch.tensor([1.5, -1.5]).repeat(count, 1)
            else:
                parameters[f"{layer}.nu"] = torch.full((count, 1), 1.5)
                parameters[f"{layer}.theta"] = torch.full((count, 1), math.pi / 4)
            parameters[f"{layer}.mu"] = torch.full((count, 1), self.gate)
        return parameters

    def predict(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Map inputs (N, T, 2) to predictions (N, T, 2)."""
        below = inputs
        for layer in range(LAYERS):
            own = {
                name.partition(".")[2]: values
                for name, values in parameters.items()
                if name.startswith(f"{layer}.")
            }
            below = self.layer(own, below)
        return below

    def layer(self, own: Parameters, inputs: Tensor) -> Tensor:
        """Apply one layer: (N, T, 2) to (N, T, 2)."""
        query, key, value = (
            (inputs @ own[name].transpose(1, 2)).transpose(1, 2).unsqueeze(-1)  # (N, H, T, 1)
            for name in ("query", "key", "value")
        )
        length = inputs.size(1)
        mask = inputs.new_full((length, length), -math.inf).triu(1)
        gate = torch.sigmoid(own["mu"]).view(-1, 1, 1, 1)
        local = dot_product_attention(query, key, value, mask)
        heads = mixed_outputs(local, self.recurrent(own, value), gate)
        mixed = heads.squeeze(-1).transpose(1, 2) @ own["output"].transpose(1, 2)
        return affine(inputs, own["input"], own["bias"]) + mixed

    def recurrent(self, own: Parameters, value: Tensor) -> Tensor:
        """Compute P V, (N, H, T, 1); the heads of all models are passed as N H heads."""
        if self.kind == "regular":
            decay = torch.tanh(own["eta"])
            angle, sine = torch.zeros_like(decay), [False, False]
        else:
            decay = torch.sigmoid(own["nu"]).expand(-1, 2)
            angle, sine = own["theta"].expand(-1, 2), [False, True]
        kinds = torch.tensor(sine).repeat(len(value))
        product = recurrent_product(
            decay.flatten(), angle.flatten(), kinds, value.flatten(0, 1).unsqueeze(0), CHUNK
        )
        return product.view_as(value)


def affine(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute W x_t + b: (N, T, 2), (N, 2, 2), (N, 2) to (N, T, 2)."""
    return torch.baddbmm(bias.unsqueeze(1), inputs, weight.transpose(1, 2))
