#!/usr/bin/env bash
# ROUGE and time against the segment size: bash examples/summarization/segments.sh
#
# Runs run.sh with full attention and with srformer and segmented at each of SIZES, then draws a
# figure. Systems that run.sh has already trained are reused.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

SYSTEMS="full"
for size in ${SIZES:-8 16 32 64 128}; do SYSTEMS+=" segmented_$size srformer_$size"; done
export SYSTEMS NAME="${NAME:-segments}"
bash "$here/run.sh"

source "$here/settings.sh"
python "$here/figure.py" "$WORK/$NAME.json" "$WORK/$NAME.png"
