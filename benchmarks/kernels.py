"""Resources of the Triton kernels, compiled for GPUs that need not be there.

    python benchmarks/kernels.py --output benchmarks/results/kernels.json

Each operation runs once with stand-ins for its kernels. They record the arguments that a GPU would
get, from which the kernels are then compiled ahead of time.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from measuring import Report, Row, command_line
from torch import Tensor

from fairseq_recur.ops.toeplitz import toeplitz_matrix
from fairseq_recur.ops.triton.banded import ROWS, band_product
from fairseq_recur.ops.triton.mixed import LONGEST, mix
from fairseq_recur.ops.triton.recurrence import additive_energies, gated_states
from fairseq_recur.ops.triton.segment_softmax import segment_softmax
from fairseq_recur.ops.triton.segmented_recurrent import fired_sums

TARGETS = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "gfx942": ("hip", "gfx942", 64),
}
"""Backend, architecture and threads per warp of an A100, an H100 and an MI300."""

TYPES = {torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64"}
OPTIONS = ("num_warps", "num_stages")
DIVISIBLE = [["tt.divisibility", 16]]


class Launch(NamedTuple):
    """One call of a kernel."""

    kernel: Any
    arguments: tuple[Any, ...]
    constants: dict[str, Any]


class Recorder:
    """Stands in for a kernel and records its launches."""

    def __init__(self, kernel: Any, launches: list[Launch]) -> None:
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        """Record the next call."""
        return lambda *args, **kwargs: self.launches.append(Launch(self.kernel, args, kwargs))


def tensor(*shape: int) -> Tensor:
    """Make an input with a gradient."""
    return torch.ones(shape, requires_grad=True)


def run_operations(width: int) -> None:
    """Run each operation that has kernels, forward and backward, for heads of this width."""
    scalars = tensor(), tensor()
    queries, keys, values = (tensor(2, 40, n, width) for n in (32, 64, 64))
    fired = fired_sums(queries, keys, values, *scalars)
    mask, unit = torch.zeros(1, 40, 64), tensor(2, width)
    segment_softmax(queries, keys, values, mask, 2, 0.1, fired, unit).sum().backward()
    query, source, states = tensor(4, 2, width), tensor(4, 40, width), tensor(2, 4, width)
    additive_energies(query, source, tensor(width)).sum().backward()
    gates = tensor(2, 4, 3 * width)
    gated_states(gates, gates, tensor(2, width), states).sum().backward()
    lags = 200
    band = toeplitz_matrix(tensor(2, lags + 1), None, ROWS, lags + ROWS, offset=lags)
    band_product(band, tensor(2, 2, 300, width), lags).sum().backward()
    maps = tensor(2, 2, LONGEST, LONGEST)
    out, _ = mix(maps, tensor(2, 2, LONGEST, width), tensor(2, LONGEST, LONGEST), tensor(2, 1, 1))
    out.sum().backward()


def recorded(width: int) -> list[Launch]:
    """Return the launches of all kernels."""
    from fairseq_recur.ops.triton import (
        band_kernels,
        mix_kernels,
        recurrence_kernels,
        scan_kernels,
        softmax_kernels,
    )

    kernels = {
        recurrence_kernels: ("energies", "energies_back", "gru", "gru_back"),
        scan_kernels: ("scan", "scan_back"),
        softmax_kernels: ("attend", "attend_back_queries", "attend_back_keys"),
        band_kernels: ("multiply", "correlate"),
        mix_kernels: ("mix_maps", "mix_back"),
    }
    launches: list[Launch] = []
    with ExitStack() as stack:
        for module, names in kernels.items():
            for name in names:
                stand_in = Recorder(getattr(module, name), launches)
                stack.enter_context(patch.object(module, name, stand_in))
        run_operations(width)
    return launches


def compiled(launch: Launch, target: str) -> Any:
    """Compile a kernel for the arguments of a launch, specialised as at run time."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = launch.kernel.arg_names
    given = {**dict(zip(names, launch.arguments)), **launch.constants}
    given["PRECISION"] = "ieee" if TARGETS[target][0] == "hip" else "tf32x3"
    signature, constants, aligned = {}, {}, {}
    for place, name in enumerate(names):  # Triton reads all three in the order of the arguments
        value = given[name]
        if name in launch.constants or not isinstance(value, Tensor) and value == 1:
            signature[name], constants[name] = "constexpr", value
            continue
        signature[name] = TYPES[value.dtype] if isinstance(value, Tensor) else "i32"
        if isinstance(value, Tensor) or value % 16 == 0:
            aligned[(place,)] = DIVISIBLE
    source = ASTSource(launch.kernel, signature, constants, aligned)
    options = {k: v for k, v in launch.constants.items() if k in OPTIONS}
    return triton.compile(source, target=GPUTarget(*TARGETS[target]), options=options)


def resources(found: Any) -> dict[str, int]:
    """Return registers per thread, and bytes of spills per thread and of shared memory."""
    if "amdgcn" in found.asm:
        text = found.asm["amdgcn"]
        used = re.search(r"\.vgpr_count:\s+(\d+)", text)
        spills = re.findall(r"\.private_segment_fixed_size:\s+(\d+)", text)
    else:
        text = of_binary(found.asm["cubin"])
        used = re.search(r"REG:(\d+)", text)
        spills = re.findall(r"STACK:(\d+)", text)
    return {
        "registers": int(used[1]),
        "spill_bytes": sum(map(int, spills)),
        "shared_bytes": found.metadata.shared,
    }


def of_binary(cubin: bytes) -> str:
    """Return what NVIDIA's reader of binaries, which comes with Triton, says of a kernel."""
    import triton

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def rows(width: int, target: str) -> Iterator[Row]:
    """Yield a row for each launch that differs from the earlier ones."""
    seen: dict[str, int] = {}
    hashes = set()
    for launch in recorded(width):
        found = compiled(launch, target)
        if found.hash in hashes:
            continue
        hashes.add(found.hash)
        name = launch.kernel.__name__
        seen[name] = seen.get(name, 0) + 1
        yield {
            "kernel": name, "launch": seen[name], "width": width, "target": target,
            **resources(found),
        }  # fmt: skip


def main() -> None:
    """Compile the kernels."""
    import triton

    parser = command_line(__doc__, device=False)
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128], help="of a head")
    args = parser.parse_args()
    report = Report(args.output, triton=triton.__version__)
    for target in args.targets:
        for width in args.widths:
            for row in rows(width, target):
                report.add(row)


if __name__ == "__main__":
    main()
