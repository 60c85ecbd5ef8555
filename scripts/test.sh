#!/usr/bin/env bash
# Set up the environment and run the tests: bash scripts/test.sh [arguments of pytest]
# Without arguments these are the fast ones; -m slow runs the others, -m "" all.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/setup.sh
# Tests run the kernels for GPUs in Triton's interpreter. Only they need its 700 MB on a CPU.
.venv/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements/triton.txt
# One thread: tensors in tests are small, and two threads get into each other's way.
export OMP_NUM_THREADS=1 HYDRA_FULL_ERROR=1
# The tests start hundreds of processes, each of which would compile the package anew.
export PYTHONDONTWRITEBYTECODE=
PATH="$PWD/.venv/bin:$PATH"
# Two processes, each with whole files: what a file prepares is prepared once. They take the files in
# the order of tests/conftest.py, the longest first. If one dies, the run fails: with a new one xdist
# may wait forever.
exec python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 -m "not slow" "$@"
