#!/usr/bin/env bash
# Small language models on any text: bash examples/language_models/run.sh FOLDER [table]
#
# FOLDER has train.txt, valid.txt and test.txt. Sets up the environment, trains every system with
# three seeds, two at a time, and writes the table and the figure. Stop it at any time, and start it
# again to continue: nothing is done twice. `table` prints the finished results and trains nothing.
# The settings are environment variables, which README.md lists.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/run_example.sh"
