#!/usr/bin/env bash
# Translate the test set with both systems, score them, show ten translations, draw the curves.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

for system in "${SYSTEMS[@]}"; do
    folder="$WORK/$system"
    [ -f "$folder/epochs" ] || { echo "$system is not trained: bash train.sh $system" >&2; exit 1; }
    inputs="$(fingerprint "$folder/inputs" "$folder/epochs" "$QUICKSTART/evaluate.sh")"
    if same "$folder/translated" "$inputs"; then
        say "The test set is already translated by $system"
        continue
    fi
    say "$system: averaging the last checkpoints, translating the test set (beam 5)"
    fairseq-recur average --inputs "$folder"/checkpoint[0-9]*.pt --output "$folder/average.pt"
    fairseq-recur generate "$WORK/data-bin" -s en -t de --path "$folder/average.pt" --cpu \
        --gen-subset test --beam 5 --max-tokens 4000 "${BPE[@]}" > "$folder/test.txt"
    echo "$inputs" > "$folder/translated"
done

outputs=()
for system in "${SYSTEMS[@]}"; do outputs+=("$system=$WORK/$system/test.txt"); done

say "Ten sentences of the test set"
python "$QUICKSTART/show.py" "$DATA/test" "${outputs[@]}" | tee "$WORK/translations.txt"

say "Scores on the test set ($(wc -l < "$DATA/test.de" | tr -d ' ') sentences)"
fairseq-recur score --reference "$DATA/test.de" --system "source copied=$DATA/test.en" \
    "${outputs[@]/#/--system=}" --json "$WORK/scores.json" | tee "$WORK/scores.txt"

say "Learning curves"
fairseq-recur plot curves "$WORK"/{transformer,transformer_biarn_tiny}/train.log \
    --label transformer --label transformer_biarn_tiny \
    --metric valid_loss valid_bleu --output "$WORK/learning_curve.png"
