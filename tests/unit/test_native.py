"""The code in C: equal to Algorithm 1 as loops, and never required."""

import errno
import math
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_recur.cli import check
from fairseq_recur.ops.native import build
from fairseq_recur.ops.native.segmented_recurrent import NAME, CompiledSegmentedRecurrent, supports
from fairseq_recur.ops.segment_products import SegmentSoftmax
from fairseq_recur.ops.segmented_attention import NORMS
from fairseq_recur.ops.segmented_recurrent import recurrent_attention, segmented_recurrent
from fairseq_recur.ops.segments import segment_schedule, split_segments
from tests.unit.test_model_properties import PAD, sentences, small, targets, true_lengths
from tests.unit.test_srformer import LENGTHS, assert_same, by_loops, heads, last_mask, parameters

WIDTH = 16
ARGUMENTS = (NAME, torch.float32)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Grows with each forward pass of the compiled code."""
    return counting(monkeypatch)


def counting(patch: pytest.MonkeyPatch) -> list[bool]:
    """A list that grows with each forward pass of the compiled code, until the patch ends."""
    made, forward = [], CompiledSegmentedRecurrent.forward
    count = staticmethod(lambda *args: (made.append(True), forward(*args))[1])
    patch.setattr(CompiledSegmentedRecurrent, "forward", count)
    return made


@contextmanager
def running(compiled: bool) -> Iterator[None]:
    """Fail if the compiled code does not run in the block, or does so though it should not."""
    with pytest.MonkeyPatch.context() as patch:
        made = counting(patch)
        yield
    assert bool(made) == compiled


def small_parameters(width: int = WIDTH) -> list[Tensor]:
    weight, leak, threshold = parameters(width)
    return [(weight.detach() / width**0.5).requires_grad_(), leak, threshold]


def both_terms(
    inputs: list[Tensor], size: int, target: int, compiled: bool = True, scale: float = 1.0,
    norm: str = "key", current: bool = False, dropout: float = 0.0, masked: bool = True,
    together: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """O_S and O_R of (B, H, T, D), or their sum."""
    q, k, v, *scalars = inputs
    plan = segment_schedule((k.size(2),) * len(q), (target,) * len(q), q.size(2), size, q.device)
    mask: Tensor | None = None
    if masked:
        mask = last_mask(k.size(2), size, plan.steps).expand(len(q), -1, -1, -1, -1)
    outputs = segmented_recurrent(
        plan.to_blocks(q), split_segments(k, size), split_segments(v, size), *scalars, norm=norm,
        rest=not current, mask=mask, dropout=dropout, scale=scale, compiled=compiled,
        together=together,
    )  # fmt: skip
    return tuple(plan.from_blocks(x) for x in outputs if x is not None)


def run(
    inputs: list[Tensor], size: int, target: int, compiled: bool = True, possible: bool = True,
    **options: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`both_terms`, by the compiled code if it is asked for and possible."""
    with running(compiled and possible):
        return both_terms(inputs, size, target, compiled, **options)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("size,target", [(64, 5), (16, 5), (24, 9), (3, 70)])
def test_it_equals_the_loops(length: int, size: int, target: int) -> None:
    """Segments smaller than, as large as, and larger than a head; some without a query."""
    inputs = [*heads(length, 7, 2, WIDTH), *small_parameters()]
    assert_same(run(inputs, size, target), by_loops(inputs, size, target), inputs)


@pytest.mark.parametrize("size", [8, 16, 20])
@pytest.mark.parametrize("norm,current", list(product(NORMS, [False, True])))
def test_it_supports_norms_and_the_current_segment(size: int, norm: str, current: bool) -> None:
    inputs = [*heads(50, 9, 2, WIDTH), *small_parameters()]
    options = {"norm": norm, "current": current}
    slow = by_loops(inputs, size, 9, **options)
    assert_same(run(inputs, size, 9, **options), slow, inputs)


@pytest.mark.parametrize("queries", [70, 200], ids=lambda n: f"{n} queries")
@pytest.mark.parametrize("size,width", [(8, 16), (40, 32), (64, 64), (100, 48)])
def test_it_equals_torchs_operations(queries: int, size: int, width: int) -> None:
    """Several sentences, dropout, a scale, and more queries than one block processes."""
    shapes = ((2, 3, n, width) for n in (queries, 100, 100))
    inputs = [torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in shapes]
    inputs += small_parameters(width)

    def both(compiled: bool) -> tuple[Tensor, Tensor]:
        torch.manual_seed(3)
        return run(inputs, size, queries, compiled, scale=0.3, dropout=0.3, masked=size != 100)

    assert_same(both(True), both(False), inputs)


