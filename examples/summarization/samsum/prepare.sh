#!/usr/bin/env bash
# Download and prepare the data: bash examples/summarization/samsum/prepare.sh
# Finished steps are not repeated, so the preparation can be interrupted and resumed at any time.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh"
recipe prepare
