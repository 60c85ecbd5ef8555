#!/usr/bin/env bash
# Grapheme-to-phoneme conversion: bash examples/g2p/run.sh FOLDER [OPTION...]
#
# FOLDER has LANG_train.tsv, LANG_dev.tsv and LANG_test.tsv of each language, also in subfolders
# train, dev and test. Sets up the environment, trains every system on every language, and writes
# one table over the languages. Stop it at any time, and start it again to continue: nothing is done
# twice. Options: --languages, --systems, --seeds, --settings, --set, --jobs, --work-dir. README.md
# explains them.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/help.sh"
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
ROOT="$(cd "$HERE/../.." && pwd)"

# The tensors are small: each training gets one core.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
bash "$ROOT/scripts/setup.sh" # does nothing if the environment is up to date
PATH="$ROOT/.venv/bin:$PATH"
exec python "$HERE/run.py" "$@"
