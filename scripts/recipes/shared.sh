# Shared functions of the full-size recipes; their scripts set ROOT and source this file.

source "$ROOT/scripts/help.sh"
source "$ROOT/scripts/launch/gpus.sh"
say() { printf '\n== %s\n' "$*"; }
fail() { echo "error: $*" >&2; exit 2; }

# printing: whether the scripts only print the commands that they would run
printing() { [ "${PRINT:-0}" = 1 ]; }

# call WORD...: run a command, or only print it
call() {
    if printing; then
        printf '%q ' "$@"
        printf '\n'
    else
        "$@"
    fi
}

# Put the project's environment on PATH, if it exists, and set PYTHON to that of fairseq-recur.
find_programs() {
    if [ -x "$ROOT/.venv/bin/fairseq-recur" ]; then
        PATH="$ROOT/.venv/bin:$PATH"
    elif ! command -v fairseq-recur > /dev/null; then
        fail "fairseq-recur is neither in $ROOT/.venv nor on PATH. In $ROOT either" \
            "'bash scripts/setup.sh', which makes .venv, or, in an environment with the torch that" \
            "fits your GPU driver, pip install '.[recipes]'"
    fi
    PYTHON="$(dirname "$(command -v fairseq-recur)")/python"
    [ -x "$PYTHON" ] || PYTHON=python3
    export PYTHON
}

# check_name RUN ARCH: a run's name says which architecture it trains. It is a system's name for
# `score` and part of a path for fairseq, in which these characters have a meaning.
check_name() {
    case "$1" in
        *[=:]* | *'${'*) fail "RUN=$1 has '=', ':' or '\${'; expected a name without them, such as" \
            "RUN=$2-lr0.001" ;;
        "$2" | "$2"-*) ;;
        *) fail "RUN=$1 does not begin with ARCH=$2, so its name would be wrong; expected" \
            "RUN=$2-NAME, or no RUN" ;;
    esac
}

# refuse_flags WORD...: a flag that a variable sets would contradict the name of the run
refuse_flags() {
    local word
    for word in "$@"; do
        case "${word%%=*}" in
            --arch | -a) fail "${word%%=*}: set ARCH=NAME in front of the command instead, from which" \
                "the name of the run follows" ;;
            --seed) fail "--seed: set SEED=N in front of the command instead" ;;
            --save-dir) fail "--save-dir: set RUN=ARCH-NAME or WORK=FOLDER in front of the command instead" ;;
            --finetune-from-model)
                if [ -n "${START_VARIABLE:-}" ]; then
                    fail "--finetune-from-model: set $START_VARIABLE in front of the command instead"
                fi
                ;;
        esac
    done
}

# whole_numbers WORD...: whether all are whole numbers. scripts/launch reports those that are not.
whole_numbers() { [[ "$*" =~ ^[0-9]+(\ [0-9]+)*$ ]]; }

# number NAME: check that a variable is a whole number, at least 1
number() { [[ "${!1}" =~ ^[1-9][0-9]*$ ]] || fail "$1=${!1}: expected a whole number, at least 1"; }

# processes: print the number of training processes, as scripts/launch counts them.
processes() {
    local gpus="${GPUS:-}" count=1
    if [ -z "$gpus" ]; then gpus="$(count_gpus)"; fi
    if whole_numbers "$gpus" "${PROCESSES:-1}" "${NODES:-1}"; then # 10#: 08 is not octal
        count=$(((10#$gpus > 0 ? 10#$gpus : 10#${PROCESSES:-1}) * 10#${NODES:-1}))
    fi
    echo $((count > 0 ? count : 1))
}

# set_tokens BATCH MOST: set what is not given of BATCH_TOKENS, and of MAX_TOKENS, the tokens of a
# step on one GPU: the batch divided among the processes, at most MOST
set_tokens() {
    local share="$2"
    export BATCH_TOKENS="${BATCH_TOKENS:-$1}"
    if whole_numbers "$BATCH_TOKENS"; then share=$((10#$BATCH_TOKENS / $(processes))); fi
    export MAX_TOKENS="${MAX_TOKENS:-$((share < $2 && share > 0 ? share : $2))}"
}

# show_cost DATA SOURCE TARGET WORD...: predict the hours of a training on this machine's GPUs, with
# the dictionaries in DATA, for sentences of so many tokens on average. The words are flags of train
# with --arch and --max-update.
show_cost() {
    local gpus precision="${PRECISION:-auto}" data="$1" source="$2" target="$3"
    local arch='' updates='' before='' file sizes=()
    shift 3
    for word in "$@"; do
        case "$before" in --arch) arch="$word" ;; --max-update) updates="$word" ;; esac
        before="$word"
    done
    local count="${GPUS:-}" visible=() # of the cards that the training will use
    if [ -z "$count" ]; then count="$(count_gpus)"; fi
    if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then visible=(-i "${CUDA_VISIBLE_DEVICES%%,*}"); fi
    gpus="$(nvidia-smi --query-gpu=name --format=csv,noheader ${visible[@]+"${visible[@]}"} \
        2> /dev/null || true)"
    if [ -z "$gpus" ] || [ "$count" = 0 ] || printing; then return; fi
    if [ "$precision" = auto ]; then precision="$(gpu_precision)"; fi
    for file in "$data/dict.${SOURCE:-source}.txt" "$data/dict.${TARGET:-target}.txt"; do
        sizes+=($(($(wc -l < "$file") + 4))) # fairseq's four symbols
    done
    fairseq-recur plan --arch "$arch" --updates "$updates" --lengths "$source" "$target" \
        --vocabulary "${sizes[@]}" \
        --gpu "${gpus%%$'\n'*}" --gpus "$count" --nodes "${NODES:-1}" \
        --precision "$precision" --batch-tokens "$BATCH_TOKENS" | grep -E '^(device|[0-9,]+ updates)' ||
        echo "The hours were not predicted; see fairseq-recur plan --help"
}

# keep_settings FOLDER SETTINGS: write down the settings of a training, or refuse to resume one that
# was trained with other data or settings
keep_settings() {
    if [ -f "$1/checkpoint_last.pt" ] && [ "$(cat "$1/settings")" != "$2" ]; then
        fail "$1 was trained with other data or settings ($1/settings); choose another name with" \
            "RUN=NAME, or remove that folder"
    fi
    if ! printing; then
        mkdir -p "$1"
        echo "$2" > "$1/settings"
    fi
}

# launch WORD...: train with these words, on this machine or by LAUNCHER. The launcher replaces this
# process, so that signals reach it.
launch() {
    local launcher=(bash "$ROOT/scripts/launch/node.sh")
    if [ -n "${LAUNCHER:-}" ]; then
        read -ra launcher <<< "$LAUNCHER"
        if printing; then
            call env BATCH_TOKENS="$BATCH_TOKENS" MAX_TOKENS="$MAX_TOKENS" "${launcher[@]}" "$@"
            return
        fi
    fi
    exec "${launcher[@]}" "$@"
}
