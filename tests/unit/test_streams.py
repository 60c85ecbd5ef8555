"""Streams of text: no token is lost, each row goes on, and processes share the streams."""

import itertools
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.data.iterators import EpochBatchIterator
from fairseq.dataclass.configs import GenerationConfig

from fairseq_recur.errors import ConfigError
from fairseq_recur.modules.stream_memory import StreamMemory
from fairseq_recur.tasks.streams import SET, StreamDataset, StreamLanguageModelingTask, Text

EOS = 2


def dataset(tokens: int, segment: int, whole: bool = True) -> StreamDataset:
    text = Text(torch.arange(100, 100 + tokens, dtype=torch.int32), EOS, 0, whole)
    return StreamDataset(text, segment)


def batches(data: StreamDataset) -> list[dict[str, Any]]:
    chosen = data.batch_by_size(data.ordered_indices(), max_tokens=7, max_sentences=1)
    return [data.collater([data[i] for i in batch]) for batch in chosen]


@pytest.mark.parametrize("tokens", [5, 12, 30, 31, 34])
@pytest.mark.parametrize("rows, segment", [(1, 4), (3, 4), (5, 1), (2, 100)])
def test_every_token_is_a_target_once(tokens: int, rows: int, segment: int) -> None:
    made = batches(dataset(tokens, segment).arranged(rows, 1))
    targets = torch.cat([batch["target"].flatten() for batch in made])
    assert sorted(targets.tolist()) == list(range(100, 100 + tokens))
    for batch in made:
        source = batch["net_input"]["src_tokens"]
        assert source.size() == batch["target"].size() and source.size(1) <= segment
        assert batch["ntokens"] == source.numel() and batch["nsentences"] == len(source)
        # The input is the token before; the text begins after an end of sentence.
        expected = batch["target"] - 1
        assert torch.equal(source, expected.where(expected >= 100, torch.tensor(EOS)))


@pytest.mark.parametrize("tokens", [30, 31, 34])
def test_row_r_continues_row_r(tokens: int) -> None:
    made = batches(dataset(tokens, 4).arranged(3, 1))
    assert [len(batch["target"]) for batch in made] == [3, 3, 3] + [tokens % 3] * (tokens % 3 > 0)
    for one, two in zip(made, made[1:]):
        rows, length = len(two["target"]), one["target"].size(1)
        assert torch.equal(two["net_input"]["src_tokens"][:, 0], one["target"][:rows, -1])
        moved = two["net_input"]["starts"] - one["net_input"]["starts"][:rows]
        assert moved.tolist() == [length] * rows
    # A stream never goes on into the next one, nor into another set.
    first = made[0]["net_input"]["starts"]
    assert (first.diff() > 2**30).all() and first[0] == 0


def test_training_leaves_out_what_fills_no_segments() -> None:
    made = batches(dataset(34, 4, whole=False).arranged(3, 1))
    assert [tuple(batch["target"].size()) for batch in made] == [(3, 4), (3, 4)]
    targets = torch.cat([batch["target"] for batch in made], dim=1).flatten()
    assert targets.tolist() == list(range(100, 124))
    short = batches(dataset(8, 4, whole=False).arranged(3, 1))
    assert [tuple(batch["target"].size()) for batch in short] == [(3, 2)]


def test_other_streams_of_the_same_text_do_not_continue() -> None:
    """As after a resumption with another batch size; the one stream that begins the text may."""
    data, memory = dataset(240, 4), StreamMemory(1)
    for batch in batches(data.arranged(6, 1)):
        starts = batch["net_input"]["starts"]
        memory.keep(starts, [torch.zeros(batch["target"].size(1), len(starts), 2)], None, 4)
        for other in (data.arranged(3, 1), data.arranged(2, 1), data.arranged(4, 2)):
            found = [memory.read(b["net_input"]["starts"], 4)[0] for b in batches(other)]
            assert found == [None] * len(found)


@pytest.mark.parametrize("whole", [True, False])
def test_two_processes_have_the_rows_of_one(whole: bool) -> None:
    data = dataset(47, 4, whole)
    one, both = batches(data.arranged(6, 1)), batches(data.arranged(3, 2))
    for t, batch in enumerate(one):
        shares = both[2 * t : 2 * t + 2]
        for name in ("target", "id"):
            assert torch.equal(torch.cat([share[name] for share in shares]), batch[name])
        starts = torch.cat([share["net_input"]["starts"] for share in shares])
        assert torch.equal(starts, batch["net_input"]["starts"])


def iterators(rows: int, processes: int) -> list[EpochBatchIterator]:
    data = dataset(480, 5).arranged(rows, processes)
    made = data.batch_by_size(data.ordered_indices())
    return [EpochBatchIterator(data, data.collater, made, num_shards=processes, shard_id=rank,
                               disable_shuffling=True) for rank in range(processes)]  # fmt: skip


