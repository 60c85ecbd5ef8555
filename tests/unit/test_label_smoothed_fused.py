"""The fused label-smoothed criterion equals fairseq's."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fairseq import utils
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.data import Dictionary
from fairseq.distributed import LegacyDistributedDataParallel, ModuleProxyWrapper
from fairseq.models import BaseFairseqModel, FairseqDecoder

from fairseq_recur.criterions.label_smoothed_fused import returns_logits
from tests.conftest import SMALL

Loss = tuple[torch.Tensor, int, dict[str, Any]]
STOCK, FUSED = "label_smoothed_cross_entropy", "label_smoothed_cross_entropy_fused"
LANGUAGE_MODEL = "--decoder-layers 1 --decoder-embed-dim 16 --decoder-attention-heads 2".split()


def criterion(name: str, dictionary: Dictionary, *settings: Any) -> Any:
    return CRITERION_REGISTRY[name](Namespace(target_dictionary=dictionary), False, *settings)


@pytest.fixture
def sample(dictionary: Dictionary) -> dict[str, Any]:
    """Three sentences, two of them padded."""
    source, target = torch.randint(4, len(dictionary), (2, 3, 9))
    target[1, 6:] = target[2, 2:] = dictionary.pad()
    net_input = {
        "src_tokens": source,
        "src_lengths": torch.tensor([9, 9, 9]),
        "prev_output_tokens": target.roll(1, 1),
    }
    return {"net_input": net_input, "target": target, "ntokens": 17}


def both(model: torch.nn.Module, sample: Any, dictionary: Dictionary, *settings: Any) -> list[Loss]:
    return [criterion(name, dictionary, *settings)(model, sample) for name in (STOCK, FUSED)]


def gradients(model: torch.nn.Module, loss: torch.Tensor) -> list[torch.Tensor]:
    used = [p for p in model.parameters() if p.requires_grad]
    return [g for g in torch.autograd.grad(loss, used, allow_unused=True) if g is not None]


@pytest.mark.parametrize("settings", [(0.1,), (0.0,), (0.3, 2), (0.1, 1, True)], ids=str)
def test_loss_and_gradients_are_fairseqs(
    make_model: Callable,
    dictionary: Dictionary,
    sample: dict[str, Any],
    settings: tuple,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In float64, which fairseq's softmax would round to float32."""
    monkeypatch.setattr(utils, "log_softmax", lambda x, dim, **_: torch.log_softmax(x, dim))
    model = make_model("transformer_biarn", *SMALL, "--dropout", "0").double()
    stock, fused = both(model, sample, dictionary, *settings)
    for key, value in stock[2].items():
        torch.testing.assert_close(fused[2][key], value, msg=key)
    for scale in (1, 128):  # without and with a loss scale
        pairs = [
            gradients(model, loss[0] * scale) for loss in both(model, sample, dictionary, *settings)
        ]
        torch.testing.assert_close(pairs[1], pairs[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_sums_in_float32(dictionary: Dictionary, dtype: torch.dtype) -> None:
    """Large logits, as one gets them with half precision; fairseq computes in float32, too."""
    logits = (30 * torch.randn(2, 9, len(dictionary))).to(dtype).requires_grad_()
    target = torch.randint(4, len(dictionary), (2, 9))

    class Outputs(BaseFairseqModel):
        def __init__(self) -> None:
            super().__init__()
            self.decoder = FairseqDecoder(dictionary)

        def forward(self) -> tuple[torch.Tensor, None]:
            return logits, None

    model, sample = Outputs(), {"net_input": {}, "target": target, "ntokens": 18}
    (stock, *_), (fused, *_) = both(model, sample, dictionary, 0.0)
    assert fused.dtype == torch.float32
    torch.testing.assert_close(fused, stock)
    for scale in (1, 1024):
        of_stock, of_fused = (
            torch.autograd.grad(scale * loss, logits, retain_graph=True)[0]
            for loss in (stock, fused)
        )
        assert of_fused.dtype == dtype
        torch.testing.assert_close(of_fused, of_stock, rtol=0.02, atol=6e-7)


def test_what_it_cannot_fuse_is_fairseqs(
    make_model: Callable, dictionary: Dictionary, sample: dict[str, Any]
) -> None:
    """A loss per token, and an adaptive softmax."""
    sample["net_input"] = {"src_tokens": sample["net_input"]["prev_output_tokens"]}
    model = make_model("transformer_lm", *LANGUAGE_MODEL).eval()
    per_token = [
        criterion(name, dictionary, 0.1)(model, sample, reduce=False)[0] for name in (STOCK, FUSED)
    ]
    assert per_token[0].numel() == 27 and torch.equal(*per_token)
    adaptive = make_model(
        "transformer_lm", *LANGUAGE_MODEL, "--adaptive-softmax-cutoff", "20"
    ).eval()
    stock, fused = both(adaptive, sample, dictionary, 0.1)
    assert torch.equal(stock[0], fused[0])


@pytest.mark.parametrize("owner", ["model", "decoder"])
def test_an_output_that_is_no_logits_is_left_to_fairseq(
    make_model: Callable,
    dictionary: Dictionary,
    sample: dict[str, Any],
    owner: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As that of fairseq's pointer-generator, whose output is normalized."""
    model = make_model("transformer_biarn", *SMALL, "--dropout", "0")
    forward = model.forward

    def normalized(net_output: Any, log_probs: bool, sample: Any = None) -> torch.Tensor:
        return net_output[0].log() if log_probs else net_output[0]

    monkeypatch.setattr(model, "forward", lambda **given: (forward(**given)[0].softmax(-1), None))
    changed = model if owner == "model" else model.decoder
    monkeypatch.setattr(changed, "get_normalized_probs", normalized)
    stock, fused = both(model, sample, dictionary, 0.1)
    assert torch.equal(stock[0], fused[0])


@pytest.mark.parametrize("arch", ["transformer_biarn", "rsa_transformer_lm", "transformer_lm"])
def test_logits_are_known_also_in_a_wrapper_of_several_processes(
    make_model: Callable, arch: str
) -> None:
    model = make_model(arch, *(LANGUAGE_MODEL if "lm" in arch else SMALL))
    assert returns_logits(model)
    assert returns_logits(ModuleProxyWrapper(LegacyDistributedDataParallel(model, None)))