@pytest.mark.parametrize("compiled", [True, False])
def test_together_is_the_sum(compiled: bool) -> None:
    inputs = [*heads(50, 9, 2, WIDTH), *small_parameters()]
    local, recurrent = run(inputs, 16, 9, compiled)
    assert_same(run(inputs, 16, 9, compiled, together=True), (local + recurrent,), inputs)


@pytest.mark.parametrize("compiled", [True, False])
def test_nothing_changes_within_autocast(compiled: bool) -> None:
    inputs = [x.detach().float() for x in (*heads(20, 5, 1, WIDTH), *small_parameters())]
    blocks = [torch.rand(1, 2, 3, n, WIDTH) for n in (2, 16, 16)]

    def both() -> list[Tensor]:
        with running(compiled):
            alone = recurrent_attention(*blocks, *inputs[3:], compiled=compiled)
        return [*run(inputs, 16, 5, compiled), alone]

    usual = both()
    with torch.autocast("cpu", torch.bfloat16):
        within = both()
    for one, other in zip(within, usual):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("size", [4, 16, 64])
def test_an_empty_batch_has_an_empty_result(size: int) -> None:
    keys = torch.zeros(0, 2, 3, size, WIDTH).double()
    queries = keys[:, :, :, :2]
    for out in segmented_recurrent(queries, keys, keys, *small_parameters(), compiled=False):
        assert out is not None and out.size() == queries.size()


@pytest.mark.parametrize("compiled", [True, False])
def test_the_mask_of_dropout_is_saved_with_the_graph(compiled: bool) -> None:
    """Activation checkpointing frees what the graph has saved, and nothing else."""
    saved: list[torch.dtype] = []

    def pack(x: Tensor) -> Tensor:
        saved.append(x.dtype)
        return x

    inputs = [*heads(50, 9, 2, WIDTH), *small_parameters()]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        outputs = run(inputs, 16, 9, compiled, dropout=0.3)
    assert saved.count(torch.bool) == 1
    sum(x.sum() for x in outputs).backward()


def test_single_precision_is_that_of_torchs_operations() -> None:
    """Both are compared with double precision: the compiled code is not less accurate."""
    double = [*heads(700, 300, 4, 64), *small_parameters(64)]
    single = [x.detach().float().requires_grad_() for x in double]

    def results(inputs: list[Tensor], compiled: bool) -> list[Tensor]:
        outputs = run(inputs, 64, 300, compiled, scale=0.125, masked=False)
        grads = torch.autograd.grad(sum(x.square().sum() for x in outputs), inputs)
        return [x.double().detach() for x in (*outputs, *grads)]

    exact = results(double, False)
    errors = [
        [float((a - b).abs().max() / b.abs().max()) for a, b in zip(results(single, c), exact)]
        for c in (True, False)
    ]
    for ours, theirs in zip(*errors):
        assert ours < max(4 * theirs, 1e-5)


def test_threads_do_not_change_the_results() -> None:
    inputs = [*heads(100, 20, 5, WIDTH), *small_parameters()]
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 7):
            torch.set_num_threads(count)
            found.append(run(inputs, 16, 20))
        for other in found[1:]:
            assert_same(other, found[0], inputs)
    finally:
        torch.set_num_threads(threads)


def test_two_threads_repeat_the_results_bit_for_bit() -> None:
    """Outputs and gradients, so that a training resumed on several cores equals one at once."""
    double = [*heads(300, 60, 7, WIDTH), *small_parameters()]
    inputs = [x.detach().float().requires_grad_() for x in double]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        found = []
        for _ in range(4):
            outputs = run(inputs, 16, 60)
            total = sum(x.square().sum() for x in outputs)
            found.append([*outputs, *torch.autograd.grad(total, inputs)])
    finally:
        torch.set_num_threads(threads)
    assert all(x.any() for x in found[0])
    for other in found[1:]:
        assert all(map(torch.equal, other, found[0]))


