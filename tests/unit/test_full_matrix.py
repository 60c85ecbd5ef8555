"""The learned matrix of a language model with a memory: T x (M + T) per head (figure 4)."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_recur.errors import CheckpointError
from fairseq_recur.integration import loading
from fairseq_recur.modules.context import Context, Padding
from fairseq_recur.modules.learned_matrices import FullMatrix
from tests.unit.test_memory_model import MEMORY, SEGMENT, SMALL_XL, in_segments, read, text

Build = Callable[..., nn.Module]
FULL = "--decoder-self-attention-mixture full_matrix --learned-matrix-length".split()
LENGTH = SEGMENT + MEMORY


@pytest.fixture
def build(make_model: Build) -> Build:
    """A small float64 model in evaluation mode with weights large enough to matter."""

    def make(*flags: str, arch: str = "xl_lm_tiny") -> nn.Module:
        model = make_model(arch, *SMALL_XL, *FULL, str(LENGTH), *flags).double().eval()
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3)
        return model

    return make


def mixtures(model: nn.Module) -> list[FullMatrix]:
    return [module for module in model.modules() if isinstance(module, FullMatrix)]


def entries(weight: Tensor, queries: int, earlier: int, held: int) -> Tensor:
    """P by a loop: W[i, M + j] for key j of the segment, where the memory's have j < 0."""
    matrix = weight.new_zeros(len(weight), queries, earlier + queries)
    rows, columns = weight.shape[1:]
    for i in range(queries):
        for j in range(-earlier, i):
            if i < rows and 0 <= held + j < columns:
                matrix[:, i, earlier + j] = weight[:, i, held + j]
    return matrix


@pytest.mark.parametrize("tokens, memory", [(64, 64), (128, 128), (32, 96)])
def test_parameters_are_those_of_the_paper(make_model: Build, tokens: int, memory: int) -> None:
    """A value for each position of a segment and each that it may see, in each head and layer."""
    sizes = f"--tokens-per-sample {tokens} --memory-length {memory}".split()
    plain = make_model("xl_lm_tiny", *sizes)
    model = make_model("xl_lm_tiny", *sizes, *FULL, str(memory + tokens))
    shapes = {tuple(mixture.weight.shape) for mixture in mixtures(model)}
    assert shapes == {(4, tokens, memory + tokens)}
    counts = [sum(p.numel() for p in m.parameters()) for m in (plain, model)]
    assert counts[1] - counts[0] == 4 * 4 * tokens * (memory + tokens) + 4  # gates


@pytest.mark.parametrize("words", ["xl_lm_tiny --decoder-memory none", "tlb_lm_tiny"])
def test_without_positions_in_a_memory_it_is_a_square(make_model: Build, words: str) -> None:
    model = make_model(*words.split(), *SMALL_XL[:-2], *FULL, "6")
    assert {tuple(mixture.weight.shape) for mixture in mixtures(model)} == {(2, 6, 6)}


@pytest.mark.parametrize("earlier", [0, SEGMENT, MEMORY, MEMORY + 3])
@pytest.mark.parametrize("queries", [1, SEGMENT, SEGMENT + 2])
def test_rows_are_of_a_segment_and_columns_end_with_it(
    build: Build, queries: int, earlier: int
) -> None:
    """While the memory fills, with a full one, and with more of both than in training."""
    (mixture, *_) = mixtures(build())
    expected = entries(mixture.weight, queries, earlier, MEMORY)
    assert torch.equal(mixture.matrix(queries, earlier + queries), expected)
    assert expected.any() == (earlier > 0 or queries > 1)
    whole = entries(mixture.weight, SEGMENT, MEMORY, MEMORY)
    assert mixture.row_sum() == whole.abs().sum(dim=2).max()


@pytest.mark.parametrize("flags", [[], ["--rsa-normalize"], ["--decoder-self-attention", "dot"]])
def test_steps_find_the_row_of_their_place_in_the_segment(build: Build, flags: list[str]) -> None:
    """The number of visible positions does not tell it: 4 + 3 of them are 6 + 1, too."""
    model, tokens = build(*flags), text()
    forced, state = in_segments(model, tokens), dict[str, dict[str, Any]]()
    for step in range(1, tokens.size(1) + 1):
        out, _ = model.decoder(tokens[:, :step], incremental_state=state)
        torch.testing.assert_close(out[:, -1], forced[:, step - 1], rtol=1e-5, atol=1e-7)


def test_a_step_beyond_the_learned_rows_reads_zeros(build: Build) -> None:
    (mixture, *_) = mixtures(build("--learned-matrix-length", str(LENGTH - 1)))
    attention: Any = None  # which keeps nothing from step to step
    for place, some in ((SEGMENT - 2, True), (SEGMENT - 1, False)):
        context = Context(incremental_state={}, position=5 * SEGMENT + place)
        row, _ = mixture.newest_row(attention, MEMORY + place + 1, context)
        assert row.size() == (2, 1, MEMORY + place + 1) and bool(row.any()) is some


@pytest.mark.parametrize("earlier", [0, SEGMENT, MEMORY])
def test_padding_before_a_segments_words_moves_their_rows(build: Build, earlier: int) -> None:
    """A position is counted in real tokens behind the memory, which has no padding."""
    (mixture, *_) = mixtures(build())
    short = torch.randn(1, 2, earlier + 2, 3, dtype=torch.float64)
    long = torch.cat([short[:, :, :earlier], short.new_zeros(1, 2, 2, 3), short[:, :, earlier:]], 2)
    places = torch.arange(earlier + SEGMENT)
    padding = Padding.of(((places >= earlier) & (places < earlier + 2)).unsqueeze(0))
    found = mixture.product(long, SEGMENT, padding, "dense")
    expected = mixture.product(short, 2, None, "dense")
    torch.testing.assert_close(found[:, :, 2:], expected, rtol=1e-12, atol=1e-12)
    assert expected.any()


@pytest.mark.parametrize("length", [0, MEMORY - 2, MEMORY + 3, LENGTH, 3 * LENGTH])
def test_evaluation_may_have_another_memory(build: Build, length: int) -> None:
    """Its further positions have zeros in the matrix, which else stays what it was."""
    trained, tokens = build(), text(30)
    with loading():
        model = build("--memory-length", str(length))
        model.load_state_dict(trained.state_dict(), strict=True)
    for mixture, other in zip(mixtures(model), mixtures(trained)):
        expected = entries(other.weight, SEGMENT, length, MEMORY)
        assert torch.equal(mixture.matrix(SEGMENT, length + SEGMENT), expected)
        assert expected.any() and mixture.weight.optim_overrides == other.weight.optim_overrides
    found = in_segments(model, tokens)
    assert found.isfinite().all()
    torch.testing.assert_close(found[:, :SEGMENT], read(trained, tokens[:, :SEGMENT]))
    assert (found - in_segments(trained, tokens))[:, 5 * SEGMENT :].abs().max() > 1e-3


@pytest.mark.parametrize("evaluated", [False, True])
def test_a_square_matrix_of_an_earlier_version_is_refused(build: Build, evaluated: bool) -> None:
    model = build()
    weights = {
        name: value.new_zeros(2, LENGTH, LENGTH) if name.endswith("mixture.weight") else value
        for name, value in model.state_dict().items()
    }
    with loading() if evaluated else nullcontext():
        with pytest.raises(CheckpointError, match="square ones are of an earlier version") as said:
            model.load_state_dict(weights, strict=True)
    shapes = "(2, 10, 10) in the checkpoint and (2, 4, 10) in the model"
    assert f"mixture.weight is {shapes}" in str(said.value)
