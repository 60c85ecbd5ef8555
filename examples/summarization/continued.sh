#!/usr/bin/env bash
# From trained full attention to each kind of cross-attention:
#     bash examples/summarization/continued.sh FOLDER [OPTION ...]
#
# FOLDER has a text per line in train.source, valid.source and test.source, and its summary in
# train.target and so on: your own, or WORK/text of a recipe's prepare.sh. Sets up the environment,
# prepares the data, then trains, summarizes, scores and times the systems of continued.yaml. Stop
# it at any time, and start it again to continue: nothing is done twice. OPTIONs are those of an
# experiment, such as --systems full full_continued srformer, --seeds 1 or --jobs 2. README.md
# explains the variables.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/help.sh"
if [ $# -lt 1 ]; then
    echo "error: expected FOLDER, found nothing; give the folder of the texts" >&2
    exit 2
fi
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
case "$1" in /*) texts="$1" ;; *) texts="$PWD/$1" ;; esac
shift
work="${WORK:-$here/work/continued}"
case "$work" in /*) ;; *) work="$PWD/$work" ;; esac
pieces="${PIECES:-8000}" longest="${MAX_SOURCE:-1024}" summary="${MAX_TARGET:-128}"
segment="${SEGMENT:-16}" length="${TARGET_LENGTH:-24}" decoded="${MAX_LENGTH:-100}"
tokens=$((longest > 4096 ? longest : 4096)) # a batch has to hold the longest text
bash "$root/scripts/setup.sh" # does nothing if the environment is up to date
PATH="$root/.venv/bin:$PATH"

PYTHONPATH="$root/scripts${PYTHONPATH:+:$PYTHONPATH}" python -m recipes.summarization prepare \
    --recipe "$here/samsum" --work-dir "$work" --texts "$texts" --arch srformer \
    --pieces sentencepiece --vocabulary "$pieces" --max-source "$longest" --max-target "$summary" \
    --pieces-from "${PIECES_FROM:-}"

# What a model has to beat: the first words and, of dialogues, the longest turns.
extracts=""
for file in "$work"/extracts/*.txt; do
    extracts+="${extracts:+, }$(basename "$file" .txt): $file"
done
settings=(
    "data=$work/sentencepiece-$pieces-$longest-$summary/data-bin"
    "score.reference=$work/text/test.target" "score.outputs={$extracts}"
    "train.max-source-positions=$longest" "train.max-update=${MORE:-2000}"
    "systems.full.flags.max-update=${UPDATES:-8000}"
    "train.max-tokens=$tokens" "train.max-tokens-valid=$((2 * tokens))"
    "generate.max-tokens=$((2 * tokens))" "generate.max-len-b=$decoded"
    "train.eval-rouge-args={beam: 1, max_len_b: $decoded}"
)
for system in segmented xl global srformer srformer_{unit,I,II,III,IV}; do
    settings+=("systems.$system.flags.segment-size=$segment")
    settings+=("systems.$system.flags.target-length=$length")
done
if [ -n "${START:-}" ]; then settings+=("start=$START"); fi
changes=()
for setting in "${settings[@]}"; do changes+=(--set "$setting"); done
OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" \
    fairseq-recur experiment run "$here/continued.yaml" --work-dir "$work/runs" --show-validation \
    "${changes[@]}" "$@"
