"""``--criterion copied_cross_entropy``, compared with a loop over the symbols."""

from math import log
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.logging import metrics
from torch import Tensor, nn

from fairseq_recur.criterions import CopiedCrossEntropyCriterion
from fairseq_recur.errors import ConfigError

WORDS = Dictionary()
for word in "0123|":
    WORDS.add_symbol(word)
TEXTS = ["012|012||||", "3|3||||||||", "30213|30213", "02|02._____", "0123012301_"]
"""The last two end before the others, one with the end of a line; the last has no separator."""
SPECIAL = {"_": WORDS.pad(), ".": WORDS.eos()}


class Table(nn.Module):
    """A language model whose scores depend on nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.randn(len(TEXTS), len(TEXTS[0]), len(WORDS)))

    def forward(self, src_tokens: Tensor) -> tuple[Tensor, None]:
        return self.scores, None

    def get_targets(self, sample: dict[str, Any], output: Any) -> Tensor:
        return sample["target"]

    def get_normalized_probs(self, output: Any, log_probs: bool, sample: Any = None) -> Tensor:
        return torch.log_softmax(output[0], dim=-1)


@pytest.fixture
def sample() -> dict[str, Any]:
    target = [[SPECIAL.get(c, WORDS.index(c)) for c in text] for text in TEXTS]
    tokens = torch.tensor(target)
    return {"target": tokens, "net_input": {"src_tokens": tokens}, "ntokens": tokens.numel()}


def criterion(words: Dictionary = WORDS) -> CopiedCrossEntropyCriterion:
    return CopiedCrossEntropyCriterion(SimpleNamespace(target_dictionary=words))


def test_only_the_separator_and_the_copy_count(sample: dict[str, Any]) -> None:
    model = Table().double()
    loss, size, counts = criterion()(model, sample)
    nats, right = [], 0
    for row, text in enumerate(TEXTS):
        first = text.find("|")
        places = range(first, 2 * first + 1) if first > 0 else ()
        for place in places:
            scores = model.scores[row, place]
            symbol = WORDS.index(text[place])
            nats.append(scores.logsumexp(0) - scores[symbol])
            right += int(scores.argmax()) == symbol
    assert size == counts["sample_size"] == len(nats) == 4 + 2 + 6 + 3
    expected = torch.stack(nats).sum()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    assert counts["correct"] == right
    found = torch.autograd.grad(loss, model.scores)[0]
    assert torch.allclose(found, torch.autograd.grad(expected, model.scores)[0], atol=1e-12)
    with metrics.aggregate(new_root=True) as logged:
        criterion().reduce_metrics([counts, counts])
    values = logged.get_smoothed_values()
    assert values["loss"] == pytest.approx(expected.item() / size / log(2), abs=1e-3)
    assert values["accuracy"] == pytest.approx(100 * right / size, abs=1e-3)


def test_a_dictionary_without_the_separator_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no separator \|; choose another criterion"):
        criterion(Dictionary())


def test_a_batch_without_a_copy_is_refused(sample: dict[str, Any]) -> None:
    sample["target"].fill_(WORDS.index("0"))
    with pytest.raises(ConfigError, match=r"a batch has no separator \|"):
        criterion()(Table(), sample)
