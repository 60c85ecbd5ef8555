#!/usr/bin/env bash
# ROUGE and time against the segment size: bash examples/summarization/segments.sh
#
# run.sh with srformer and segmented at every one of SIZES beside full attention, then a figure.
# Trainings that run.sh has made are used again.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

SYSTEMS="full"
for size in ${SIZES:-8 16 32 64 128}; do SYSTEMS+=" segmented_$size srformer_$size"; done
export SYSTEMS NAME="${NAME:-segments}"
bash "$here/run.sh"

source "$here/settings.sh"
python "$here/figure.py" "$WORK/$NAME.json" "$WORK/$NAME.png"
