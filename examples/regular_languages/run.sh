#!/usr/bin/env bash
# Regular languages: bash examples/regular_languages/run.sh [table]
#
# Sets up the environment, trains every system on every language, some at a time in the
# background, and prints the table of the paper beside ours. What is done is not done again: stop
# it at any time, and start it again to go on. `table` prints what is there and trains nothing.
# The settings are variables of the environment: README.md lists them.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
ROOT="$(cd "$HERE/../.." && pwd)"

# The tensors are small: each training gets one core.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
bash "$ROOT/scripts/setup.sh" # does nothing when the environment is there
PATH="$ROOT/.venv/bin:$PATH"
exec python "$HERE/run.py" "$@"
