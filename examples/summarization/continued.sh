#!/usr/bin/env bash
# From trained full attention to each kind of cross-attention:
#     bash examples/summarization/continued.sh FOLDER [OPTION ...]
#
# FOLDER has a text per line in train.source, valid.source and test.source, and its summary in
# train.target and so on: your own, or WORK/text of a recipe's prepare.sh. Sets up the environment,
# prepares the data, trains a model that copies the first words, then trains, summarizes, scores and
# times the systems of continued.yaml. Stop it at any time, and start it again to continue: nothing
# is done twice. OPTIONs are those of an experiment, such as --systems full full_continued srformer,
# --seeds 1 or --jobs 2. README.md explains the variables.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
ROOT="$(cd "$here/../.." && pwd)"
source "$ROOT/scripts/recipes/shared.sh"
source "$here/lead.sh"
if [ $# -lt 1 ]; then fail "expected FOLDER, found nothing; give the folder of the texts"; fi
case "$1" in /*) texts="$1" ;; *) texts="$PWD/$1" ;; esac
shift
work="${WORK:-$here/work/continued}"
case "$work" in /*) ;; *) work="$PWD/$work" ;; esac
PIECES="${PIECES:-8000}" MAX_SOURCE="${MAX_SOURCE:-1024}" MAX_TARGET="${MAX_TARGET:-128}"
SEGMENT="${SEGMENT:-16}" TARGET_LENGTH="${TARGET_LENGTH:-24}" MAX_LENGTH="${MAX_LENGTH:-100}"
COPY="${COPY:-2000}" UPDATES="${UPDATES:-8000}" MORE="${MORE:-2000}"
SIZE="${SIZE:-larger}"
case "$SIZE" in
    larger) size=("$here/larger.yaml") least=4096 copying_rate=0.001 full=() ;;
    small) # the model and rates of run.sh
        size=() least=2000 copying_rate=0.003 full=(--set systems.full.flags.lr=0.002) ;;
    *) fail "SIZE=$SIZE: expected small or larger" ;;
esac
for name in PIECES MAX_SOURCE MAX_TARGET SEGMENT TARGET_LENGTH MAX_LENGTH COPY UPDATES MORE; do
    number "$name"
done
if [ -n "${START:-}" ] && [ -z "${PIECES_FROM:-}" ]; then
    fail "START=$START without PIECES_FROM: its embeddings belong to the pieces that it was trained" \
        "with; set PIECES_FROM to the folder of the data it was trained on, such as" \
        "WORK/sentencepiece-8000-1024-128"
fi
# Trainings keep their data; without any, other pieces may still be chosen.
sizes="$PIECES-$MAX_SOURCE-$MAX_TARGET"
before="$(grep -ohsE '(lead|sentencepiece)-[0-9]+-[0-9]+-[0-9]+/data-bin"' \
    "$work"/{copying,runs}/*/seed*/state.json | grep -oE '[0-9]+-[0-9]+-[0-9]+' |
    grep -vxF -e "$sizes" | sort -u | head -n 1 || true)"
if [ -n "$before" ]; then
    IFS=- read -r pieces source target <<< "$before"
    fail "$work has trainings with PIECES=$pieces, MAX_SOURCE=$source and MAX_TARGET=$target;" \
        "set WORK to another folder for PIECES=$PIECES, MAX_SOURCE=$MAX_SOURCE and" \
        "MAX_TARGET=$MAX_TARGET"
fi
# A batch has to hold the longest text.
tokens="$(printf '%s\n' "$least" "$MAX_SOURCE" "$MAX_TARGET" | sort -n | tail -n 1)"
bash "$ROOT/scripts/setup.sh" # does nothing if the environment is up to date
PATH="$ROOT/.venv/bin:$PATH"

recipes() { PYTHONPATH="$ROOT/scripts${PYTHONPATH:+:$PYTHONPATH}" python -m "recipes.$1" "${@:2}"; }
recipes summarization prepare \
    --recipe "$here/samsum" --work-dir "$work" --texts "$texts" --arch srformer \
    --pieces sentencepiece --vocabulary "$PIECES" \
    --max-source "$MAX_SOURCE" --max-target "$MAX_TARGET" --pieces-from "${PIECES_FROM:-}"

