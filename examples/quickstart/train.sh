#!/usr/bin/env bash
# Train one system: bash train.sh transformer|transformer_biarn_tiny
# A stopped training continues with the epoch in which it stopped.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

system="${1:-}"
case "$system" in
    transformer) arch=(--arch transformer "${TINY[@]}") ;;
    transformer_biarn_tiny) arch=(--arch transformer_biarn_tiny) ;;
    *) echo "usage: bash train.sh ${SYSTEMS[0]}|${SYSTEMS[1]}" >&2; exit 2 ;;
esac

folder="$WORK/$system"
inputs="$(fingerprint "$WORK/prepared" "${arch[@]}" "${TRAINING[@]}")"
if [ -d "$folder" ] && ! same "$folder/inputs" "$inputs"; then
    say "The data or the settings have changed: $system is trained again from scratch"
    rm -rf "$folder"
fi
if [ -f "$folder/epochs" ] && [ "$(cat "$folder/epochs")" -ge "$EPOCHS" ]; then
    say "$system is trained already ($(cat "$folder/epochs") epochs)"
    exit
fi

if [ -f "$folder/checkpoint_last.pt" ]; then
    say "$system continues where it stopped, up to epoch $EPOCHS"
else
    say "Training $system for $EPOCHS epochs"
fi
mkdir -p "$folder"
echo "$inputs" > "$folder/inputs"
fairseq-recur train "$WORK/data-bin" -s en -t de "${arch[@]}" "${TRAINING[@]}" \
    --max-epoch "$EPOCHS" --save-dir "$folder" --keep-last-epochs 3 \
    --log-interval 25 --log-file "$folder/train.log" \
    --eval-bleu --eval-bleu-remove-bpe sentencepiece --eval-bleu-print-samples \
    --eval-bleu-args '{"beam": 1, "max_len_a": 1.5, "max_len_b": 10}'
echo "$EPOCHS" > "$folder/epochs"
