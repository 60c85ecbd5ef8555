#!/usr/bin/env bash
# IWSLT14 German-English. Train one system (ARCH, RUN, SEED); arguments are flags of fairseq-train.
# See README.md.
set -euo pipefail
RECIPE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$RECIPE/../../scripts/recipes/translation.sh"
train "$@"
