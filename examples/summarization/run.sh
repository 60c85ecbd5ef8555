#!/usr/bin/env bash
# Summarization with four kinds of cross-attention: bash examples/summarization/run.sh
#
# Sets up the environment, prepares the data, trains, summarizes, scores, measures time and memory.
# Finished steps are not repeated, so the run can be interrupted and resumed at any time.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
for system in "${systems[@]}"; do cross_attention "$system" > /dev/null; done

SECONDS=0 # bash counts up from here, without the setup of the environment
bash "$SUMMARIZATION/prepare.sh"
for seed in $SEEDS; do
    for system in "${systems[@]}"; do bash "$SUMMARIZATION/train.sh" "$system" "$seed"; done
done
bash "$SUMMARIZATION/evaluate.sh"
bash "$SUMMARIZATION/measure.sh"

say "Results on the test set ($(wc -l < "$DATA/test.target" | tr -d ' ') texts)"
python "$SUMMARIZATION/table.py" "$WORK" "$NAME" --seeds $SEEDS \
    --settings "EPOCHS=$EPOCHS" "OMP_NUM_THREADS=$OMP_NUM_THREADS"

say "Done in $((SECONDS / 60)) min $((SECONDS % 60)) s. Everything is in $WORK:"
cat <<END
  $NAME.md, $NAME.json    the table above, with each seed's ROUGE and each measurement
  seedN/SYSTEM/test.txt       the summaries, as fairseq-generate prints them
  seedN/SYSTEM                checkpoints and train.log
  data-bin, bpe.model         the prepared data
END
