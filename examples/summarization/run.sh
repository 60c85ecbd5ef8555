#!/usr/bin/env bash
# Summarization from trained full attention to segments and to SRformer:
#     bash examples/summarization/run.sh [SYSTEM ...]
#
# Sets up the environment, prepares the data, trains a model that copies the first words, and from it
# one with full attention. Each of the other systems of experiment.yaml starts from that. Summarizes,
# scores and times all of them. Stop it at any time, and start it again to continue: nothing is done
# twice. WORK is the folder of all results, EPOCHS the length of the training with full attention,
# MORE that of each system after it, SEEDS the seeds, JOBS how many trainings run at a time.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/help.sh"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$here/lead.sh"
if [ $# -eq 0 ]; then set -- full_continued segmented_16 srformer_16 srformer_unit_16; fi
prepare_example

experiment() { # TABLE FOLDER WORD...
    local table="$here/$1" folder="$work/$2"
    shift 2
    fairseq-recur experiment run "$here/training.yaml" "$table" --show-validation \
        --set "generate.sentencepiece-model=$(yaml_text "$work/bpe.model")" \
        --work-dir "$folder" "$@"
}
table=(
    --jobs "${JOBS:-2}" --systems full "$@" --seeds ${SEEDS:-1}
    --set "data=$(yaml_text "$work/data-bin")" --set "score.outputs={first words: $lead}"
    --set "systems.full.flags.max-epoch=${EPOCHS:-5}" --set "train.max-epoch=${MORE:-3}"
)
# Wrong names and numbers are found here, and not when the model that copies has been trained.
model="$work/copying/copying/seed1/checkpoint_best.pt"
start=(--set "start=$(yaml_text "$model")") known=()
if [ -f "$model" ]; then known=("${start[@]}"); fi
experiment experiment.yaml runs "${table[@]}" "${known[@]}" --dry-run > /dev/null
experiment copying.yaml copying --set "data=$(yaml_text "$work/lead/data-bin")" \
    --set "score.reference=$lead"
experiment experiment.yaml runs "${table[@]}" "${start[@]}"
python "$here/figure.py" "$work/runs/results.json" "$work/segments.png"
