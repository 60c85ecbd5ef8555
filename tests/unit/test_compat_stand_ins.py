"""Numpy's and omegaconf's values load from a checkpoint, and hostile ones are refused unharmed."""

import io
import os
import pickle
import random
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from omegaconf import OmegaConf

import fairseq_recur  # noqa: F401  (applies the mends)

COUNTS = numpy.arange(6, dtype="i8").reshape(2, 3)
VALUES = {
    "int64": COUNTS,
    "int32": COUNTS.astype("i4"),
    "float32": COUNTS.astype("f4"),
    "float64": COUNTS / 7,
    "column-major": numpy.asfortranarray(COUNTS),
    "no dimension": numpy.array(3.5),
    "float64 scalar": numpy.float64(3.25),
    "float32 scalar": numpy.float32(0.5),
    "int64 scalar": numpy.int64(7),
}


class Reduced:
    """An object that is pickled as a call and a state."""

    def __init__(self, function: Any, arguments: tuple, *state: Any) -> None:
        self.reduced = (function, arguments, *state)

    def __reduce__(self) -> Any:
        return self.reduced


REBUILD: Any = COUNTS.__reduce__()[0]
I8 = numpy.dtype("i8")
EMPTY = (numpy.ndarray, (0,), b"b")


def dtype(name: Any, *state: Any) -> Reduced:
    """numpy.dtype as a file may name it."""
    return Reduced(numpy.dtype, (name, False, True), *state)


def array(*state: Any) -> Reduced:
    """numpy.ndarray with any state."""
    return Reduced(REBUILD, EMPTY, state)


