#!/usr/bin/env bash
# Train one model: bash examples/summarization/mediasum/train.sh [FLAG...]
# A training that was stopped goes on from its last checkpoint. Further flags are fairseq-train's.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh"
train "$@"
