"""ProbSparse self-attention: masks in half precision, and where it has a map."""

import pytest
import torch
from torch import nn

from fairseq_recur.modules.context import Context, additive_mask, causal_mask
from fairseq_recur.modules.mixture import Mixture
from fairseq_recur.modules.parts import SELF_ATTENTION
from fairseq_recur.ops.sparse_attention import most
from tests.unit.test_self_attention import attention

LENGTH = 6


def attend(module: nn.Module, mixture: Mixture | None, dtype: torch.dtype) -> torch.Tensor:
    """The map of queries whose scores of later keys are beyond the range of float16."""
    query = torch.full((1, 8, LENGTH, 64), 110.0, dtype=dtype)
    key = query * torch.tensor([-1.0] * 3 + [1.0] * 3, dtype=dtype).view(1, 1, -1, 1)
    future = causal_mask(LENGTH, LENGTH, query)
    context = Context(mask=additive_mask(future, None, dtype))
    more = () if mixture is None else (mixture,)
    call = module.attend if mixture is None else module.attend_mixed
    return call(query, key, torch.zeros_like(query), context, True, *more)[1]


@pytest.mark.parametrize("mixture", ["none", "rsa"])
def test_a_mask_in_half_precision_hides_keys_of_large_scores(mixture: str) -> None:
    module = attention("prob_sparse", "encoder", encoder_self_attention_mixture=mixture).float()
    module.causal, module.factor = True, LENGTH  # so that all queries attend
    half, whole = (
        attend(module, module.mixture, dtype) for dtype in (torch.float16, torch.float32)
    )
    if mixture == "none":
        assert not half.triu(1).any()
    torch.testing.assert_close(half, whole)


@pytest.mark.parametrize("part", SELF_ATTENTION)
@pytest.mark.parametrize("rows", ["chosen", "all"])
def test_the_options_say_whether_a_module_has_a_map(part: str, rows: str) -> None:
    module = attention(part, "encoder", prob_sparse_mixed_rows=rows)
    expected = part != "relative" and (part, rows) != ("prob_sparse", "all")
    assert module.has_map == expected


def test_the_number_of_sampled_keys() -> None:
    """c ceil(ln n), as in Informer's code, and not more than there are (Zhou et al. 2021, 3.2)."""
    found = [most(n, 5) for n in (0, 1, 2, 7, 8, 24, 96, 720)]
    assert found == [0, 1, 2, 7, 8, 20, 25, 35] and most(96, 1) == 5