def read(made: list[EpochBatchIterator], count: int | None = None) -> list[int]:
    """The tokens of the next *count* batches of each process, or of the rest of the epoch."""
    of_each = [list(itertools.islice(i.next_epoch_itr(shuffle=False), count)) for i in made]
    found = [batch["target"].flatten() for of_one in of_each for batch in of_one]
    return torch.cat(found).tolist()


@pytest.mark.parametrize("before, after", [((4, 2), (8, 1)), ((8, 1), (4, 2)), ((4, 3), (6, 2))])
def test_other_processes_go_on_in_the_same_streams(
    before: tuple[int, int], after: tuple[int, int]
) -> None:
    first, second = iterators(*before), iterators(*after)
    seen = read(first, 2)
    for iterator in second:
        iterator.load_state_dict(first[0].state_dict())
    assert sorted(seen + read(second)) == list(range(100, 580))


@pytest.mark.parametrize("rows, processes", [(4, 1), (8, 2), (8, 1)])
def test_a_position_in_other_streams_is_refused(rows: int, processes: int) -> None:
    first, (second, *_) = iterators(4, 2), iterators(rows, processes)
    read(first, 2)
    state = first[0].state_dict()
    if rows * processes != 8:
        said = f"of 8 streams .* into {rows * processes} streams .*--reset-dataloader"
        with pytest.raises(ConfigError, match=said):
            second.load_state_dict(state)
    state.pop("arrangement", None)  # as in older checkpoints
    with pytest.raises(ConfigError, match="of 2 processes") if processes == 1 else nullcontext():
        second.load_state_dict(state)


def test_a_short_text_has_fewer_streams() -> None:
    assert len(batches(dataset(5, 4).arranged(22, 1))) == 1
    assert len(batches(dataset(5, 4).arranged(22, 2))[0]["target"]) == 2
    with pytest.raises(ConfigError, match="a set has 2 tokens, fewer than the 3 processes"):
        dataset(2, 4).arranged(1, 3)


def options(**given: Any) -> Namespace:
    from fairseq.tasks.language_modeling import LanguageModelingConfig

    return Namespace(**{**vars(LanguageModelingConfig()), "data": None, **given})


def test_no_set_continues_another(corpus: Path, dictionary: Dictionary) -> None:
    given = options(data=str(corpus / "bin"), dataset_impl="mmap", tokens_per_sample=4)
    task, starts = StreamLanguageModelingTask(given, dictionary), []
    for name in ("valid.src-tgt.src", "test.src-tgt.src"):
        task.load_dataset(name)
        starts.append(task.dataset(name)[0]["start"])
        assert task.dataset(name)[0]["source"][0] == dictionary.eos(), "a text begins after it"
    assert abs(starts[0] - starts[1]) >= SET


@pytest.mark.parametrize(
    "given, said",
    [
        ({"sample_break_mode": "eos"}, "--sample-break-mode eos has no effect with streams"),
        ({"add_bos_token": True}, "--add-bos-token True has no effect"),
        ({"tokens_per_sample": 0}, "--tokens-per-sample 0: expected 1 to"),
    ],
)
def test_options_of_sentences_are_refused(given: dict[str, Any], said: str) -> None:
    StreamLanguageModelingTask.setup_task(options())
    with pytest.raises(ConfigError, match=said):
        StreamLanguageModelingTask.setup_task(options(**given))


def test_a_batch_needs_a_row() -> None:
    task: Any = StreamLanguageModelingTask.setup_task(options(tokens_per_sample=8))
    for limits in ({}, {"max_tokens": 7}):
        with pytest.raises(ConfigError, match="leave no stream of --tokens-per-sample 8"):
            task.get_batch_iterator(dataset(50, 8), **limits)
    found = task.get_batch_iterator(dataset(50, 8), max_tokens=24, max_sentences=5)
    assert [len(batch["target"]) for batch in found.next_epoch_itr()] == [3, 3, 2]


def test_a_model_with_a_source_is_refused() -> None:
    task: Any = StreamLanguageModelingTask.setup_task(options())
    with pytest.raises(ConfigError, match=r"transformer_biarn \(.*\) is not one; give the --path"):
        task.build_model(Namespace(arch="transformer_biarn"))


def test_only_fairseq_generate_is_refused_a_search(dictionary: Dictionary) -> None:
    task = StreamLanguageModelingTask(options(), dictionary)
    model = Namespace(eval=lambda: None, decoder=Namespace())
    scoring = GenerationConfig(score_reference=True)
    with pytest.raises(ConfigError, match="generate: .*; use eval-lm to score the text"):
        task.build_generator([model], GenerationConfig(), extra_gen_cls_kwargs={"lm_model": None})
    assert task.build_generator([model], scoring, extra_gen_cls_kwargs={"lm_model": None})
