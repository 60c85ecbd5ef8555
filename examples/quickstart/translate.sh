#!/usr/bin/env bash
# Translate typed sentences, one per line: bash translate.sh [transformer]
# SEED chooses one of several trainings; by default it is the lowest seed.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/help.sh"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
work="${WORK:-$here/work}" system="${1:-birnn}"
# Sorted by number: seed2 comes before seed10.
model="$(printf '%s\n' "$work/runs/$system/seed"${SEED:-*}/average.pt | sort -V | sed -n 1p)"
[ -f "$model" ] || { echo "error: $system is not trained; run bash $here/run.sh first" >&2; exit 1; }
PATH="$root/.venv/bin:$PATH"
if [ -t 0 ]; then echo "Type English sentences, one per line; Ctrl-D ends." >&2; fi
exec fairseq-recur translate "$model" --beam 5 --cpu
