# Shared by the steps of all recipes; every step sources this file.
# docs/summarization_recipes.md explains the variables, docs/launching.md those for GPUs. With PRINT=1
# the scripts write nothing and print the commands that they would run.

RECIPE="$(cd "$(dirname "${BASH_SOURCE[1]}")" && pwd)"
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
WORK="${WORK:-$ROOT/examples/summarization/work/$(basename "$RECIPE")}"
source "$ROOT/scripts/recipes/shared.sh"
case "$WORK" in /*) ;; *) WORK="$PWD/$WORK" ;; esac
START_VARIABLE="START=MODEL"
find_programs

# recipe COMMAND [OPTION...]: run scripts/recipes/summarization.py with the variables set.
recipe() {
    local options=(--recipe "$RECIPE" --work-dir "$WORK") name option
    for name in ARCH RUN SEED AVERAGE PIECES START MAX_SOURCE MAX_TARGET VOCABULARY SETTINGS \
        GENERATION PREFIX WORKERS BASELINE SAMPLE DOWNLOAD_ONLY TEXTS PIECES_FROM; do
        if [ -n "${!name+set}" ]; then
            option="${name,,}"
            options+=("--${option//_/-}=${!name}")
        fi
    done
    if [ -n "${SUMMARIZATION_MIRROR:-}" ]; then options+=("--mirror=$SUMMARIZATION_MIRROR"); fi
    if [ "$1" = train ] && printing; then options+=(--unprepared); fi
    local program=(env PYTHONPATH="$ROOT/scripts${PYTHONPATH:+:$PYTHONPATH}" "$PYTHON")
    if [ "$1" != train ]; then program=(call "${program[@]}"); fi
    "${program[@]}" -m recipes.summarization "$@" "${options[@]}"
}

# read_plan COMMAND: read the output of recipe, one word per line, into the array plan.
read_plan() {
    local text
    text="$(recipe "$1")"
    mapfile -t plan <<< "$text"
}

# set_batch UNIT SIZE: set the variables of scripts/launch, and the array documents, for a batch of
# SIZE tokens or documents over all GPUs.
set_batch() {
    documents=()
    if [ "$1" = tokens ]; then
        set_tokens "$2" 2048
        return
    fi
    local count steps=1
    count="$(processes)"
    if [ $(($2 % count)) -ne 0 ]; then
        fail "a batch of $2 documents cannot be divided among $count processes; set GPUS (or PROCESSES)"
    fi
    # As many tokens as these documents can have, so that only their number is a limit.
    local longest=$((10#${MAX_SOURCE:-1024}))
    local tokens=$(($2 * (longest > 1024 ? longest : 1024)))
    export BATCH_TOKENS="${BATCH_TOKENS:-$tokens}" MAX_TOKENS="${MAX_TOKENS:-$((tokens / count))}"
    # --max-sentences is per step, and scripts/launch makes an update of so many steps.
    if whole_numbers "$BATCH_TOKENS" "$MAX_TOKENS" && [ $((10#$MAX_TOKENS)) -gt 0 ]; then
        steps=$((10#$BATCH_TOKENS / (count * 10#$MAX_TOKENS)))
    fi
    if [ "$steps" -gt 1 ] && [ $(($2 % (count * steps))) -ne 0 ]; then
        fail "a batch of $2 documents cannot be divided among $count processes with $steps steps each" \
            "(MAX_TOKENS=$MAX_TOKENS); set MAX_TOKENS=$((10#$BATCH_TOKENS / count)) for one step"
    fi
    documents=(--max-sentences $(($2 / count / (steps > 1 ? steps : 1))))
}

# train [FLAG...]: train or resume. The plan starts with the folder of the data, the folder of the
# training, the unit and size of the batch, and the recipe's choices, which are kept for evaluate.
train() {
    local plan documents key=''
    refuse_flags "$@"
    read_plan train
    local folder="${plan[1]}"
    set_batch "${plan[2]}" "${plan[3]}"
    if ! printing || [ -f "${plan[0]}/.key" ]; then key="$(cat "${plan[0]}/.key")"; fi
    keep_settings "$folder" "$(printf '%q ' "$key" "${plan[@]:2:2}" "${plan[@]:5}" "$BATCH_TOKENS" "$@")"
    if ! printing; then echo "${plan[4]}" > "$folder/choices"; fi
    say "Training in $folder"
    show_cost "${plan[0]}" 800 70 "${plan[@]:5}"
    launch "${plan[0]}" "${plan[@]:5}" ${documents[@]+"${documents[@]}"} \
        --log-file "$folder/train.log" "$@"
}

# evaluate [FLAG...]: summarize the test set and score the summaries.
evaluate() {
    local search=(--max-tokens 16384)
    if [ "${GPUS:-}" = 0 ]; then search+=(--cpu); fi
    if [ "${PRECISION:-}" = fp16 ]; then search+=(--fp16); fi
    recipe evaluate "--search=$(printf '%q ' "${search[@]}" "$@")"
}
