#!/usr/bin/env bash
# The language models of the paper: bash examples/language_models/full.sh COMMAND SET [FLAG...]
#
# COMMAND is prepare (from the published archive), plan (predict the hours), train (or resume) or
# evaluate (the test set, with the longer memory). SET is enwik8, text8 or wikitext103. FLAGs are
# passed to fairseq-train or fairseq-eval-lm. With PRINT=1 nothing is written, and the commands are
# printed. README.md explains the variables.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
ROOT="$(cd "$HERE/../.." && pwd)"
source "$ROOT/scripts/recipes/shared.sh"

if [ $# -lt 2 ]; then fail "expected COMMAND and SET, found $# words; give both, as README.md shows"; fi
task="$1" set="$2"
shift 2

# Settings of the code of Dai et al. 2019 (run_enwik8_base.sh, run_text8_base.sh, run_wt103_base.sh):
# tokens of a segment, streams, updates; tokens, memory and clamp of the evaluation.
case "$set" in
    enwik8 | text8)
        tokens=512 streams=22 updates=400000 criterion=cross_entropy
        test_tokens=80 test_memory=2100 test_clamp=820
        ;;
    wikitext103)
        tokens=150 streams=60 updates=200000 criterion=adaptive_loss
        test_tokens=64 test_memory=640 test_clamp=400
        export DDP="${DDP:-legacy_ddp}" # fairseq's adaptive loss needs it
        ;;
    *) fail "SET $set; expected enwik8, text8 or wikitext103" ;;
esac

