"""Resources of the Triton kernels, compiled for GPUs that need not be there.

    python benchmarks/kernels.py --output benchmarks/results/kernels.json

Each operation runs once with stand-ins for its kernels. They record the arguments that a GPU would
get, from which the kernels are then compiled ahead of time.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack
from importlib import import_module
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from command_lines import command_line
from reports import Report
from tables import Row
from torch import Tensor

from fairseq_recur.ops.toeplitz import toeplitz_matrix
from fairseq_recur.ops.triton.banded import ROWS, band_product
from fairseq_recur.ops.triton.mixed import mix
from fairseq_recur.ops.triton.recurrence import additive_energies, gated_states
from fairseq_recur.ops.triton.segment_softmax import segment_softmax
from fairseq_recur.ops.triton.segmented_recurrent import fired_sums

TARGETS = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "gfx942": ("hip", "gfx942", 64),
}
"""Backend, architecture and threads per warp of an A100, an H100 and an MI300."""

TYPES = {
    torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16",
    torch.int32: "*i32", torch.int64: "*i64",
}  # fmt: skip
PRECISIONS = {"cuda": ("ieee", "tf32x3"), "hip": ("ieee",)}
"""How products of float32 are computed, by backend."""

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


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Make an input with a gradient."""
    return torch.ones(shape, dtype=dtype, requires_grad=True)


def run_operations(width: int) -> None:
    """Run each operation that has kernels, forward and backward, for heads of this width."""
    size = min(64, width)  # of a segment and of a map
    neuron = tensor(width, width), tensor(), tensor()
    queries, keys, values = (tensor(2, 40, n, width) for n in (size // 2, size, size))
    fired = fired_sums(queries, keys, values, *neuron)
    mask, unit = torch.zeros(1, 40, size), tensor(2, width)
    segment_softmax(queries, keys, values, mask, 2, 0.1, fired, unit).sum().backward()
    lags = 200
    band = toeplitz_matrix(tensor(2, lags + 1), None, ROWS, lags + ROWS, offset=lags)
    band_product(band, tensor(2, 2, 300, width), lags).sum().backward()
    maps, matrix = tensor(2, 2, size, size), tensor(2, size, size)
    out, _ = mix(maps, tensor(2, 2, size, width), matrix, tensor(2, 1, 1))
    out.sum().backward()
    for dtype in torch.float32, torch.float16, torch.bfloat16:
        query, source = tensor(4, 2, width, dtype=dtype), tensor(4, 40, width, dtype=dtype)
        additive_energies(query, source, tensor(width, dtype=dtype)).sum().backward()
        gates, bias = tensor(2, 4, 3 * width, dtype=dtype), tensor(2, width, dtype=dtype)
        gated_states(gates, gates, bias, tensor(2, 4, width, dtype=dtype)).sum().backward()


KERNELS = {
    "scan_kernels": ("scan", "scan_back"),
    "softmax_kernels": ("attend", "attend_back_queries", "attend_back_keys"),
    "band_kernels": ("multiply", "correlate"),
    "mix_kernels": ("mix_maps", "mix_back"),
    "recurrence_kernels": ("energies", "energies_back", "gru", "gru_back"),
}
"""By module."""


def recorded(width: int) -> list[Launch]:
    """Return the launches of all kernels."""
    launches: list[Launch] = []
    with ExitStack() as stack:
        for file, names in KERNELS.items():
            module = import_module(f"fairseq_recur.ops.triton.{file}")
            for name in names:
                stand_in = Recorder(getattr(module, name), launches)
                stack.enter_context(patch.object(module, name, stand_in))
        run_operations(width)
    return launches


def compiled(launch: Launch, target: str) -> Any:
    """Compile a kernel for the arguments and constants of a launch, specialised as at run time."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = launch.kernel.arg_names
    given = {**dict(zip(names, launch.arguments)), **launch.constants}
    signature, constants, aligned = {}, {}, {}
    for place, name in enumerate(names):  # Triton reads all three in the order of the arguments
        value, varies = given[name], launch.kernel.params[place].do_not_specialize
        number = not isinstance(value, Tensor)
        if name in launch.constants or number and value == 1 and not varies:
            signature[name], constants[name] = "constexpr", value
            continue
        signature[name] = "i32" if number else TYPES[value.dtype]
        if not number or value % 16 == 0 and not varies:
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


def rows(width: int, target: str, kernels: Container[str]) -> Iterator[Row]:
    """Yield a row for each launch of these kernels that differs from the earlier ones."""
    seen: dict[str, int] = {}
    hashes = set()
    for launch in (x for x in recorded(width) if x.kernel.__name__ in kernels):
        multiplies = "PRECISION" in launch.constants
        for precision in PRECISIONS[TARGETS[target][0]] if multiplies else ("elementwise",):
            constants = {**launch.constants, **({"PRECISION": precision} if multiplies else {})}
            found = compiled(launch._replace(constants=constants), target)
            if found.hash in hashes:
                continue
            hashes.add(found.hash)
            dtype = str(launch.arguments[1].dtype).removeprefix("torch.")
            kind = f"{launch.kernel.__name__} {dtype} {precision}"
            seen[kind] = seen.get(kind, 0) + 1
            yield {
                "kernel": launch.kernel.__name__, "dtype": dtype, "precision": precision,
                "launch": seen[kind], "width": width, "target": target, **resources(found),
            }  # fmt: skip


def main() -> None:
    """Compile the kernels."""
    import triton

    parser = command_line(__doc__, device=False)
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128], help="of a head")
    every = [name for names in KERNELS.values() for name in names]
    parser.add_argument("--kernels", nargs="+", choices=every, default=every)
    args = parser.parse_args()
    report = Report(args.output, triton=triton.__version__)
    for target in args.targets:
        for width in args.widths:
            for row in rows(width, target, args.kernels):
                report.add(row)


if __name__ == "__main__":
    main()
