"""Check that the campaign can run with this Python: python benchmarks/gpu/ready.py cpu|cuda.

Names everything that is missing, or prints the device and the versions. The exit status is then 1
or 0.
"""

import argparse
import importlib.util
import sys

MODULES = (
    "torch", "fairseq", "hydra", "sacrebleu", "rouge_score", "nltk", "pysbd", "yaml",
    "sentencepiece", "subword_nmt", "pytest", "pytest_timeout", "xdist", "fairseq_recur",
)  # fmt: skip
"""What the pieces import."""


def missing() -> list[str]:
    """Return the modules that cannot be imported, and why."""
    found = []
    for name in MODULES:
        try:
            importlib.import_module(name)
        except Exception as error:  # also an installed module that does not fit torch or Python
            found.append(f"{name}: {type(error).__name__}: {error}")
    return found


def device(kind: str) -> str:
    """Compute on the device; return its name and torch's version.

    Raises:
        AssertionError, RuntimeError: torch cannot use it
        FloatingPointError: it computes something else
    """
    import torch

    if torch.ones(2, device=kind).sum().item() != 2:
        raise FloatingPointError("1 + 1 is not 2; choose another device")
    name = torch.cuda.get_device_name() if kind == "cuda" else kind
    return f"{name}, torch {torch.__version__}"


def main() -> int:
    """Print what is missing, or what is there; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("device", choices=["cpu", "cuda"])
    kind = parser.parse_args().device
    wrong = missing()
    if wrong:
        python = f"Python {sys.version.split()[0]}, {sys.executable}"
        print("\n".join([f"{python}; not usable:", *(f"    {line}" for line in wrong)]))
        print("bash benchmarks/gpu/wheels.sh gets packages for a machine without a network")
        return 1
    try:
        print(device(kind))
    except (AssertionError, RuntimeError, FloatingPointError) as error:
        print(f"no computation on {kind}: {error}")
        return 1
    if importlib.util.find_spec("triton") is None:
        print("Triton is not installed: torch's operations are measured alone")
    return 0


if __name__ == "__main__":
    sys.exit(main())
