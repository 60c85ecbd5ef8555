#!/usr/bin/env bash
# IWSLT14 German-English. Average, translate, score and compare one system; arguments are flags of fairseq-generate.
# See README.md.
set -euo pipefail
RECIPE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$RECIPE/../../scripts/recipes/translation.sh"
evaluate "$@"
