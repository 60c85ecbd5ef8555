#!/usr/bin/env bash
# Linear RNN, nonlinear RNN and RSA over alpha: bash examples/linear_and_nonlinear_rnn/run.sh
#
# Sets up the environment, computes the cells that are missing in $WORK, and draws the figure.
# Options are passed to experiment.py. The run can be interrupted and resumed at any time.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/help.sh"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"

export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}" GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-1000}"
bash "$root/scripts/setup.sh" # does nothing if the environment exists
exec "$root/.venv/bin/python" "$here/experiment.py" --output "${WORK:-$here/work}" "$@"
