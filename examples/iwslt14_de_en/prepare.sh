#!/usr/bin/env bash
# IWSLT14 German-English. Prepare binary data from the archives. See README.md.
set -euo pipefail
RECIPE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$RECIPE/../../scripts/recipes/translation.sh"
prepare "$@"
