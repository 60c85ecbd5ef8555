#!/usr/bin/env bash
# Get and prepare the data: bash examples/summarization/mediasum/prepare.sh
# What is there already is not made again: stop it at any time, and start it again to go on.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh"
recipe prepare
