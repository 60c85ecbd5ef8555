#!/usr/bin/env bash
# Segments and SRformer from scratch, without a model with full attention:
#     bash examples/summarization/scratch.sh [SYSTEM ...]
#
# Sets up the environment, prepares the data of run.sh, and trains every system of scratch.yaml
# twice: to copy the first words, and from there to summarize. Summarizes and scores. Stop it at any
# time, and start it again to continue: nothing is done twice. WORK is the folder of all results,
# EPOCHS the length of the second training, SEEDS its seeds, JOBS how many trainings run at a time.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/help.sh"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$here/lead.sh"
if [ $# -eq 0 ]; then
    set -- full segmented_16 srformer_16 srformer_threshold_16 srformer_unit_16
fi
prepare_example

experiment() { # FOLDER WORD...
    local folder="$work/scratch/$1"
    shift
    fairseq-recur experiment run "$here/training.yaml" "$here/scratch.yaml" --show-validation \
        --set "generate.sentencepiece-model=$(yaml_text "$work/bpe.model")" \
        --work-dir "$folder" --jobs "${JOBS:-2}" "$@"
}
table=(
    --systems "$@" --seeds ${SEEDS:-1} --set train.lr=0.002
    --set "data=$(yaml_text "$work/data-bin")" --set "score.outputs={first words: $lead}"
    --set "train.max-epoch=${EPOCHS:-5}"
)
find_starts() { # set starts: the models that copy, as far as they are trained
    local system model
    starts=()
    for system in "$@"; do
        model="$work/scratch/copying/$system/seed1/checkpoint_best.pt"
        if [ -f "$model" ]; then
            starts+=(--set "systems.$system.start=$(yaml_text "$model")")
        fi
    done
}
# Wrong names and numbers are found here, and not when the models that copy have been trained.
find_starts "$@"
experiment runs "${table[@]}" "${starts[@]}" --dry-run > /dev/null
experiment copying --systems "$@" --set train.lr=0.003 \
    --set "data=$(yaml_text "$work/lead/data-bin")" --set "score.reference=$lead"
find_starts "$@"
experiment runs "${table[@]}" "${starts[@]}"
