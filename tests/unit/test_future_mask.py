"""A decoder's mask is recognised, any other is not, and what is recognised goes to torch's own rule."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from fairseq_recur.modules import rsa
from fairseq_recur.modules.future_mask import FutureMask
from tests.unit.test_language_model import SMALL_LM
from tests.unit.test_model_properties import sentences


def future(length: int) -> Tensor:
    return torch.full((length, length), -math.inf).triu(1)


def test_fairseqs_mask_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer and batch gets a new square of one buffer; the buffer is read again if it is new."""
    mask, buffer = FutureMask(), future(9)
    reads: list[None] = []
    equal = torch.equal
    monkeypatch.setattr(torch, "equal", lambda a, b: reads.append(None) or equal(a, b))
    assert all(mask.recognises(buffer[:n, :n]) for n in (9, 5, 9, 1))
    assert len(reads) == 1
    assert mask.recognises(future(9)) and len(reads) == 2


def others() -> Iterator[Tensor]:
    """Masks that are something else, or that hide the future in another way."""
    yield torch.zeros(4, 4)
    yield future(4).t()
    yield future(5)[1:, :4]  # a key later, for each query
    yield future(5)[:4, 1:]  # the query's own position hidden, too
    yield future(4)[:3]  # not square
    yield future(4).expand(4, 4, 4)
    yield future(4).clamp(min=-1e4)
    yield future(4) < 0
    biased, nan = future(4), future(4)
    biased[2, 1], nan[2, 1] = 0.5, math.nan
    yield from (biased, nan)


@pytest.mark.parametrize("other", others())
def test_other_masks_are_not(other: Tensor) -> None:
    mask = FutureMask()
    assert not mask.recognises(other)
    assert mask.recognises(future(9)) and not mask.recognises(other)


def test_a_mask_that_was_changed_is_not() -> None:
    mask, buffer = FutureMask(), future(4)
    assert mask.recognises(buffer)
    buffer[3, 0] = -math.inf
    assert not mask.recognises(buffer) and not mask.recognises(buffer[:, :])


def test_other_squares_of_the_same_memory_are_not() -> None:
    mask, buffer = FutureMask(), future(8)
    assert mask.recognises(buffer[:4, :4])
    assert mask.recognises(buffer)  # more than was read, but read now
    buffer[7, 0] = 1.0
    assert mask.recognises(buffer[:4, :4]) and not mask.recognises(buffer)
    assert not mask.recognises(buffer[:4:2, :4:2].t())


def test_no_mask_and_those_that_cannot_be_read_or_count_no_changes() -> None:
    mask = FutureMask()
    assert not mask.recognises(None)
    assert not mask.recognises(future(3).to("meta"))
    with torch.inference_mode():
        assert not mask.recognises(future(3))


@pytest.mark.parametrize("form", ["dense", "chunked"])
def test_a_language_model_uses_the_rule(
    form: str, make_model: Callable[..., nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each layer, of texts of one length; padding needs a mask. Both give the same."""
    model = make_model("rsa_transformer_lm", *SMALL_LM, "--rsa-form", form).double().eval()
    causal: list[bool] = []
    outputs = rsa.mixed_outputs
    monkeypatch.setattr(
        rsa, "mixed_outputs", lambda *a: causal.append((a[5] is None, a[7])) or outputs(*a)
    )
    batch = sentences([7, 4], "right")
    padded, _ = model(batch)
    alone, _ = model(batch[:1])
    assert causal == [(False, False)] * 2 + [(True, True)] * 2
    torch.testing.assert_close(alone[0], padded[0], rtol=1e-9, atol=1e-11)
