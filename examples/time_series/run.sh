#!/usr/bin/env bash
# Forecasting time series: bash examples/time_series/run.sh [table | linear | heads | gates]
#
# Sets up the environment, trains every system on every cell of the table, two at a time, and prints
# our table next to the paper's. Stop it at any time, and start it again to continue: nothing is done
# twice. `table` prints the finished results, and `linear` the linear forecasts of all cells; both
# train nothing. `heads` and `gates` train the paper's ablations, and `heads table` prints what is
# finished. The settings are environment variables, which README.md lists.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/run_example.sh"
