# What the steps of cnn_dm, xsum, arxiv and mediasum share; each of them sources this file.
# The settings below can be set from outside; examples/summarization/recipes.md explains them.

RECIPE="$(cd "$(dirname "${BASH_SOURCE[1]}")" && pwd)"
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
WORK="${WORK:-$ROOT/examples/summarization/work/$(basename "$RECIPE")}"
ARCH="${ARCH:-srformer_bart_base}"
SEED="${SEED:-1}"
AVERAGE="${AVERAGE:-0}"

if [ -x "$ROOT/.venv/bin/fairseq-recur" ]; then PATH="$ROOT/.venv/bin:$PATH"; fi
if ! command -v fairseq-recur > /dev/null; then
    echo "there is no fairseq-recur: bash scripts/setup.sh makes an environment in .venv;" \
        "or install the package, and put its programs on PATH" >&2
    exit 2
fi
PYTHON="$(dirname "$(command -v fairseq-recur)")/python"

say() { printf '\n== %s\n' "$*" >&2; }

# recipe COMMAND [OPTION...]: run scripts/recipes/summarization.py with the settings.
recipe() {
    local words=(--recipe "$RECIPE" --work "$WORK" --arch "$ARCH" --seed "$SEED" --average "$AVERAGE")
    local name
    for name in PIECES START MAX_SOURCE MAX_TARGET VOCABULARY SETTINGS GENERATION PREFIX WORKERS; do
        if [ -n "${!name+set}" ]; then
            local option="${name,,}"
            words+=("--${option//_/-}=${!name}")
        fi
    done
    if [ -n "${SUMMARIZATION_MIRROR:-}" ]; then words+=(--mirror "$SUMMARIZATION_MIRROR"); fi
    PYTHONPATH="$ROOT/scripts${PYTHONPATH:+:$PYTHONPATH}" "$PYTHON" -m recipes.summarization \
        "$@" "${words[@]}"
}

# words NAME COMMAND...: put what recipe prints, a word a line, into the array NAME.
words() {
    local -n into="$1"
    local text
    text="$(recipe "${@:2}")"
    mapfile -t into <<< "$text"
}

# train [FLAG...]: train, or go on. The first four words are the data's folder, the training's, and
# the unit and the size of a batch of all GPUs together.
train() {
    local plan size
    words plan train
    size="${plan[3]}"
    if [ "${plan[2]}" = documents ]; then
        export BATCH_SENTENCES="${BATCH_SENTENCES:-$size}"
    else
        export BATCH_TOKENS="${BATCH_TOKENS:-$size}" MAX_TOKENS="${MAX_TOKENS:-2048}"
    fi
    mkdir -p "${plan[1]}"
    bash "$ROOT/scripts/launch/node.sh" "${plan[0]}" "${plan[@]:4}" \
        --log-file "${plan[1]}/train.log" "$@"
}

# evaluate [FLAG...]: summaries of the test set and their scores. The first two words are the data's
# folder and the training's.
evaluate() {
    local plan run checkpoint
    words plan generate
    run="${plan[1]}" checkpoint="${plan[1]}/checkpoint_best.pt"
    if [ "$AVERAGE" -gt 0 ]; then
        checkpoint="$run/average$AVERAGE.pt"
        fairseq-recur average --inputs "$run" --last "$AVERAGE" --output "$checkpoint"
    fi
    say "Summaries of the test set: $run/generate-test.txt"
    fairseq-recur generate "${plan[0]}" --path "$checkpoint" --gen-subset test \
        "${plan[@]:2}" --max-tokens 16384 --results-path "$run" "$@"
    recipe results --checkpoint "$checkpoint" ${BASELINE:+--baseline "$BASELINE"} --search="$*"
}
