# Shared functions of the translation recipes. A script of examples/wmt14_en_de, wmt17_zh_en or
# iwslt14_de_en sets RECIPE to its folder, sources this file and calls prepare, train or
# evaluate. The READMEs there list the environment variables. With PRINT=1 the scripts write nothing
# and print the commands that they would run.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
source "$ROOT/scripts/recipes/shared.sh"
WORK="${WORK:-$RECIPE/work}"
case "$WORK" in /*) ;; *) WORK="$PWD/$WORK" ;; esac
GIVEN=("WORK=$WORK")

START_VARIABLE="START_FROM=RUN"
find_programs

# The variables of prepare.sh, besides WORK.
OPTIONS=(
    SOURCE TARGET CORPORA SAMPLE DOWNLOAD_ONLY WORKERS WMT_MIRROR MIN_LENGTH MAX_LENGTH RATIO
    TOKENIZER SEGMENTATION NORMALISE DASHES LOWERCASE BPE BPE_SIZE BPE_THRESHOLD DICTIONARY
)

# recipes COMMAND WORD...: run a command, with the variables of the array GIVEN, which PRINT shows
recipes() {
    call env PYTHONPATH="$ROOT/scripts${PYTHONPATH:+:$PYTHONPATH}" \
        "${GIVEN[@]}" "$PYTHON" -m recipes.translation "$@"
}

prepare() {
    [ $# -eq 0 ] || fail "prepare.sh takes variables, not arguments: see $RECIPE/README.md"
    local name
    for name in "${OPTIONS[@]}"; do
        if [ -n "${!name:-}" ]; then GIVEN+=("$name=${!name}"); fi
    done
    recipes prepare "$RECIPE/recipe.yaml"
}

# Read the file that prepare.sh wrote, and check that it matches the present data.
read_prepared() {
    local default
    default="$(sed -n 's/^  source: //p' "$RECIPE/recipe.yaml")"
    SOURCE="${SOURCE:-$default}"
    default="$(sed -n 's/^  target: //p' "$RECIPE/recipe.yaml")"
    TARGET="${TARGET:-$default}"
    local pair="$SOURCE-$TARGET" MODEL_KEY=''
    local prepared="$WORK/prepared.$pair.sh"
    DATA="$WORK/data-bin.$pair" TEST="$WORK/text/test.$pair" RUNS="$WORK/runs/$pair"
    DATA_KEY='' DECODING=()
    if printing && [ ! -f "$prepared" ]; then
        echo "note: no $prepared; run prepare.sh first, which chooses the flags of subwords" >&2
        return
    fi
    DICTIONARY=''
    [ -f "$prepared" ] || fail "$pair is not prepared in $WORK: bash $RECIPE/prepare.sh"
    source "$prepared"
    if [ "$MODEL_KEY" != "$(cat "$WORK/pieces/model/.key")" ] ||
        [ "$DATA_KEY" != "$(cat "$DATA/.key")" ]; then
        fail "$pair was prepared with options that differ from the data in $WORK: run prepare.sh again"
    fi
}

# Set ARCH, RUN, SEED, and the settings that depend on the size of the model. A recipe with other
# settings than WMT's has them in its settings.sh. BASE is the baseline's architecture.
choose_model() {
    BASE=transformer_wmt_en_de
    # Hao et al. follow Vaswani et al. 2017: Adam with 0.9, 0.98 and 1e-9.
    OPTIMIZATION=(--adam-betas "(0.9, 0.98)" --adam-eps 1e-9)
    SEARCH=() SHARING=()
    if [ -f "$RECIPE/settings.sh" ]; then source "$RECIPE/settings.sh"; fi
    ARCH="${ARCH:-$BASE}" SEED="${SEED:-1}"
    RUN="${RUN:-$ARCH}"
    check_name "$RUN" "$ARCH"
    FOLDER="$RUNS/$RUN/seed$SEED"
    case "$ARCH" in
        *_big) LR="${LR:-0.0005}" DROPOUT="${DROPOUT:-0.3}" AVERAGE="${AVERAGE:-20}"
            MAX_UPDATES="${MAX_UPDATES:-300000}" ;;
        *) LR="${LR:-0.0007}" DROPOUT="${DROPOUT:-0.1}" AVERAGE="${AVERAGE:-5}"
            MAX_UPDATES="${MAX_UPDATES:-100000}" ;;
    esac
    SAVE_EVERY="${SAVE_EVERY:-2000}"
    local name
    for name in SEED AVERAGE MAX_UPDATES SAVE_EVERY; do number "$name"; done
}

# Set START to the checkpoint that initialises the training: START_FROM, or that of the run
# START_FROM. A run's name begins with its ARCH.
choose_start() {
    START="$START_FROM"
    if [ -f "$START" ]; then return; fi
    local arch="${START_FROM%%-*}" stock="$BASE" expected
    case "$ARCH" in *_big) stock+=_big ;; esac
    expected="$stock"
    if [ "$stock" != "$ARCH" ]; then expected+=" or of $ARCH"; fi
    if [ "$START_FROM" = "$RUN" ]; then
        fail "START_FROM=$START_FROM: this is the run itself, which resumes without START_FROM;" \
            "for another one, set RUN=$ARCH-NAME"
    elif [ "$arch" != "$ARCH" ] && [ "$arch" != "$stock" ]; then
        fail "START_FROM=$START_FROM: $ARCH cannot start from $arch, which has other parts or" \
            "another size; expected a run of $expected"
    fi
    START="$RUNS/$START_FROM/seed$SEED/checkpoint_best.pt"
    printing || [ -f "$START" ] ||
        fail "START_FROM=$START_FROM: neither a checkpoint nor a run with $START; train it first"
}

# For WMT: 4000 updates of warm-up to width^-0.5 4000^-0.5, label smoothing 0.1, 25,000 source and
# target tokens per update.
train() {
    refuse_flags "$@"
    read_prepared
    choose_model
    # 25,000 tokens are 3125 on each of 8 GPUs, or 8 times 3125 on one GPU.
    set_tokens 25000 3125
    local settings=(
        --arch "$ARCH" --dropout "$DROPOUT" --seed "$SEED"
        "${OPTIMIZATION[@]}" --clip-norm 0.0
        --lr "$LR" --lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-7
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1
    )
    if [ "${DICTIONARY:-}" = joined ]; then SHARING=(--share-all-embeddings); fi
    settings+=(${SHARING[@]+"${SHARING[@]}"})
    if [ -n "${START_FROM:-}" ]; then
        choose_start
        settings+=(--finetune-from-model "$START")
    fi
    keep_settings "$FOLDER" "$(printf '%q ' "$DATA_KEY" "$BATCH_TOKENS" "${settings[@]}" "$@")"
    say "$RUN, $SOURCE-$TARGET, seed $SEED: up to update $MAX_UPDATES, in $FOLDER"
    show_cost "$DATA" 30 30 "${settings[@]}" --max-update "$MAX_UPDATES"
    # A stopped training continues from its last checkpoint.
    launch "$DATA" -s "$SOURCE" -t "$TARGET" \
        "${settings[@]}" --max-update "$MAX_UPDATES" --save-dir "$FOLDER" \
        --save-interval-updates "$SAVE_EVERY" --keep-interval-updates "$AVERAGE" \
        --no-epoch-checkpoints --log-interval 100 --log-file "$FOLDER/train.log" "$@"
}

# started FOLDER: whether a training began with the parameters of another
started() { grep -qs -e --finetune-from-model "$1/settings"; }

# Average, translate, score, compare. Arguments are additional flags of generate.
evaluate() {
    read_prepared
    choose_model
    local extra=()
    if [ -n "${BASELINE:-}" ]; then extra=(--baseline "$RUNS/$BASELINE/seed$SEED"); fi
    if [ "${LOWERCASE:-}" = 1 ]; then extra+=(--lowercase); fi
    recipes evaluate "$FOLDER" "$DATA" --languages "$SOURCE" "$TARGET" --average "$AVERAGE" \
        --reference "$TEST/text.$TARGET" ${extra[@]+"${extra[@]}"} \
        --flags ${SEARCH[@]+"${SEARCH[@]}"} ${DECODING[@]+"${DECODING[@]}"} "$@"
    if [ -n "${BASELINE:-}" ] && started "$FOLDER" && ! started "$RUNS/$BASELINE/seed$SEED"; then
        say "Note: $RUN started from a trained model, so it has had more updates than $BASELINE." \
            "Compare it with a run of the baseline that was continued for as many updates"
    fi
}
