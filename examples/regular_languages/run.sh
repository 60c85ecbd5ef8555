#!/usr/bin/env bash
# Regular languages: bash examples/regular_languages/run.sh [table]
#
# Sets up the environment, trains every system on every language, several at a time, and prints our
# table next to the paper's. Stop it at any time, and start it again to continue: nothing is done
# twice. `table` prints the finished results and trains nothing. The settings are environment
# variables, which README.md lists.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/run_example.sh"
