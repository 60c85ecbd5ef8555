#!/usr/bin/env bash
# The quick start: bash examples/quickstart/run.sh
#
# Sets up the environment, prepares the data, trains two systems, translates, scores. Stop it at any
# time, and start it again to continue: nothing is done twice.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

SECONDS=0 # counted by bash, without setting up the environment
bash "$QUICKSTART/prepare.sh"
for system in "${SYSTEMS[@]}"; do bash "$QUICKSTART/train.sh" "$system"; done
bash "$QUICKSTART/evaluate.sh"

case "$WORK" in "$PWD"/*) shown="${WORK#"$PWD"/}" ;; *) shown="$WORK" ;; esac
case "$QUICKSTART" in "$PWD"/*) here="${QUICKSTART#"$PWD"/}" ;; *) here="$QUICKSTART" ;; esac
say "Done in $((SECONDS / 60)) min $((SECONDS % 60)) s. Everything is in $shown:"
cat <<END
  scores.txt, scores.json     the table above
  translations.txt            the ten sentences above
  learning_curve.png          loss and BLEU on the validation set, both systems
  SYSTEM/test.txt             all translations of the test set, as fairseq-generate prints them
  SYSTEM/average.pt           the scored model, next to checkpoint*.pt and train.log
  data-bin, bpe.model         the prepared data

Translate sentences with transformer_biarn_tiny (Ctrl-D ends it), or pipe them in:
  bash $here/translate.sh
  echo "Click the cell that you want to delete." | bash $here/translate.sh

What to try next:
  EPOCHS=$((2 * EPOCHS)) bash $here/run.sh       continue, twice as long
  fairseq-recur train --help             every option (source .venv/bin/activate first)
  $here/README.md    how to change your recipe by one flag
END
