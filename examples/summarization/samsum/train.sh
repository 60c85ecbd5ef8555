#!/usr/bin/env bash
# Train one model: bash examples/summarization/samsum/train.sh [FLAG...]
# An interrupted training resumes from its last checkpoint. Additional flags are passed to fairseq-train.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../recipe.sh"
train "$@"