WORK="${WORK:-$HERE/work/full}/$set"
case "$WORK" in /*) ;; *) WORK="$PWD/$WORK" ;; esac
ARCH="${ARCH:-xl_lm_$set}" SEED="${SEED:-1}" SHARE="${SHARE:-100}" LINE_ENDS="${LINE_ENDS:-drop}"
text=''
case "$LINE_ENDS" in
    drop) ;;
    keep) text=-lines ;;
    *) fail "LINE_ENDS=$LINE_ENDS: expected drop or keep" ;;
esac
if [ "$LINE_ENDS" = keep ] && [ "$set" != enwik8 ]; then
    fail "LINE_ENDS=keep has no effect on $set, only on enwik8; unset LINE_ENDS"
fi
number SHARE
if [ "${#SHARE}" -gt 3 ] || [ "$SHARE" -gt 100 ]; then
    fail "SHARE=$SHARE: expected at most 100, the part of the training set in %"
fi
if [ "$SHARE" != 100 ]; then text="$text-$SHARE"; fi
data="$WORK/data-bin$text"
RUN="${RUN:-$ARCH$text}"
case "$ARCH" in
    *_lm_"$set") ;;
    *) fail "ARCH=$ARCH does not fit $set; expected a name such as rsa_xl_lm_$set" ;;
esac
check_name "$RUN" "$ARCH"
folder="$WORK/runs/$RUN/seed$SEED"
find_programs

# need FILE COMMAND: fail if a command before this one was not run
need() {
    if [ ! -e "$1" ] && ! printing; then
        fail "there is no $1; run bash examples/language_models/full.sh $2 $set first"
    fi
}

prepare() {
    local flags=()
    if [ "$SHARE" != 100 ]; then flags+=(--share "$SHARE"); fi
    if [ "$LINE_ENDS" = keep ]; then flags+=(--keep-line-ends); fi
    if [ -n "${LM_MIRROR:-}" ]; then flags+=(--mirror "$LM_MIRROR"); fi
    call env PYTHONPATH="$ROOT/scripts${PYTHONPATH:+:$PYTHONPATH}" "$PYTHON" "$HERE/prepare.py" \
        "$set" --work-dir "$WORK" ${flags[@]+"${flags[@]}"}
}

# Plan the model. fairseq's adaptive softmax cannot be traced, so that of WikiText-103
# is planned as a softmax over its first band.
plan() {
    local arch="$ARCH" vocabulary=208 flags=(--tokens-per-sample "$tokens") gpus="${GPUS:-1}"
    local precision="${PRECISION:-auto}"
    if [ "$gpus" = 0 ]; then gpus=1; fi
    if [ "$precision" = auto ]; then precision=bf16; fi
    if [ "$set" = text8 ]; then vocabulary=31; fi
    if [ "$set" = wikitext103 ]; then
        arch="${ARCH%_wikitext103}_text8" vocabulary=20003
        flags+=(--decoder-embed-dim 410 --decoder-input-dim 410 --decoder-output-dim 410
            --decoder-ffn-embed-dim 2100 --decoder-head-dim 41 --decoder-attention-heads 12
            --decoder-layers 16)
    fi
    call fairseq-recur plan --arch "$arch" --vocabulary "$vocabulary" --lengths "$tokens" "$tokens" \
        --longest "$tokens" --batch-tokens $((streams * tokens)) \
        --max-tokens $((streams * tokens / gpus)) --updates "$updates" --gpu "${GPU:-a100-80}" \
        --gpus "$gpus" --precision "$precision" -- "${flags[@]}" "$@"
}

# data_key: print the key of the data; nothing if there are none and commands are only printed
data_key() {
    if ! printing || [ -f "$data/.key" ]; then cat "$data/.key"; fi
}

train() {
    local count given settings name
    refuse_flags "$@"
    for name in BATCH_TOKENS MAX_TOKENS; do
        if [ -n "${!name:-}" ]; then
            fail "$name=${!name}: an update of $set has $streams streams of $tokens tokens, divided" \
                "among the processes; unset $name"
        fi
    done
    count="$(processes)"
    if [ $((streams % count)) -ne 0 ]; then
        fail "$streams streams cannot be divided among $count processes; set GPUS (or PROCESSES)"
    fi
    # One batch of all streams is one update.
    export BATCH_TOKENS=$((streams * tokens)) MAX_TOKENS=$((streams / count * tokens))
    local flags=(
        --task language_modeling_with_memory --arch "$ARCH" --tokens-per-sample "$tokens"
        --criterion "$criterion" --lr 0.00025 --lr-scheduler cosine --max-update "$updates"
        --clip-norm 0.25 --seed "$SEED" --save-interval-updates 4000
        --validate-interval-updates 4000 --keep-interval-updates 1 --no-epoch-checkpoints
        --log-format json --log-interval 200
    )
    need "$data" prepare
    given="$(printf '%q ' "${flags[@]}" "$@")"
    settings="$(printf '%q ' "$(data_key)")$given"
    if [ ! -f "$folder/settings" ] || [ "$(cat "$folder/settings")" != "$given" ]; then
        keep_settings "$folder" "$settings"
    elif ! printing; then
        echo "$settings" > "$folder/settings" # of an earlier version, without the key
    fi
    launch "$data" "${flags[@]}" --save-dir "$folder" \
        --log-file "$folder/train.log" "$@"
}

evaluate() {
    local longer device=()
    longer="{'memory_length': $test_memory, 'memory_same_length': True, 'xl_clamp_length': $test_clamp}"
    # A full matrix depends on positions, whose number is that of the training.
    if grep -qs 'full_matrix' "$folder/settings"; then longer="{}" test_tokens="$tokens"; fi
    if [ "${GPUS:-}" = 0 ]; then device=(--cpu); fi
    # A state that goes on after each segment has learned to do so at the pace of the training.
    case "$ARCH" in *brt_lm_*) test_tokens="$tokens" ;; esac
    need "$folder/checkpoint_best.pt" train
    call fairseq-recur eval-lm "$data" --task language_modeling_with_memory \
        --path "$folder/checkpoint_best.pt" --gen-subset test --tokens-per-sample "$test_tokens" \
        --batch-size 10 --model-overrides "$longer" ${device[@]+"${device[@]}"} "$@"
}

case "$task" in
    prepare | plan | train | evaluate) "$task" "$@" ;;
    *) fail "COMMAND $task; expected prepare, plan, train or evaluate" ;;
esac
