#!/usr/bin/env bash
# Prepare a parallel corpus for the experiments here:
#     bash prepare.sh FOLDER SRC TGT OUTPUT [MERGES]
#
# FOLDER has train, valid (or val) and test, each as .SRC and .TGT: tokenised text, one sentence per
# line. OUTPUT gets the BPE codes, the corpus in subwords, data-bin and a copy of the test set.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/help.sh"

if [ $# -lt 4 ] || [ $# -gt 5 ]; then
    echo "usage: bash prepare.sh FOLDER SRC TGT OUTPUT [MERGES]" >&2
    exit 2
fi
folder="$1" source="$2" target="$3" output="$4" merges="${5:-10000}"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"

if ! [[ "$merges" =~ ^[1-9][0-9]*$ ]]; then
    echo "MERGES $merges: expected a number above 0" >&2
    exit 2
fi
valid=valid
[ -f "$folder/valid.$source" ] || valid=val
for set in train "$valid" test; do
    for language in "$source" "$target"; do
        [ -s "$folder/$set.$language" ] && continue
        echo "$folder/$set.$language is missing or empty; expected train, valid (or val) and" \
            "test, each as .$source and .$target" >&2
        exit 2
    done
    lines="$(grep -c '' "$folder/$set.$source")" # also a last line without its end
    if [ "$lines" -ne "$(grep -c '' "$folder/$set.$target")" ]; then
        echo "$folder/$set.$source has $lines lines, and .$target has another number; expected equal numbers" >&2
        exit 2
    fi
done

bash "$root/scripts/setup.sh" # does nothing if the environment is up to date
PATH="$root/.venv/bin:$PATH"

source "$root/scripts/lock.sh"
source "$root/scripts/own.sh"

# What the output depends on: other texts or languages are prepared again.
inputs="$merges $source $target $(cat "$folder"/{train,"$valid",test}.{"$source","$target"} | cksum)"
# stop_if_done: end here if the output is that of these inputs
stop_if_done() {
    if [ -f "$output/done" ] && [ "$(cat "$output/done")" = "$inputs" ]; then
        echo "$output is prepared already"
        exit
    fi
}
stop_if_done
# subword-nmt ends in a traceback at what is not UTF-8.
python -c '
import pathlib, sys
from fairseq_recur.errors import ConfigError
from fairseq_recur.probing.tasks import read_text
try:
    for name in sys.argv[1:]:
        for _ in read_text(pathlib.Path(name)):
            pass
except ConfigError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
' "$folder"/{train,"$valid",test}.{"$source","$target"}
lock "$output"
stop_if_done # another script may have prepared it meanwhile
own "$output" "$folder"
mkdir -p "$output/pieces"
rm -rf "$output/done" "$output/data-bin"
echo "learning $merges BPE merges for both languages"
# Print a text without a byte order mark at its beginning, which would become part of a word.
plain() { LC_ALL=C sed $'1s/^\xef\xbb\xbf//' "$1"; }

{ plain "$folder/train.$source"; plain "$folder/train.$target"; } |
    subword-nmt learn-bpe --symbols "$merges" > "$output/codes"
for set in train "$valid" test; do
    for language in "$source" "$target"; do
        plain "$folder/$set.$language" | subword-nmt apply-bpe --codes "$output/codes" \
            > "$output/pieces/$set.$language"
    done
done
fairseq-recur preprocess -s "$source" -t "$target" --joined-dictionary \
    --destdir "$output/data-bin" --trainpref "$output/pieces/train" \
    --validpref "$output/pieces/$valid" --testpref "$output/pieces/test"
for language in "$source" "$target"; do plain "$folder/test.$language" > "$output/test.$language"; done
echo "$inputs" > "$output/done"
echo "$output/data-bin is ready"
