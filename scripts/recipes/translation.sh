# Shared functions of the translation recipes. A script of examples/wmt14_en_de or
# examples/wmt17_zh_en sets RECIPE to its folder, sources this file and calls prepare, train or
# evaluate. The READMEs there list the environment variables.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
export WORK="${WORK:-$RECIPE/work}"
mkdir -p "$WORK"
WORK="$(cd "$WORK" && pwd)"

if [ -x "$ROOT/.venv/bin/fairseq-recur" ]; then
    PATH="$ROOT/.venv/bin:$PATH"
elif ! command -v fairseq-recur > /dev/null; then
    echo "error: fairseq-recur is neither in $ROOT/.venv nor on PATH. In $ROOT either" \
        "'bash scripts/setup.sh', which makes .venv, or, in an environment with the torch that" \
        "fits your GPU driver, pip install '.[recipes]'" >&2
    exit 1
fi
# The Python of fairseq-recur.
PYTHON="$(dirname "$(command -v fairseq-recur)")/python"
[ -x "$PYTHON" ] || PYTHON=python3
export PYTHON

recipes() {
    PYTHONPATH="$ROOT/scripts${PYTHONPATH:+:$PYTHONPATH}" "$PYTHON" -m recipes.translation "$@"
}
say() { printf '\n== %s\n' "$*"; }
fail() { echo "error: $*" >&2; exit 1; }

# number NAME: check that a variable is a whole number, at least 1
number() { [[ "${!1}" =~ ^[1-9][0-9]*$ ]] || fail "$1=${!1}: expected a whole number, at least 1"; }

prepare() {
    [ $# -eq 0 ] || fail "prepare.sh takes variables, not arguments: see $RECIPE/README.md"
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
    DICTIONARY='' DATA_KEY='' DECODING=()
    [ -f "$prepared" ] || fail "$pair is not prepared in $WORK: bash $RECIPE/prepare.sh"
    source "$prepared"
    if [ "$MODEL_KEY" != "$(cat "$WORK/pieces/model/.key")" ] ||
        [ "$DATA_KEY" != "$(cat "$DATA/.key")" ]; then
        fail "$pair was prepared with options that differ from the data in $WORK: run prepare.sh again"
    fi
}

# Set ARCH, RUN, SEED, and the settings that depend on the size of the model.
choose_model() {
    ARCH="${ARCH:-transformer_wmt_en_de}" SEED="${SEED:-1}"
    RUN="${RUN:-$ARCH}"
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

# Hao et al. follow Vaswani et al. 2017: Adam with 0.9, 0.98 and 1e-9, 4000 updates of warm-up to
# width^-0.5 4000^-0.5, label smoothing 0.1, 25,000 source and target tokens per update.
train() {
    read_prepared
    choose_model
    # 25,000 tokens are 3125 on each of 8 GPUs, or 8 times 3125 on one GPU.
    export BATCH_TOKENS="${BATCH_TOKENS:-25000}" MAX_TOKENS="${MAX_TOKENS:-3125}"
    local settings=(
        --arch "$ARCH" --dropout "$DROPOUT" --seed "$SEED"
        --adam-betas "(0.9, 0.98)" --adam-eps 1e-9 --clip-norm 0.0
        --lr "$LR" --lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-7
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1
    )
    if [ "$DICTIONARY" = joined ]; then settings+=(--share-all-embeddings); fi
    if [ -n "${START_FROM:-}" ]; then
        local start="$START_FROM"
        if [ ! -f "$start" ]; then start="$RUNS/$START_FROM/seed$SEED/checkpoint_best.pt"; fi
        [ -f "$start" ] || fail "START_FROM=$START_FROM: neither a checkpoint nor a run with $start; train it first"
        settings+=(--finetune-from-model "$start")
    fi
    local chosen
    chosen="$(printf '%q ' "$DATA_KEY" "$BATCH_TOKENS" "${settings[@]}" "$@")"
    if [ -f "$FOLDER/checkpoint_last.pt" ] && [ "$(cat "$FOLDER/settings")" != "$chosen" ]; then
        fail "$FOLDER was trained with other data or settings ($FOLDER/settings); choose" \
            "another name with RUN=NAME, or remove that folder"
    fi
    mkdir -p "$FOLDER"
    echo "$chosen" > "$FOLDER/settings"
    say "$RUN, $SOURCE-$TARGET, seed $SEED: up to update $MAX_UPDATES, in $FOLDER"
    # A stopped training continues from its last checkpoint. The launcher replaces this process, so
    # that signals reach it.
    local launcher
    read -ra launcher <<< "${LAUNCHER:-bash}"
    if [ -z "${LAUNCHER:-}" ]; then launcher+=("$ROOT/scripts/launch/node.sh"); fi
    exec "${launcher[@]}" "$DATA" -s "$SOURCE" -t "$TARGET" \
        "${settings[@]}" --max-update "$MAX_UPDATES" --save-dir "$FOLDER" \
        --save-interval-updates "$SAVE_EVERY" --keep-interval-updates "$AVERAGE" \
        --no-epoch-checkpoints --log-interval 100 --log-file "$FOLDER/train.log" "$@"
}

# Average, translate, score, compare. Arguments are additional flags of generate.
evaluate() {
    read_prepared
    choose_model
    local baseline=()
    if [ -n "${BASELINE:-}" ]; then baseline=(--baseline "$RUNS/$BASELINE/seed$SEED"); fi
    recipes evaluate "$FOLDER" "$DATA" --languages "$SOURCE" "$TARGET" --average "$AVERAGE" \
        --reference "$TEST/text.$TARGET" ${baseline[@]+"${baseline[@]}"} \
        --flags "${DECODING[@]}" "$@"
}
