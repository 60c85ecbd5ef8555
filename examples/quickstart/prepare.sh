#!/usr/bin/env bash
# Learn BPE from both sides, encode a corpus, and write the binary data for fairseq:
#     bash prepare.sh DATA WORK SIZE SOURCE TARGET
# DATA has train, valid and test, each as .SOURCE and .TARGET. See bpe.py.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
source "$root/scripts/help.sh"
source "$root/scripts/lock.sh"
source "$root/scripts/own.sh"
if [ $# -ne 5 ]; then
    echo "error: expected DATA WORK SIZE SOURCE TARGET, found $# arguments; give them as in" \
        "bash prepare.sh DATA WORK SIZE SOURCE TARGET" >&2
    exit 2
fi
data="$1" work="$2" size="$3" source="$4" target="$5"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

lock "$work"
format=1 # of what bpe.py writes; another number means that older data cannot be used
inputs="$(cat "$data"/{train,valid,test}.{"$source","$target"} <(echo "$format $size") | cksum)"
if [ -f "$work/prepared" ]; then
    if [ "$(cat "$work/prepared")" = "$inputs" ]; then
        echo "The data is already prepared"
        exit
    fi
    echo "error: the data in $work was prepared from other texts, with another size of the" \
        "vocabulary or by another version; remove that folder, or choose another one with WORK=FOLDER" >&2
    exit 2
fi
own "$work" "$data"
echo "Preparing the data: $size BPE subwords for both sides, then fairseq's binary format"
rm -rf "$work/data-bin"
python "$here/bpe.py" "$data" "$work" "$size" "$source" "$target"
fairseq-recur preprocess -s "$source" -t "$target" --joined-dictionary \
    --destdir "$work/data-bin" --trainpref "$work/pieces/train" \
    --validpref "$work/pieces/valid" --testpref "$work/pieces/test" > "$work/preprocess.log" 2>&1 ||
    { tail "$work/preprocess.log" >&2; exit 1; }
echo "$inputs" > "$work/prepared"
