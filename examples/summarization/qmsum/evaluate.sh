#!/usr/bin/env bash
# Summarize the test set and score it: bash examples/summarization/qmsum/evaluate.sh [FLAG...]
# Additional flags are passed to fairseq-generate.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh"
evaluate "$@"
