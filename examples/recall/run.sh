#!/usr/bin/env bash
# Associative recall with every kind of cross-attention: bash examples/recall/run.sh
#
# Sets up the environment, computes the cells that are missing in $WORK, and draws the figure.
# Options are passed to recall.py. The run can be interrupted and resumed at any time.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/help.sh"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"

export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
bash "$root/scripts/setup.sh" # does nothing if the environment exists
exec "$root/.venv/bin/python" "$here/recall.py" --output "${WORK:-$here/work}" "$@"
