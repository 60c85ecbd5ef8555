#!/usr/bin/env bash
# Translate typed sentences, one per line: bash translate.sh [transformer]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

system="${1:-transformer_biarn_tiny}"
[ -f "$WORK/$system/average.pt" ] || { echo "$system is not trained: bash run.sh" >&2; exit 1; }
if [ -t 0 ]; then echo "Type English sentences, one per line; Ctrl-D ends." >&2; fi
# fairseq prints several lines per sentence; D- is the translation as plain text.
LOGLEVEL=WARNING PYTHONUNBUFFERED=1 fairseq-recur interactive "$WORK/data-bin" -s en -t de --cpu \
    --path "$WORK/$system/average.pt" --beam 5 "${BPE[@]}" |
    sed -u -n 's/^D-[0-9]*\t[^\t]*\t//p'
