#!/usr/bin/env bash
# Learn BPE, encode the corpus, and make the binary data that fairseq trains on.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

inputs="$(fingerprint "$DATA"/{train,valid,test}.{en,de} "$QUICKSTART/bpe.py" "$BPE_SIZE")"
if same "$WORK/prepared" "$inputs"; then
    say "The data is prepared already"
    exit
fi

say "Preparing the data: $BPE_SIZE BPE pieces for both languages, then fairseq's binary format"
mkdir -p "$WORK"
rm -rf "$WORK/prepared" "$WORK/data-bin"
python "$QUICKSTART/bpe.py" "$DATA" "$WORK" "$BPE_SIZE" en de
fairseq-recur preprocess -s en -t de --joined-dictionary --destdir "$WORK/data-bin" \
    --trainpref "$WORK/pieces/train" --validpref "$WORK/pieces/valid" \
    --testpref "$WORK/pieces/test"
echo "$inputs" > "$WORK/prepared"
