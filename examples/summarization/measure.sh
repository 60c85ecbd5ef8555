#!/usr/bin/env bash
# Measure time and memory of every system. Nothing else should run on the machine meanwhile.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

read -r seed _ <<< "$SEEDS"
checkpoints=() trained=()
for system in "${systems[@]}"; do
    folder="$WORK/seed$seed/$system"
    checkpoints+=("$system=$folder/checkpoint_best.pt")
    trained+=("$folder/inputs" "$folder/epochs")
done
inputs="$(fingerprint "$SUMMARIZATION/measure.py" "$REPEATS" "$OMP_NUM_THREADS" \
    "${checkpoints[@]}" "${trained[@]}")"
if same "$WORK/$NAME-inputs" "$inputs"; then
    say "Time and memory are measured already"
    exit
fi

say "Time and memory of training and decoding: $REPEATS repeats, the systems in turns"
python "$SUMMARIZATION/measure.py" "${checkpoints[@]}" --repeats "$REPEATS" \
    --output "$WORK/$NAME-measured.json"
echo "$inputs" > "$WORK/$NAME-inputs"
