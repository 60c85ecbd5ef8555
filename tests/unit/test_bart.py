"""fairseq's BART checkpoints start the plug-in's models."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fairseq_recur.errors import CheckpointError
from fairseq_recur.models.checkpoints import TABLES
from tests.conftest import PLAIN, SMALL

Build = Callable[..., nn.Module]
BART: list[str] = [
    "transformer_biarn",
    *SMALL,
    *(
        "--encoder-learned-pos --decoder-learned-pos --layernorm-embedding --no-scale-embedding "
        "--share-all-embeddings --activation-fn gelu --dropout 0"
    ).split(),
]
"""A preset in BART's shape."""


def released(bart: nn.Module) -> dict[str, Tensor]:
    """A BART's weights as its published files have them.

    They hold a row for <mask> and a classifier, and no output matrix, which is the embeddings'.
    """
    state = {name: weight.clone() for name, weight in bart.state_dict().items()}
    del state["decoder.output_projection.weight"]
    for side in ("encoder", "decoder"):
        table = state[f"{side}.embed_tokens.weight"]
        state[f"{side}.embed_tokens.weight"] = torch.cat([table, torch.randn_like(table[:1])])
    for part, shape in (("dense", (16, 16)), ("out_proj", (3, 16))):
        state[f"classification_heads.mnli.{part}.weight"] = torch.randn(shape)
        state[f"classification_heads.mnli.{part}.bias"] = torch.randn(shape[0])
    return state


def run(model: nn.Module) -> Tensor:
    source = torch.tensor([[1, 5, 6, 7, 2], [8, 9, 4, 5, 2]])
    target = torch.tensor([[2, 5], [2, 6]])
    return model.eval()(source, source.ne(1).sum(1), target)[0]


def test_published_checkpoint_loads(make_model: Build, caplog: pytest.LogCaptureFixture) -> None:
    """It computes what fairseq's BART does, to the last bit."""
    bart = make_model("bart_base", *SMALL)
    for name, parameter in bart.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.2)
    model = make_model(*BART, *PLAIN)
    model.load_state_dict(released(bart), strict=True)
    assert torch.equal(run(model), run(bart))
    assert "classification_heads.mnli.dense.weight" in caplog.text
    assert "embedding of <mask>" in caplog.text and "initialised fresh" not in caplog.text


def test_parts_that_bart_lacks_are_fresh(
    make_model: Build, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model(*BART)
    model.load_state_dict(released(make_model("bart_base", *SMALL)), strict=True)
    assert "initialised fresh" in caplog.text and "encoder.recurrence_encoder" in caplog.text


@pytest.mark.parametrize("rows", [2, -1])
def test_other_vocabularies_are_refused(make_model: Build, rows: int) -> None:
    state = released(make_model("bart_base", *SMALL))
    for side in ("encoder", "decoder"):
        table = state[f"{side}.embed_tokens.weight"][:64]
        name = f"{side}.embed_tokens.weight"
        state[name] = table.repeat(2, 1)[: 64 + rows]
    with pytest.raises(CheckpointError, match="vocabulary has another size"):
        make_model(*BART, *PLAIN).load_state_dict(state)


def test_a_table_of_positions_has_one_size(make_model: Build) -> None:
    """BART's are learned, so a longer table has rows that nothing could initialise."""
    state = released(make_model("bart_base", *SMALL))
    longer = make_model(*BART, *PLAIN, "--max-source-positions", "2048")
    with pytest.raises(CheckpointError, match="positions has another size: .*--max-source-pos"):
        longer.load_state_dict(state)


def test_no_row_of_another_model_is_cut(make_model: Build) -> None:
    stock = make_model("transformer", *SMALL)
    state = {name: weight.clone() for name, weight in stock.state_dict().items()}
    for name in TABLES:
        state[name] = torch.cat([state[name], state[name][:1]])
    with pytest.raises(CheckpointError, match="vocabulary has another size"):
        make_model("transformer_biarn", *SMALL, *PLAIN).load_state_dict(state)
