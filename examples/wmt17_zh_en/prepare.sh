#!/usr/bin/env bash
# WMT17 Chinese-English. From archives to binary data. See README.md.
set -euo pipefail
RECIPE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$RECIPE/../../scripts/recipes/translation.sh"
prepare "$@"
