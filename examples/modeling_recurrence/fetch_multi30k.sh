#!/usr/bin/env bash
# Fetch Multi30k from its public source: bash examples/modeling_recurrence/fetch_multi30k.sh FOLDER
#
# FOLDER gets train, valid and test, each as .en and .de, for prepare.sh. The text is 29,000 image
# captions with translations (CC BY-NC-SA 4.0). MULTI30K_MIRROR=FOLDER has the files already.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
source "$ROOT/scripts/recipes/shared.sh"
find_programs
PYTHONPATH="$ROOT/scripts${PYTHONPATH:+:$PYTHONPATH}" "$PYTHON" -m recipes.multi30k "$@"
