"""The worked example of docs/extending.md: a part from a user's own plug-in."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fairseq_recur.errors import ConfigError
from fairseq_recur.models.config import encoder_decoder_slots
from fairseq_recur.models.extending import SLOTS, add_part
from fairseq_recur.modules.context import Padding
from fairseq_recur.modules.parts import RECURRENCE
from tests.conftest import SMALL, TRAIN
from tests.docs.commands import ROOT
from tests.own_parts import loaded_package
from tests.running import hypotheses, update_losses
from tests.unit.test_language_model import SMALL_LM

EXAMPLE = ROOT / "examples" / "extending" / "min_gru"
ARCH = ["--arch", "transformer_biarn_tiny", *SMALL, "--recurrence", "min_gru"]


@pytest.fixture(autouse=True, scope="module")
def loaded() -> Iterator[None]:
    """Load it as fairseq's programs do, for the tests of this file."""
    with loaded_package(EXAMPLE):
        yield


def test_it_is_short() -> None:
    assert len((EXAMPLE / "__init__.py").read_text(encoding="utf-8").splitlines()) < 60


def by_loops(part: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The equations for one sentence (S, I), token by token."""
    weight, bias = part.input_proj.weight.chunk(4), part.input_proj.bias.chunk(4)
    sides = []
    for side, order in ((0, range(len(x))), (1, reversed(range(len(x))))):
        state, states = x.mean(0), {}
        for t in order:
            z = torch.sigmoid(weight[side] @ x[t] + bias[side])
            state = (1 - z) * state + z * (weight[2 + side] @ x[t] + bias[2 + side])
            states[t] = state
        sides.append(torch.stack([states[t] for t in range(len(x))]))
    return torch.cat(sides, dim=-1)


@pytest.mark.parametrize("pad_left", [False, True])
def test_it_equals_its_equations_in_a_padded_batch(pad_left: bool) -> None:
    part = RECURRENCE["min_gru"](6, 6, None).double()
    x = torch.randn(1, 5, 6, dtype=torch.float64, requires_grad=True)
    expected = by_loops(part, x[0])
    noise = torch.randn(1, 3, 6, dtype=torch.float64)
    padded = torch.cat([noise, x] if pad_left else [x, noise], dim=1)
    mask = torch.zeros(1, 8, dtype=torch.bool)
    (mask[:, :3] if pad_left else mask[:, 5:]).fill_(True)
    found = part(padded, Padding.of(mask))
    torch.testing.assert_close(found[0, ~mask[0]], expected)
    assert not found[0, mask[0]].any()
    slow, fast = (torch.autograd.grad(y.square().sum(), x)[0] for y in (expected, found))
    torch.testing.assert_close(fast, slow)


@pytest.mark.slow
def test_it_trains_and_translates(corpus: Path, tmp_path: Path, cli: Callable[..., str]) -> None:
    log = cli(
        "train", corpus / "bin", "--user-dir", EXAMPLE, *ARCH, *TRAIN,
        "--recurrence-layers", 2, "--recurrence-fusion", "gated_sum", "--max-update", 40,
        "--save-dir", tmp_path,
    )  # fmt: skip
    losses = update_losses(log)
    assert losses[40] < 0.9 * losses[1]
    output = cli(
        "generate", corpus / "bin", "--user-dir", EXAMPLE, "--cpu", "--beam", 3, "--num-workers", 0,
        "--path", tmp_path / "checkpoint_last.pt", "--max-len-b", 12,
    )  # fmt: skip
    assert len(hypotheses(output)) == 20


def test_hydra_takes_it(corpus: Path, tmp_path: Path, cli: Callable[..., str]) -> None:
    config = ROOT / "fairseq_recur" / "config"
    log = cli(
        "hydra_train", "--config-dir", config, "--config-name", "translation",
        f"task.data={corpus / 'bin'}", f"checkpoint.save_dir={tmp_path}",
        f"common.user_dir={EXAMPLE}", f"hydra.run.dir={tmp_path}", "common.cpu=true",
        "model._name=transformer_biarn_tiny", "model.recurrence=min_gru",
        "optimization.max_update=1", "dataset.max_tokens=400", "dataset.num_workers=0",
    )  # fmt: skip
    assert "MinGRU" in log


def test_the_help_says_what_it_is() -> None:
    (slot,) = (slot for slot in encoder_decoder_slots() if slot.option == "recurrence")
    help = slot.field()[2].metadata["help"]
    assert "biarn (attentive recurrent network), min_gru (Feng et al. 2024)" in help


def test_names_and_slots_are_looked_at() -> None:
    with pytest.raises(ConfigError, match="no slot recurence; choose one of .*recurrence"):
        add_part("recurence", "another", object)
    for slot, name in (("recurrence", "biarn"), ("recurrence", "none"), ("cross_attention", "dot")):
        with pytest.raises(ConfigError, match=f"{slot} already has a part {name}"):
            add_part(slot, name, object)


@pytest.mark.slow
def test_a_part_for_self_attention_is_a_choice_of_both_sides(
    make_model: Callable[..., torch.nn.Module],
) -> None:
    """This includes a model that was registered with a different default."""
    dot = SLOTS["encoder_self_attention"]["dot"]
    add_part("encoder_self_attention", "stock_again", dot)
    both = ["--encoder-self-attention", "stock_again", "--decoder-self-attention", "stock_again"]
    for preset in ("transformer_biarn", "transformer_disan", "rsa_transformer"):
        model = make_model(preset, *SMALL, *both)
        for side in (model.encoder, model.decoder):
            assert type(side.layers[0].self_attn) is dot
    model = make_model("rsa_transformer_lm", *SMALL_LM, *both[2:], "--max-target-positions", "50")
    assert type(model.decoder.layers[0].self_attn) is dot
