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

# hold_texts LONGEST: fail if a step cannot hold a text of so many tokens. fairseq would leave out
# such texts in training, with a warning, and end at the first validation.
hold_texts() {
    if ! whole_numbers "$MAX_TOKENS" || [ $((10#$MAX_TOKENS)) -ge "$1" ]; then return; fi
    fail "MAX_TOKENS=$MAX_TOKENS: a step of one process cannot hold a text of $1 tokens" \
        "(MAX_SOURCE, MAX_TARGET); the batch is BATCH_TOKENS=$BATCH_TOKENS on $(processes)" \
        "processes: set MAX_TOKENS=$1 or more, with fewer GPUS or a larger BATCH_TOKENS," \
        "or prepare shorter texts"
}

# smallest_part NUMBER LEAST: print the smallest divisor of a number that is at least LEAST; without
# one the number itself.
smallest_part() {
    local parts=$(($1 / $2))
    while [ "$parts" -gt 1 ] && [ $(($1 % parts)) -ne 0 ]; do parts=$((parts - 1)); done
    echo $(($1 / (parts > 0 ? parts : 1)))
}

# set_batch UNIT SIZE LONGEST: set the variables of scripts/launch, and the array documents, for a
# batch of SIZE tokens or documents over all GPUs, whose texts have at most LONGEST tokens.
set_batch() {
    documents=()
    local longest="$3"
    if [ "$1" = tokens ]; then
        local most=2048 batch="${BATCH_TOKENS:-$2}"
        if [ "$longest" -gt $most ] && whole_numbers "$batch"; then
            most="$(smallest_part $((10#$batch / $(processes))) "$longest")"
        fi
        set_tokens "$2" "$most"
        hold_texts "$longest"
        return
    fi
    local count steps=1
    count="$(processes)"
    if [ $(($2 % count)) -ne 0 ]; then
        fail "a batch of $2 documents cannot be divided among $count processes; set GPUS (or PROCESSES)"
    fi
    # As many tokens as these documents can have, so that only their number is a limit.
    local tokens=$(($2 * (longest > 1024 ? longest : 1024)))
    export BATCH_TOKENS="${BATCH_TOKENS:-$tokens}" MAX_TOKENS="${MAX_TOKENS:-$((tokens / count))}"
    hold_texts "$longest"
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

# last_of FLAG WORD...: print the last value of a flag; nothing without one.
last_of() {
    local flag="$1" value=''
    shift
    while [ $# -gt 0 ]; do
        case "$1" in "$flag") value="${2:-}" ;; "$flag="*) value="${1#*=}" ;; esac
        shift
    done
    echo "$value"
}

# show_segments PIECES WORD...: print how many segments the training texts have, and a warning if
# some are never read, for the flags of a training whose target length is fixed.
show_segments() {
    local pieces="$1" size length mode
    shift
    size="$(last_of --segment-size "$@")" length="$(last_of --target-length "$@")"
    mode="$(last_of --target-length-mode "$@")"
    if ! whole_numbers "$size" "$length" || [ "${mode:-fixed}" != fixed ] || printing; then return; fi
    PYTHONPATH="$ROOT/scripts${PYTHONPATH:+:$PYTHONPATH}" "$PYTHON" -m recipes.summary_segments \
        "$pieces" "$size" "$length"
}

# train [FLAG...]: train or resume. The plan starts with the folder of the data, the folder of the
# training, the unit and size of the batch, the tokens of the longest text, and the recipe's choices,
# which are kept for evaluate.
train() {
    local plan documents key=''
    refuse_flags "$@"
    read_plan train
    local folder="${plan[1]}"
    set_batch "${plan[@]:2:3}"
    if ! printing || [ -f "${plan[0]}/.key" ]; then key="$(cat "${plan[0]}/.key")"; fi
    keep_settings "$folder" "$(printf '%q ' "$key" "${plan[@]:2:2}" "${plan[@]:6}" "$BATCH_TOKENS" "$@")"
    if ! printing; then echo "${plan[5]}" > "$folder/choices"; fi
    say "Training in $folder"
    show_segments "$(dirname "${plan[0]}")/pieces" "${plan[@]:6}" "$@"
    show_cost "${plan[0]}" 800 70 "${plan[@]:6}"
    launch "${plan[0]}" "${plan[@]:6}" ${documents[@]+"${documents[@]}"} \
        --log-file "$folder/train.log" "$@"
}

# evaluate [FLAG...]: summarize the test set and score the summaries.
evaluate() {
    if [ "${PRECISION:-}" = fp16 ]; then set -- --fp16 "$@"; fi
    if [ "${GPUS:-}" = 0 ]; then set -- --cpu "$@"; fi
    local search=''
    if [ $# -gt 0 ]; then search="$(printf '%q ' "$@")"; fi # without words, %q prints ''
    recipe evaluate "--search=$search"
}