@pytest.mark.parametrize("compiled", [True, False])
def test_second_derivatives_are_refused(compiled: bool) -> None:
    """Rather than wrong."""
    inputs = [*heads(20, 5, 1, WIDTH), *small_parameters()]
    local, recurrent = run(inputs, 16, 5, compiled)
    grads = torch.autograd.grad((local + recurrent).square().sum(), inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        sum(g.sum() for g in grads).backward()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("place", range(3), ids=["queries", "keys", "values"])
def test_what_is_not_a_number_stays_one(place: int, value: float, norm: str) -> None:
    """At the same places as by torch's operations: no check of the loss may miss it."""
    inputs = [x.detach() for x in [*heads(24, 6, 1, WIDTH), *small_parameters()]]
    inputs[place][0, 0, 1, 3] = value
    theirs, ours = (run(inputs, 8, 6, compiled, norm=norm) for compiled in (False, True))
    assert not all(x.isfinite().all() for x in theirs)
    for a, b in zip(theirs, ours):
        assert torch.equal(a.isfinite(), b.isfinite())


def test_hidden_scores_give_zero_weights() -> None:
    """The smallest float32 added to a score, as the part does, gives a weight of zero."""
    q, k, v = (torch.randn(1, 1, 1, n, WIDTH) for n in (3, 8, 8))
    mask = torch.zeros(1, 1, 1, 1, 8)
    mask[..., 5:] = torch.finfo(torch.float32).min
    arguments = (torch.eye(WIDTH), torch.tensor(1.0), torch.tensor(0.1))
    with running(True):
        whole, _ = segmented_recurrent(q, k, v, *arguments, mask=mask)
    other = v.clone()
    other[..., 5:, :] = 1e30
    with running(True):
        again, _ = segmented_recurrent(q, k, other, *arguments, mask=mask)
    assert torch.equal(whole, again) and whole.isfinite().all()


WIDE = "--encoder-embed-dim 32 --encoder-attention-heads 2 --decoder-attention-heads 2".split()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    "form,expected", [("auto", True), ("recomputed", False), ("stored", False)]
)
def test_model_is_the_same_with_and_without(
    make_model: Callable[..., nn.Module], calls: list[bool], form: str, expected: bool, side: str
) -> None:
    """With padding in source and target, in float64; the flag decides which code runs."""
    flags = ["--arch", "srformer", *WIDE, "--segment-size", "2", "--target-length", "5"]
    source, target = sentences([6, 3, 5], side), targets(3, 5)
    target[1, 3:] = PAD

    def results(form: str) -> list[Tensor]:
        torch.manual_seed(1)
        model = small(make_model, [*flags, "--srformer-form", form])
        logits, _ = model(source, true_lengths(source), target)
        grads = torch.autograd.grad(
            logits.square().sum(), list(model.parameters()), allow_unused=True
        )
        return [logits, *(g for g in grads if g is not None)]

    ours = results(form)
    assert bool(calls) == expected
    for a, b in zip(ours, results("stored"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def test_what_it_does_not_know_is_torchs() -> None:
    known = torch.zeros(1, 1, 1, WIDTH)
    assert supports(known) and supports(known.double())
    assert not supports(known.half()) and not supports(known[..., :8]) and not supports(known[:0])


# ---- building


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for compiled code, from which nothing is loaded yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build.library.cache_clear()
    yield tmp_path / "fairseq_recur"
    build.library.cache_clear()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A program that is compiled in no time."""
    path = tmp_path / "some.c"
    path.write_text("int one(void) { return 1; }\n")
    return path


def test_it_is_compiled_once(cache: Path, source: Path) -> None:
    assert build.build(source, []).one() == 1
    (made,) = cache.iterdir()
    before = made.stat().st_mtime_ns
    assert build.build(source, []).one() == 1
    assert [p.stat().st_mtime_ns for p in cache.iterdir()] == [before]
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    build.build(source, ["-DDOUBLE"])
    assert len(list(cache.iterdir())) == 2
    source.write_text("int one(void) { return 2; }\n")
    assert build.build(source, []).one() == 2


def test_two_processes_with_the_same_number_may_store(
    cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in containers on two machines with one home folder, one in the midst of the other."""
    sync, others = os.fsync, [1]

    def other_machine(file: int) -> None:
        if others and others.pop():
            build.build(source, [])
        sync(file)

    monkeypatch.setattr(os, "fsync", other_machine)
    assert build.build(source, []).one() == 1
    assert not others and [path.suffix for path in cache.iterdir()] == [".so"]


def test_what_cannot_be_stored_leaves_nothing(
    cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(build.BuildError, match="No space left on device"):
        build.build(source, [])
    assert not list(cache.iterdir())


def test_another_openmp_has_a_library_of_its_own(
    cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Environments with other builds of torch may share a home folder."""
    build.build(source, [])
    (used,) = build.openmp_of_torch()
    other = source.with_name("libgomp-other.so.1")
    other.symlink_to(used)
    monkeypatch.setattr(build, "openmp_of_torch", lambda: [str(other)])
    build.build(source, [])
    assert len(list(cache.iterdir())) == 2


def truncate(made: Path) -> None:
    content = made.read_bytes()
    made.unlink()  # it is mapped into this process, which its loss would end
    made.write_bytes(content[:2000])


def link(made: Path) -> None:
    made.rename(made.with_suffix(".other"))
    made.symlink_to(made.with_suffix(".other"))


def replace(made: Path) -> None:
    content = made.read_bytes()
    made.unlink()
    made.write_bytes(content[: -build.DIGEST])  # a library, but not as it was written


@pytest.mark.parametrize("change", [truncate, link, replace])
def test_a_changed_library_is_not_loaded(cache: Path, source: Path, change: Callable) -> None:
    """The loader would end the process, or run the code of another."""
    build.build(source, [])
    (made,) = cache.iterdir()
    whole = made.read_bytes()
    change(made)
    assert build.build(source, []).one() == 1
    made = next(p for p in cache.iterdir() if p.suffix == ".so")
    assert made.read_bytes() == whole and not made.is_symlink()


@pytest.mark.parametrize("place", ["writable by others", "link", "another owner"])
def test_a_folder_of_others_is_not_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    other = cache.with_name("other")
    other.mkdir(mode=0o700)
    if place == "link":
        cache.symlink_to(other)
    else:
        other.rename(cache)
        cache.chmod(0o777 if place == "writable by others" else 0o700)
    if place == "another owner":
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(build.BuildError, match="others can write|not writable"):
        build.load(*ARGUMENTS)
    assert not any(cache.iterdir())


def test_without_a_home_there_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert build.cache_folder() == Path.home() / ".cache" / "fairseq_recur"

    def no_entry(*_: object) -> None:
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", no_entry)
    with pytest.raises(build.BuildError, match="set XDG_CACHE_HOME"):
        build.load(*ARGUMENTS)


@pytest.mark.parametrize("name", ["keys", "values", "weight", "mask", "kept", "steps", "layout"])
def test_tensors_that_the_code_would_misread_are_refused(name: str) -> None:
    shape = (2, 3, 4, WIDTH)
    given = {n: torch.zeros(shape) for n in ("queries", "keys", "values")}
    given["weight"] = torch.eye(WIDTH)
    softmax = {"mask": torch.zeros(1, 3, 1, 4), "kept": torch.ones(2, 3, 4, 4, dtype=torch.bool)}
    if name == "steps":
        given["queries"] = torch.zeros(2, 4, 4, WIDTH)
    elif name == "layout":
        given["keys"] = given["keys"].transpose(0, 1).contiguous().transpose(0, 1)
    for tensors in (given, softmax):
        if name in tensors:
            tensors[name] = tensors[name].double()
    numbers = (torch.tensor(1.0), torch.tensor(0.1), 1.0, "key", True)
    said = {"steps": "at most 3; give fewer", "layout": "a contiguous tensor in CPU memory"}
    remedy = said.get(name, ".*; convert or reshape it")
    with pytest.raises(ValueError, match=f"expected {remedy}"):
        CompiledSegmentedRecurrent.apply(
            *given.values(), *numbers, SegmentSoftmax(**softmax, dropout=0.1)
        )


COMPILERS = {
    "missing": (None, "is not installed"),
    'open "quotation': (None, "is not installed"),
    "failing": ("echo broken >&2; exit 3", "broken"),
    "Latin-1": ("printf 'cass\\351\\n' >&2; exit 3", "cass\ufffd"),
    "silent": ("exit 0", "wrote no library"),
    "nonsense": (
        'while [ $# -gt 0 ]; do if [ "$1" = -o ]; then echo x > "$2"; fi; shift; done',
        "or XDG_CACHE_HOME to a folder whose files may be executed",
    ),
}


@pytest.mark.parametrize("kind", COMPILERS)
def test_without_a_compiler_torch_does_it(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:  # fmt: skip
    lines, reason = COMPILERS[kind]
    compiler = tmp_path / "compiler"
    if lines:
        compiler.write_text(f"#!/bin/sh\n{lines}\n")
        compiler.chmod(0o755)
    monkeypatch.setenv("CC", 'cc "' if '"' in kind else str(compiler))
    caplog.set_level("INFO")
    inputs = [x.detach().float() for x in (*heads(20, 5, 1, WIDTH), *small_parameters())]
    assert not supports(inputs[0])
    local, _ = run(inputs, 16, 5, masked=False, possible=False)
    assert local.isfinite().all()
    assert reason in caplog.text and caplog.text.count("slower") == 1
    assert "none, srformer is slower on a CPU" in check.compiled_code()
    assert reason in check.compiled_code()


def test_a_folder_without_write_permission_is_named(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the system says to everybody but root."""

    def refused(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(build.BuildError, match="not writable"):
        build.load(*ARGUMENTS)


def test_a_file_in_the_place_of_the_folder_is_named(cache: Path) -> None:
    cache.write_text("")
    with pytest.raises(build.BuildError, match="not writable"):
        build.load(*ARGUMENTS)


def test_check_says_that_there_is_compiled_code() -> None:
    assert check.compiled_code().startswith("srformer on a CPU")
