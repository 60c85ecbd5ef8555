"""How long what a model has read in validation is kept: as long as validation may need it."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_recur.models.memories import (
    leave_to_each_process,
    memories_of,
    train_step,
    valid_step,
)
from tests.unit.test_memory_model import SEGMENT, SMALL_XL, STARTS

Build = Callable[..., nn.Module]


@pytest.fixture
def trainer(make_model: Build) -> Namespace:
    """What of fairseq's trainer these functions read, with a model that has a memory."""
    common = Namespace(amp=False)
    return Namespace(model=make_model("xl_lm_tiny", *SMALL_XL), cfg=Namespace(common=common))


def test_a_process_keeps_its_own_memory(trainer: Namespace) -> None:
    """Under --broadcast-buffers: torch's wrapper leaves these buffers out."""
    leave_to_each_process(trainer.model)
    left_out = trainer.model._ddp_params_and_buffers_to_ignore
    buffers = {f"decoder.memory.{name}" for name in trainer.model.decoder.memory.rows}
    assert buffers and set(left_out) == buffers


def read(trainer: Namespace, number: int) -> Tensor:
    """What the model in evaluation says of segment *number* of the streams."""
    torch.manual_seed(number)
    tokens = torch.randint(4, 60, (2, SEGMENT))
    with torch.no_grad():
        return trainer.model.eval()(tokens, starts=STARTS + number * SEGMENT)[0]


def held(trainer: Namespace) -> list[dict[str, Tensor]]:
    """What the model and the trainer hold of the batches of validation."""
    kept = getattr(trainer, "_evaluations_before", None) or []
    memories = memories_of(trainer.model)
    return [x for x in [*(m.evaluation for m in memories), *(x for _, x in kept)] if x]


def validate(trainer: Namespace, number: int) -> Tensor:
    return valid_step(lambda _, sample, __: read(trainer, sample), trainer, number)


def test_training_drops_what_validation_has_read(trainer: Namespace) -> None:
    expected = [read(trainer, number) for number in range(3)]
    first = [validate(trainer, number) for number in range(3)]
    assert len(held(trainer)) == 1
    torch.testing.assert_close(first, expected, rtol=0, atol=0)
    trainer.model.train()
    assert train_step(lambda *_: len(held(trainer)), trainer, []) == 0
    again = [validate(trainer, number) for number in range(3)]
    torch.testing.assert_close(again, expected, rtol=0, atol=0)


@pytest.mark.parametrize("samples, kept", [([{"id": 1}], True), ([{"id": 1}, {}], False)])
def test_a_batch_that_only_keeps_a_process_company_leaves_no_memory(
    samples: list[dict[str, int]], kept: bool, trainer: Namespace
) -> None:
    """It is the first one of the epoch again, which the next epoch would continue."""

    def step(*_: Any) -> None:
        trainer.model.train()(torch.randint(4, 60, (2, SEGMENT)), starts=STARTS)

    train_step(step, trainer, samples)
    (memory,) = memories_of(trainer.model)
    assert (memory.place(STARTS + SEGMENT) is not None) == kept


def test_a_repeated_batch_reads_what_it_read(trainer: Namespace) -> None:
    first = [validate(trainer, number) for number in range(2)]
    train_step(lambda *_: None, trainer, [])

    def short_of_space(_: Any, number: int, raise_oom: bool) -> Tensor:
        out = read(trainer, number)
        return out if raise_oom else valid_step(short_of_space, trainer, number, True)

    twice = [valid_step(short_of_space, trainer, number) for number in range(2)]
    torch.testing.assert_close(twice, first, rtol=0, atol=0)
