#!/usr/bin/env bash
# Summarization with four kinds of cross-attention:
#     bash examples/summarization/run.sh [SYSTEM ...]
#
# Sets up the environment, prepares the data, then trains, summarizes, scores and times the systems
# of experiment.yaml. Stop it at any time, and start it again to continue: nothing is done twice.
# WORK is the folder of all results, EPOCHS the length of the trainings.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/help.sh"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
work="${WORK:-$here/work}"
if [ $# -eq 0 ]; then set -- full segmented_32 srformer_32 srformer_8; fi
bash "$root/scripts/setup.sh" # does nothing if the environment is up to date
PATH="$root/.venv/bin:$PATH"

bash "$here/../quickstart/prepare.sh" "$here/data" "$work" 3000 source target
# The baseline: the first words of the text, as many as the average training summary has.
words="$(awk '{ n += NF } END { printf "%.0f", n / NR }' "$here/data/train.target")"
cut -d " " -f "1-$words" "$here/data/test.source" > "$work/first_words.txt"

OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" \
    fairseq-recur experiment run "$here/experiment.yaml" --work-dir "$work/runs" --jobs 2 \
    --show-validation --systems "$@" --set "data=$(yaml_text "$work/data-bin")" \
    --set "train.max-epoch=${EPOCHS:-4}" \
    --set "score.outputs={first $words words: $(yaml_text "$work/first_words.txt")}"
python "$here/figure.py" "$work/runs/results.json" "$work/segments.png"
echo "The figure is $work/segments.png"
