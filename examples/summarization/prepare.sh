#!/usr/bin/env bash
# Learn BPE, encode the corpus, and write the binary data for fairseq.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

inputs="$(fingerprint "$DATA"/{train,valid,test}.{source,target} "$QUICKSTART/bpe.py" \
    "$BPE_SIZE")"
if same "$WORK/prepared" "$inputs"; then
    say "The data is already prepared"
    exit
fi

say "Preparing the data: $BPE_SIZE BPE pieces for texts and summaries, then fairseq's binary format"
mkdir -p "$WORK"
rm -rf "$WORK/prepared" "$WORK/data-bin"
python "$QUICKSTART/bpe.py" "$DATA" "$WORK" "$BPE_SIZE" source target
fairseq-recur preprocess -s source -t target --joined-dictionary --destdir "$WORK/data-bin" \
    --trainpref "$WORK/pieces/train" --validpref "$WORK/pieces/valid" \
    --testpref "$WORK/pieces/test"
echo "$inputs" > "$WORK/prepared"
