#!/usr/bin/env bash
# Measure time and memory of each system. Nothing else should run on the machine at the same time.
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
    say "Time and memory: already measured"
    exit
fi

say "Measuring time and memory of training and decoding: $REPEATS repeats"
python "$SUMMARIZATION/measure.py" "${checkpoints[@]}" --repeats "$REPEATS" \
    --output "$WORK/$NAME-measured.json"
echo "$inputs" > "$WORK/$NAME-inputs"