HOSTILE = {
    "too few bytes": array(1, (2,), I8, False, bytes(15)),
    "too many bytes": array(1, (2,), I8, False, bytes(17)),
    "negative size": array(1, (-1, -2), I8, False, bytes(16)),
    "size that overflows": array(1, (2**39, 2**39, 0), I8, False, bytes(8)),
    "many dimensions": array(1, (1,) * 60, I8, False, bytes(8)),
    "size that is not a number": array(1, ("2",), I8, False, bytes(16)),
    "list of objects": array(1, (1,), I8, False, [1]),
    "other version": array(9, (1,), I8, False, bytes(8)),
    "short state": array(1, (1,)),
    "objects": array(1, (1,), dtype("O"), False, bytes(8)),
    "dtype with objects": array(
        1, (1,), dtype("V8", (3, "|", None, ("f0",), {"f0": (dtype("O"), 0)}, 8, 1, 63)),
        False, bytes(8),
    ),
    "i8 that becomes an object": array(
        1, (1,), dtype("i8", (3, "<", None, None, None, -1, -1, 63)), False, bytes(8)
    ),
    "dtype without a state": array(1, (1,), dtype("i8"), False, bytes(8)),
    "scalar of objects": Reduced(numpy.float64(1).__reduce__()[0], (dtype("O"), bytes(8))),
    "short scalar": Reduced(numpy.float64(1).__reduce__()[0], (I8, bytes(4))),
    "array without a state": Reduced(REBUILD, EMPTY),
    "ndarray that is called": Reduced(numpy.ndarray, ((2**20,), "i8")),
    "type as a value": dict,
    "type that is called": Reduced(list, ("abc",)),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_numpy_values_load_as_they_were(tmp_path: Path, name: str) -> None:
    path = tmp_path / "state.pt"
    value = VALUES[name]
    torch.save({"nested": [(value, Namespace(meter=value))], "again": value}, path)
    loaded = torch.load(path)
    for found in (loaded["again"], loaded["nested"][0][0], loaded["nested"][0][1].meter):
        assert type(found) is type(value) and found.dtype == value.dtype
        assert numpy.array_equal(found, value)
        assert found.flags.f_contiguous == value.flags.f_contiguous
        if isinstance(found, numpy.ndarray):
            assert found.flags.writeable
    torch.save(loaded, path)  # the value is numpy's own, so it can be saved again
    assert numpy.array_equal(torch.load(path)["again"], value)


def test_other_names_load_as_plain_values(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    options = Namespace(arch="transformer", lr=[0.1])
    cfg = OmegaConf.create({"model": {"_name": "a", "layers": [1, 2.5, True, None]}})
    torch.save({"args": options, "cfg": cfg}, path)
    loaded = torch.load(path)
    assert loaded["args"] == options and type(loaded["args"]) is Namespace
    assert loaded["cfg"] == OmegaConf.to_container(cfg) and type(loaded["cfg"]) is dict


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_values_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "state.pt"
    torch.save({"value": HOSTILE[name]}, path)
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed|, expected "):
        torch.load(path)


def test_a_second_state_is_refused(tmp_path: Path) -> None:
    """The array keeps its first state; numpy's own class would reinterpret its memory."""
    path = tmp_path / "state.pt"
    torch.save([COUNTS], path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    build = content.rindex(b"b")  # the instruction that gives the array its state
    assert content[build : build + 2] in (b"ba", b"b.")
    path.write_bytes(content[:build] + b"b" + b"N" + content[build:])
    with pytest.raises(Exception, match="two states"):
        torch.load(path)


FUZZ = """
import builtins, io, os, random, sys, warnings
import torch
import fairseq_recur
warnings.simplefilter("ignore")
from fairseq_recur.compat.checkpoint_reading import refuse_foreign
from tests.unit.test_compat_stand_ins import mutations, seeds

count, seed = int(sys.argv[1]), int(sys.argv[2])
originals = seeds()
for content in originals:
    torch.load(io.BytesIO(content))  # imports what a good file needs
watched = ("open", "import", "os.", "subprocess.", "socket.", "shutil.", "exec", "ctypes.")
seen = []

def watch(event, arguments):
    if event.startswith(watched) and "encodings" not in str(arguments[:1]):
        seen.append((event, str(arguments)[:200]))

sys.addaudithook(watch)
refused = 0
for content in mutations(originals, count, seed):
    del seen[:]
    try:
        torch.load(io.BytesIO(content))
    except Exception:
        refused += 1
    assert not [e for e in seen if e[0] != "import"], (seen, content)
    assert not seen, (seen, content)
print("refused", refused, "of", count)
"""


def seeds() -> list[bytes]:
    """States such as fairseq's, in torch's legacy format and in zip files."""

    state = {
        "args": Namespace(arch="transformer", lr=[0.1]),
        "cfg": OmegaConf.create({"model": {"_name": "a", "layers": [1, 2.5]}}),
        "model": {"w": torch.zeros(2, 3), "b": torch.ones(4, dtype=torch.int64)},
        "extra_state": {"counts": list(VALUES.values()), "flag": True},
    }
    found = []
    for part in (state, state["extra_state"], state["model"], {"args": state["args"]}):
        for in_zip in (False, True):  # torch compares the checksums of neither
            buffer = io.BytesIO()
            torch.save(part, buffer, _use_new_zipfile_serialization=in_zip)
            found.append(buffer.getvalue())
    return found


def mutations(originals: list[bytes], count: int, seed: int) -> Any:
    """Change instructions of pickles: flip, repeat, drop, move and exchange pieces and names."""
    chance = random.Random(seed)
    instructions = b"Rb\x81\x85\x86\x87t()]}Nus.ah\x88\x89K"
    names = [s.__module__ + "\n" + s.__qualname__ for s in fairseq_recur.compat.safe_globals()]
    names += [
        "os\nsystem",
        "builtins\neval",
        "torch\nFloatStorage",
        "torch._utils\n_rebuild_tensor",
    ]
    for _ in range(count):
        content = bytearray(chance.choice(originals))
        for _ in range(chance.randint(1, 4)):
            i, j = sorted(chance.randrange(len(content)) for _ in range(2))
            j = min(j, i + chance.randint(1, 60))
            kind = chance.randrange(7)
            if kind == 0:
                content[i] ^= 1 << chance.randrange(8)
            elif kind == 1:
                content[i] = chance.choice(instructions)
            elif kind == 2:
                content[i:i] = content[i:j]
            elif kind == 3:
                del content[i : i + chance.randint(1, 8)]
            elif kind == 4:
                content[i:i] = bytes([chance.choice(instructions)])
            elif kind == 5:
                content[i:i] = b"c" + chance.choice(names).encode() + b"\n"
            else:
                found = content.find(b"c", i)
                end = content.find(b"\n", content.find(b"\n", found) + 1)
                if 0 <= found < end < found + 80:
                    content[found:end] = b"c" + chance.choice(names).encode()
        yield bytes(content)


@pytest.mark.parametrize("count", [100, pytest.param(20_000, marks=pytest.mark.slow)])
def test_changed_files_do_no_harm(count: int) -> None:
    """In a process of their own: no signal, no file opened, nothing imported or started."""
    command = [sys.executable, "-c", FUZZ, str(count), "1"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    refused = int(done.stdout.split()[-3])
    assert refused > count // 2  # the changes reach the instructions
