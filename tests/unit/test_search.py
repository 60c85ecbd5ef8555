"""Every option of a search acts: hypotheses or their scores change."""

from pathlib import Path
from typing import Any

import pytest
import torch

import fairseq_recur
from fairseq_recur.search import OPTIONS

FROZEN = Path(__file__).resolve().parents[1] / "frozen"
SOURCES = ["w10 w19 w3 w1", "w2 w2 w7", "w5"]

# The option's value, and what it acts with.
VALUES: dict[str, tuple[Any, dict[str, Any]]] = {
    "beam": (2, {}),
    "lenpen": (-2.0, {}),
    "min_len": (9, {}),
    "max_len_a": (2.0, {"max_len_b": 2}),
    "max_len_b": (3, {}),
    "no_repeat_ngram_size": (2, {}),
    "unkpen": (-9.0, {}),
    "unnormalized": (True, {}),
    "temperature": (3.0, {}),
    "match_source_len": (True, {}),
    "sampling": (True, {}),
    "sampling_topk": (2, {"sampling": True}),
    "sampling_topp": (0.3, {"sampling": True}),
    "diverse_beam_groups": (3, {}),
    "diverse_beam_strength": (5.0, {"diverse_beam_groups": 3}),
    "diversity_rate": (2.0, {}),
}


@pytest.fixture(scope="module")
def hub() -> Any:
    return fairseq_recur.from_pretrained(
        str(FROZEN / "transformer_biarn.pt"), data=str(FROZEN), source_lang="src", target_lang="tgt"
    )


def test_no_option_is_without_a_value_here() -> None:
    assert VALUES.keys() == {*OPTIONS}


@pytest.mark.parametrize("name", VALUES)
def test_an_option_of_a_search_acts(name: str, hub: Any) -> None:
    value, others = VALUES[name]
    options = {"beam": 6, "max_len_b": 12, **others}

    def found(**more: Any) -> list[list[tuple[str, float]]]:
        torch.manual_seed(1)
        searched = hub.hypotheses(SOURCES, nbest=2, **{**options, **more})
        return [[(h.text, round(h.score, 4)) for h in of_one] for of_one in searched]

    assert found() == found() and found(**{name: value}) != found()


def test_no_ngram_is_repeated(hub: Any) -> None:
    for size in (0, 1, 2, 3):
        words = hub.translate(SOURCES[0], max_len_b=20, no_repeat_ngram_size=size).split()
        n = size or 1
        ngrams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
        assert ngrams and (len(ngrams) > len({*ngrams})) == (size == 0), words