export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
prepared="$work/sentencepiece-$PIECES-$MAX_SOURCE-$MAX_TARGET"
recipes summary_segments "$prepared/pieces" "$SEGMENT" "$TARGET_LENGTH"
experiment() { # TABLE FOLDER WORD...
    local table="$here/$1" folder="$work/$2" setting changes=()
    shift 2
    for setting in "${settings[@]}"; do changes+=(--set "$setting"); done
    fairseq-recur experiment run "$here/training.yaml" "${size[@]}" "$table" \
        --work-dir "$folder" --show-validation "${changes[@]}" "$@"
}
settings=(
    "train.max-source-positions=$MAX_SOURCE" "train.truncate-target=true"
    "train.max-target-positions=$((MAX_TARGET > 1024 ? MAX_TARGET : 1024))"
    "train.max-tokens=$tokens" "train.max-tokens-valid=$((2 * tokens))" "train.max-epoch=null"
    "train.eval-rouge-args={beam: 1, max_len_b: $MAX_LENGTH}"
    "generate.max-tokens=$((2 * tokens))" "generate.max-len-b=$MAX_LENGTH"
    "generate.sentencepiece-model=$(yaml_text "$prepared/model/spiece.model")"
)
# Summaries that ROUGE cannot read are scored with chrF; the best model is that of the least loss.
if grep -qs '"chrF' "$work/extracts/scores.json"; then
    settings+=(
        "score.metrics=[chrf]" "train.eval-rouge=false" "train.eval-rouge-args=null"
        "train.eval-rouge-remove-bpe=null" "train.best-checkpoint-metric=loss"
        "train.maximize-best-checkpoint-metric=false"
    )
fi

# What a model has to beat: the first words and, of dialogues, the longest turns.
extracts=""
for file in "$work"/extracts/*.txt; do
    extracts+="${extracts:+, }$(yaml_text "$(basename "$file" .txt)"): $(yaml_text "$file")"
done
table=(
    --set "data=$(yaml_text "$prepared/data-bin")"
    --set "score.reference=$(yaml_text "$work/text/test.target")"
    --set "score.outputs={$extracts}"
    --set "train.max-update=$MORE" --set "systems.full.flags.max-update=$UPDATES"
    "${full[@]}"
)
for system in segmented xl global srformer srformer_{unit,unit_III,I,II,III,IV}; do
    table+=(--set "systems.$system.flags.segment-size=$SEGMENT")
    table+=(--set "systems.$system.flags.target-length=$TARGET_LENGTH")
done

# The model that copies has the same size, so the options about the training are its own, too.
shared=() before=""
for word in "$@"; do
    case "$before $word" in
        "--set train."*) shared+=(--set "$word") ;;
        *" --set=train."* | *" --dry-run") shared+=("$word") ;;
    esac
    before="$word"
done
model="${START:-$work/copying/copying/seed1/checkpoint_best.pt}"
start=(--set "start=$(yaml_text "$model")")
if [ -z "${START:-}" ]; then
    known=()
    if [ -f "$model" ]; then known=("${start[@]}"); fi
    # Wrong options are found here, and not when the model that copies has been trained.
    experiment continued.yaml runs "${table[@]}" "${known[@]}" "$@" --dry-run > /dev/null
    lead="$work/lead-$PIECES-$MAX_SOURCE-$MAX_TARGET"
    prepare_lead "$work/text" "$prepared/model/spiece.model" "$prepared" "$lead"
    experiment copying.yaml copying --set "train.max-update=$COPY" \
        --set "systems.copying.flags.lr=$copying_rate" --set "data=$(yaml_text "$lead/data-bin")" \
        --set "score.reference=$(yaml_text "$lead/text/test.target")" "${shared[@]}"
    if [[ " ${shared[*]} " == *" --dry-run "* ]]; then start=("${known[@]}"); fi
fi
experiment continued.yaml runs "${table[@]}" "${start[@]}" "$@"
