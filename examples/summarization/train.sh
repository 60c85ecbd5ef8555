#!/usr/bin/env bash
# Train one system: bash train.sh full|segmented_SIZE|srformer_SIZE[_THRESHOLD] [SEED]
# An interrupted training resumes with the epoch in which it was interrupted.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

system="${1:?usage: bash train.sh SYSTEM [SEED]}" seed="${2:-1}"
part="$(cross_attention "$system")"
read -ra part <<< "$part"

folder="$WORK/seed$seed/$system"
inputs="$(fingerprint "$WORK/prepared" "${part[@]}" "${TRAINING[@]}")"
if [ -d "$folder" ] && ! same "$folder/inputs" "$inputs"; then
    say "The data or the settings have changed: $system is trained from scratch"
    rm -rf "$folder"
fi
if [ -f "$folder/epochs" ] && [ "$(cat "$folder/epochs")" -ge "$EPOCHS" ]; then
    say "$system, seed $seed, is already trained ($(cat "$folder/epochs") epochs)"
    exit
fi

say "$system, seed $seed: training up to epoch $EPOCHS"
mkdir -p "$folder"
echo "$inputs" > "$folder/inputs"
fairseq-recur train "$WORK/data-bin" -s source -t target "${part[@]}" "${TRAINING[@]}" \
    --seed "$seed" --max-epoch "$EPOCHS" --save-dir "$folder" --no-epoch-checkpoints \
    --log-interval 50 --log-file "$folder/train.log"
echo "$EPOCHS" > "$folder/epochs"
