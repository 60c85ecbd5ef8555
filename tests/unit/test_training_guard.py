"""One training in a folder, equal processes, and each batch once an epoch after a resume."""

import random
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.data.iterators import EpochBatchIterator
from fairseq.distributed import utils as distributed_utils
from fairseq.tasks.multilingual_translation import MultilingualTranslationTask

from fairseq_recur.compat.checkpoint_options import with_objects
from fairseq_recur.errors import ConfigError
from fairseq_recur.files import whole_file
from fairseq_recur.tasks.rows import RowDataset
from fairseq_recur.training_guard import comparison, dictionaries, folder
from tests.conftest import SMALL, TRAIN

HOLDER = """
import sys
from pathlib import Path
sys.argv = ["fairseq-recur"]  # so that fairseq is not imported
from fairseq_recur.files import whole_file
from fairseq_recur.locks import hold, name_holder
if KIND == "lock":
    lock = hold(Path(PATH), inherited=False)
    name_holder(lock)
    print("ready", flush=True)
    sys.stdin.read()
else:
    with whole_file(Path(PATH)) as file:
        file.write(b"theirs")
        file.flush()
        print("ready", flush=True)
        sys.stdin.read()
"""


@contextmanager
def other_process(kind: str, path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that holds a training's lock, or is writing a file."""
    code = HOLDER.replace("KIND", repr(kind)).replace("PATH", repr(str(path)))
    process = subprocess.Popen(
        [sys.executable, "-c", code], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_second_training_in_a_folder_is_refused(
    corpus: Path, cli: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after the first was killed, and not after it has ended, with or without an error."""
    flags = [corpus / "bin", "--arch", "transformer", *SMALL, *TRAIN, "--max-update", 1]
    flags += ["--save-dir", tmp_path]
    with other_process("lock", tmp_path / folder.LOCK) as other:
        with pytest.raises(ConfigError, match=f"process {other.pid} on .*another --save-dir"):
            cli("train", *flags)
        assert not list(tmp_path.glob("*.pt"))
        cli("train", *flags, "--no-save")
    folder.lock(tmp_path)
    cli("train", *flags)  # in the same process, one after the other
    folder.unlock(tmp_path)

    def fail(*_: Any) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr("fairseq.trainer.Trainer.train_step", fail)
    with pytest.raises(ValueError, match="a defect") as kept:  # the trainer is in its traceback
        cli("train", *flags, "--max-update", 2)
    with other_process("lock", tmp_path / folder.LOCK):
        assert any("trainer" in entry.frame.f_locals for entry in kept.traceback)


@pytest.mark.parametrize(
    "names, file, refused",
    [
        ("1 2 _best", "checkpoint_last.pt", True),
        ("_1_100 _1_200", "checkpoint_last.pt", True),
        ("1 2 _last", "checkpoint_last.pt", False),
        ("1 2 _last-shard0", "checkpoint_last.pt", False),
        ("1 _best", "checkpoint_last.pt", False),  # killed while it saved for the first time
        ("", "checkpoint_last.pt", False),
        ("_best _last", "{}/checkpoint33.pt", True),
        ("1 2 _best", "{}/checkpoint_last.pt", True),
        ("1 _best", "{}/checkpoint_last.pt", False),
        ("_best _last", "{}/checkpoint_best.pt", False),
        ("_best _last", "none", False),
        ("_best _last", "model:///checkpoint1.pt", False),
        ("", "{}/checkpoint33.pt", False),
    ],
)
def test_a_training_does_not_begin_over_another(
    names: str, file: str, refused: bool, tmp_path: Path
) -> None:
    for name in names.split():
        (tmp_path / f"checkpoint{name}.pt").touch()
    if not refused:
        return folder.check_continued(tmp_path, file.format(tmp_path))
    with pytest.raises(ConfigError, match=r"would overwrite them: continue with --restore-file .*"):
        folder.check_continued(tmp_path, file.format(tmp_path))


def test_checkpoints_are_not_overwritten_without_the_last(
    corpus: Path, cli: Callable[..., str], tmp_path: Path
) -> None:
    flags = [corpus / "bin", "--arch", "transformer", *SMALL, *TRAIN, "--max-update", 3]
    flags += ["--save-dir", tmp_path, "--save-interval-updates", 1, "--disable-validation"]
    cli("train", *flags)
    (tmp_path / "checkpoint_last.pt").unlink()
    before = {path: path.read_bytes() for path in tmp_path.glob("*.pt")}
    for more in ([], ["--restore-file", tmp_path / "checkpoint33.pt"]):
        with pytest.raises(ConfigError, match="has checkpoints of a training"):
            cli("train", *flags, *more)
    assert before == {path: path.read_bytes() for path in tmp_path.glob("*.pt")} and before


def test_two_writers_of_a_file_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with other_process("file", path) as other:
        with whole_file(path) as file:
            file.write(b"ours")
        assert path.read_bytes() == b"ours" and len(list(tmp_path.iterdir())) == 2
        other.communicate("")
        assert path.read_bytes() == b"theirs"
    with other_process("file", path) as other:
        other.kill()
        other.wait()
        assert len(list(tmp_path.iterdir())) == 2
        with whole_file(path):
            pass
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt"]


def test_a_folder_without_locks_is_only_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.lockf", no_locks)
    assert not folder.lock(tmp_path), "nothing that could be unlocked"
    assert f"{tmp_path} cannot be locked" in caplog.text
    monkeypatch.undo()
    assert folder.lock(tmp_path)
    folder.unlock(tmp_path)


def settings(**changes: Any) -> dict[str, str]:
    values: dict[str, Any] = {
        "common": {"seed": 1, "log_file": "a"},
        "optimization": {"clip_norm": 0.0},
        "model": {"_name": "transformer", "encoder_layers": 2},
        "checkpoint": {"save_dir": "here"},
    }
    values["task"] = Namespace(device_id=0, left_pad=True)
    for name, value in changes.items():
        values[name] = value if name == "task" else {**values[name], **value}
    values["distributed_training"] = {"device_id": 0}
    cfg = with_objects(values)
    return dict(comparison.options(cfg))


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"common": {"seed": 2}}, "seed is 1 on rank 0 and 2 on rank 1"),
        ({"optimization": {"clip_norm": 1.0}}, "clip_norm is 0.0 on rank 0 and 1.0 on rank 1"),
        ({"model": {"new": True}}, "new is missing on rank 0 and True on rank 1"),
        ({"common": {"log_file": "b"}, "checkpoint": {"save_dir": "there"}}, None),
        ({"task": Namespace(device_id=1, left_pad=True)}, None),
        ({"task": Namespace(device_id=1, left_pad=False)}, "left_pad is True on rank 0"),
    ],
)
def test_processes_with_other_options_are_refused(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str | None
) -> None:
    mine, other = settings(), settings(**changes)
    sent: list[Any] = []

    def gather(value: Any, **_: Any) -> list[Any]:
        if isinstance(value, str):  # the other's hash, as it would compute it
            sent.append(value)
            return [value, value if mine == other else "another"]
        return [value, other]

    monkeypatch.setattr(distributed_utils, "all_gather_list", gather)
    if said is None:
        comparison.compare(mine, None)
        return
    with pytest.raises(ConfigError, match=said):
        comparison.compare(mine, None)
    assert sent


def test_other_data_are_detected() -> None:
    class Task:
        source_dictionary = type("Dictionary", (), {"symbols": ["a", "b"]})

    class Noisy(torch.utils.data.TensorDataset):
        def __getitem__(self, index: int) -> Any:
            noise = random.random() + numpy.random.rand() + torch.rand(1)
            return {"id": index, "source": [*super().__getitem__(index), noise]}

    def data(words: list[int], batches: Any) -> dict[str, str]:
        return comparison.data(Task(), Noisy(torch.tensor(words)), batches)

    first = data([5, 6, 7], [[0, 1], [2]])
    state = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert first == data([5, 6, 7], [[0, 1], [2]])  # with the same noise
    assert state == (
        random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    )  # fmt: skip
    for other in (
        data([5, 6, 7, 8], [[0, 1, 3], [2]]),
        data([4, 6, 7], [[0, 1], [2]]),
        data([5, 6, 8], [[0, 1], [2]]),
        data([5, 6, 7], [[[0, 1], [2, 0]], [[2]]]),  # groups of batches
    ):
        assert other != first
    assert data([], []) == data([], [])
    Task.source_dictionary.symbols = ["b", "a"]
    assert first != data([5, 6, 7], [[0, 1], [2]])


def test_dictionaries_of_languages() -> None:
    """In decoding, source and target of a multilingual task are those of the pair."""
    args = Namespace(source_lang="fr", target_lang="en", lang_pairs=["de-en", "fr-en"])
    dicts = {name: Dictionary() for name in ("de", "en", "fr")}
    for name, dictionary in dicts.items():
        dictionary.add_symbol(f"word of {name}")
    trained, decoding = (MultilingualTranslationTask(args, dicts, x) for x in (True, False))
    saved = dictionaries.hashes(trained)
    assert saved.keys() == dicts.keys() and dictionaries.difference(decoding, saved) is None
    before = {"source": saved["de"], "target": saved["de"]}  # as older versions stored it
    assert dictionaries.difference(decoding, before) is None
    dicts["fr"].symbols[-1] = "another"
    said = "the fr dictionary has other words"
    assert (dictionaries.difference(decoding, saved) or "").startswith(said)


def batches(processes: int, rank: int, **options: Any) -> EpochBatchIterator:
    dataset = torch.utils.data.TensorDataset(torch.arange(26))
    return EpochBatchIterator(
        dataset, lambda items: [int(x) for (x,) in items], [[i] for i in range(26)],
        num_shards=processes, shard_id=rank, **options,
    )  # fmt: skip


def take(iterators: list[EpochBatchIterator], count: int | None) -> list[int]:
    """The data of the next *count* batches of each process, or of the rest of the epoch."""
    found = []
    for iterator in iterators:
        epoch = iterator.next_epoch_itr(shuffle=True)
        for number, batch in enumerate(epoch):
            found += batch
            if number + 1 == count:
                break
    return found


@pytest.mark.parametrize("before, after, done", [(1, 3, 12), (3, 1, 4), (2, 4, 6), (4, 2, 3)])
def test_each_batch_is_seen_once_with_other_processes(before: int, after: int, done: int) -> None:
    first = [batches(before, rank) for rank in range(before)]
    seen = take(first, done)
    states = [iterator.state_dict() for iterator in first]
    second = [batches(after, rank) for rank in range(after)]
    for iterator in second:
        iterator.load_state_dict(states[0])
    assert sorted(seen + take(second, None)) == list(range(26))


def test_a_position_between_two_batches_is_refused() -> None:
    for options, said in (({}, "of 1 process, .* after 5 batches: give 1 process,"),
                          ({"grouped_shuffling": True}, "with --grouped-shuffling")):  # fmt: skip
        first = batches(1, 0, **options)
        take([first], 5)
        with pytest.raises(ConfigError, match=said):
            batches(3, 0, **options).load_state_dict(first.state_dict())


def test_other_batches_within_an_epoch_are_refused() -> None:
    """Also where the position exists; at the end of an epoch they may change."""
    first, other = batches(1, 0), batches(1, 0)
    other._frozen_batches = [[i, i + 1] for i in range(0, 26, 2)]
    take([first], 4)
    with pytest.raises(ConfigError, match="within an epoch of 26 batches, which now has 13: give"):
        other.load_state_dict(first.state_dict())
    take([first], None)
    other.load_state_dict(first.state_dict())
    assert other.epoch == 2


def test_an_epoch_that_has_become_shorter_is_refused() -> None:
    state = {"version": 2, "epoch": 3, "iterations_in_epoch": 20, "shuffle": True}
    with pytest.raises(ConfigError, match="after 20 batches of epoch 3, but this epoch has 13"):
        batches(2, 0).load_state_dict(state)


def test_rows_are_compared_not_their_numbers() -> None:
    class Rows(RowDataset):
        def __init__(self, values: list[float]) -> None:
            super().__init__(numpy.ones(len(values), dtype=numpy.int64), False)
            self.values = torch.tensor(values)

        def collater(self, samples: list[int]) -> dict[str, torch.Tensor]:
            return {"target": self.values[samples]}

    one, other = Rows([1.0, 2.0]), Rows([1.0, 2.5])
    assert comparison.hash_sentences(one, [[0, 1]]) == comparison.hash_sentences(other, [[0, 1]])
    assert comparison.hash_sentences(one, [[1]]) != comparison.hash_sentences(other, [[1]])


def test_compared_sentences_are_from_all_of_a_set() -> None:
    batches = [[n] for n in range(100)]
    one, other = ([torch.tensor([n]) for n in range(100)] for _ in range(2))
    other[-1] = torch.tensor([0])
    assert comparison.hash_sentences(one, batches) == comparison.hash_sentences(list(one), batches)
    assert comparison.hash_sentences(one, batches) != comparison.hash_sentences(other, batches)
