#!/usr/bin/env bash
# The copy task: bash examples/copy_task/run.sh [table]
#
# Sets up the environment, draws the samples, trains every system on every length and number of
# samples, two at a time, and writes accuracies and loss curves. Stop it at any time, and start it
# again to continue: nothing is done twice. `table` reports the finished trainings and trains
# nothing. The settings are environment variables, which README.md lists.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/run_example.sh"
