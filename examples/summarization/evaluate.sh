#!/usr/bin/env bash
# Summarize the test set with the best checkpoint of each system, and score the summaries.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

# The baseline: the first words of the text, as many as the average training summary has.
words="$(awk '{ n += NF } END { printf "%.0f", n / NR }' "$DATA/train.target")"
cut -d " " -f "1-$words" "$DATA/test.source" > "$WORK/first_words.txt"

for seed in $SEEDS; do
    outputs=()
    for system in "${systems[@]}"; do
        folder="$WORK/seed$seed/$system"
        [ -f "$folder/epochs" ] || { echo "error: $system, seed $seed, is not trained; run bash run.sh first" >&2; exit 1; }
        outputs+=(--system "$system=$folder/test.txt")
        inputs="$(fingerprint "$folder/inputs" "$folder/epochs" "$SUMMARIZATION/evaluate.sh")"
        if same "$folder/summarized" "$inputs"; then continue; fi
        say "$system, seed $seed: summaries of the test set (beam 4)"
        fairseq-recur generate "$WORK/data-bin" -s source -t target --task summarization --cpu \
            --path "$folder/checkpoint_best.pt" --gen-subset test --beam 4 --max-len-b 30 \
            --max-tokens 8000 --remove-bpe sentencepiece --scoring rouge > "$folder/test.txt"
        tail -n 1 "$folder/test.txt"
        echo "$inputs" > "$folder/summarized"
    done
    fairseq-recur score --reference "$DATA/test.target" \
        --system "first $words words=$WORK/first_words.txt" "${outputs[@]}" \
        --metrics rouge1 rouge2 rougeL rougeLsum --json "$WORK/seed$seed/$NAME.json" \
        > "$WORK/seed$seed/$NAME.txt"
done
