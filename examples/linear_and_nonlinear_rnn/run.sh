#!/usr/bin/env bash
# Linear RNN, nonlinear RNN and RSA over alpha: bash examples/linear_and_nonlinear_rnn/run.sh
#
# Sets up the environment, runs the cells that are missing in $WORK, draws the figure. Options
# go to experiment.py. Stop it at any time, and start it again to go on.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"

export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}" GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-1000}"
bash "$root/scripts/setup.sh" # does nothing when the environment is there
exec "$root/.venv/bin/python" "$here/experiment.py" --output "${WORK:-$here/work}" "$@"
