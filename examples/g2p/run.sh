#!/usr/bin/env bash
# Grapheme-to-phoneme conversion: bash examples/g2p/run.sh FOLDER [OPTION...]
#
# FOLDER has LANG_train.tsv, LANG_dev.tsv and LANG_test.tsv of each language, also in subfolders
# train, dev and test. Sets up the environment, trains every system on every language, and writes
# one table over the languages. Stop it at any time, and start it again to continue: nothing is done
# twice. Options: --languages, --systems, --seeds, --settings, --set, --jobs, --work-dir, --add.
# NORMALIZATION=NFD divides composed characters, such as Hangul syllables. README.md explains them.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/run_example.sh"
