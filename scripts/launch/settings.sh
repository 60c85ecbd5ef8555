# Shared functions of the launchers. docs/launching.md explains the variables.
#
# read_settings ARGUMENT... checks all settings and sets the array `command`. Nothing is started
# before everything has been checked.

source "$(dirname "${BASH_SOURCE[0]}")/gpus.sh"

GPUS="${GPUS-}"                             # GPUs per node; 0: CPU processes; empty: all GPUs
PROCESSES="${PROCESSES:-1}"                 # processes per node, with GPUS=0
NODES="${NODES:-1}"
RENDEZVOUS="${RENDEZVOUS:-}"                # host:port of one node, with several nodes
JOB="${JOB:-fairseq-recur}"                 # name of the training, equal on all nodes
BATCH_TOKENS="${BATCH_TOKENS:-32768}"       # tokens per update, on all GPUs of all nodes
MAX_TOKENS="${MAX_TOKENS:-4096}"            # tokens per batch on one GPU
PRECISION="${PRECISION:-auto}"              # auto (what the GPU is fast with), fp32, fp16, bf16
MEMORY_EFFICIENT="${MEMORY_EFFICIENT:-0}"   # 1: without fp32 copies of the weights
DDP="${DDP:-pytorch_ddp}"                   # pytorch_ddp, c10d, legacy_ddp, no_c10d
ADAM="${ADAM:-auto}"                        # auto, torch, apex, fairseq, none
CHECKPOINT_ACTIVATIONS="${CHECKPOINT_ACTIVATIONS:-0}"
PRINT="${PRINT:-0}"                         # 1: only print the command
PYTHON="${PYTHON:-python}"

problems=()

# problem WORD...: collect a problem, so that all of them are reported together.
problem() { problems+=("$*"); }

# whole NAME LEAST: check that the variable NAME is a whole number, at least LEAST, and drop zeros in
# front of it: bash reads 0100 as an octal number.
whole() {
    if [[ "${!1}" =~ ^[0-9]{1,12}$ ]] && [ "$((10#${!1}))" -ge "$2" ]; then
        printf -v "$1" '%d' "$((10#${!1}))"
        return
    fi
    problem "$1=${!1}: expected a whole number, at least $2"
    return 1
}

# one_of NAME VALUE...: check that the variable NAME has one of the values.
one_of() {
    local name="$1" value
    shift
    for value in "$@"; do
        if [ "${!name}" = "$value" ]; then return; fi
    done
    problem "$name=${!name}: expected $(printf '%s\n' "$@" | paste -sd ' ' | sed 's/ /, /g')"
    return 1
}

# Flags that are set by variables.
OWN_FLAGS=(
    --max-tokens --update-freq --fp16 --bf16 --memory-efficient-fp16 --memory-efficient-bf16
    --ddp-backend --cpu --distributed-world-size --checkpoint-activations
)

check_arguments() {
    local word flag
    if [ $# -eq 0 ]; then
        problem "no arguments: expected DATA --arch NAME and flags of fairseq-train"
    fi
    for word in "$@"; do
        for flag in "${OWN_FLAGS[@]}"; do
            if [ "${word%%=*}" = "$flag" ]; then
                problem "$flag is set by a variable (docs/launching.md); remove it"
            fi
        done
        if [ "$word" = --amp ]; then
            problem "--amp has no value of PRECISION; use 'fairseq-recur train' itself, or leave it out"
        fi
        if [ "${word%%=*}" = --optimizer ] && [ "$ADAM" != auto ] && [ "$ADAM" != none ]; then
            problem "ADAM=$ADAM and --optimizer exclude each other; remove one of them"
        fi
    done
}

# divide: set update_freq so that processes x MAX_TOKENS x update_freq is BATCH_TOKENS.
divide() {
    local workers share steps below
    workers=$((processes * NODES))
    if [ $((BATCH_TOKENS % workers)) -ne 0 ]; then
        below=$((BATCH_TOKENS / workers * workers))
        problem "BATCH_TOKENS=$BATCH_TOKENS is not a multiple of the number of processes, $workers; use" \
            "$((below > 0 ? below : workers)) or $((below + (below > 0 ? 1 : 2) * workers))"
        return
    fi
    share=$((BATCH_TOKENS / workers))
    if [ $((share % MAX_TOKENS)) -ne 0 ]; then
        steps=$(((share + MAX_TOKENS - 1) / MAX_TOKENS))
        while [ $((share % steps)) -ne 0 ]; do steps=$((steps + 1)); done
        problem "BATCH_TOKENS=$BATCH_TOKENS is not a multiple of $workers processes x" \
            "MAX_TOKENS=$MAX_TOKENS; use MAX_TOKENS=$((share / steps)) (--update-freq $steps)"
        return
    fi
    update_freq=$((share / MAX_TOKENS))
}

set_precision() {
    if [ "$PRECISION" = auto ]; then
        PRECISION=fp32
        if [ "$GPUS" != 0 ]; then PRECISION="$(gpu_precision)"; fi
    fi
    if [ "$PRECISION" = fp32 ]; then
        if [ "$MEMORY_EFFICIENT" = 1 ]; then
            problem "MEMORY_EFFICIENT=1 needs PRECISION=fp16 or bf16, not fp32; choose one of them"
        fi
    elif [ "$MEMORY_EFFICIENT" = 1 ]; then
        flags+=("--memory-efficient-$PRECISION")
    elif [ "$PRECISION" = fp16 ] && [ "$GPUS" = 0 ]; then
        problem "PRECISION=fp16 needs a GPU; without one, use MEMORY_EFFICIENT=1 or bf16"
    else
        flags+=("--$PRECISION")
    fi
}

# Whether NVIDIA's apex is installed with its extensions; PyPI's package apex is a different one.
has_apex() {
    "$PYTHON" -c 'import sys; from importlib.util import find_spec
sys.exit(not (find_spec("apex") and find_spec("amp_C")))'
}

# fairseq's adam uses apex if it is installed, and a loop over the parameters otherwise.
set_adam() {
    local word
    for word in "$@"; do
        if [ "${word%%=*}" = --optimizer ]; then return; fi
    done
    case "$ADAM" in
        auto) if [ "$GPUS" != 0 ] && has_apex; then flags+=(--optimizer adam); else
            flags+=(--optimizer adamw_fused); fi ;;
        torch) flags+=(--optimizer adamw_fused) ;;
        apex) flags+=(--optimizer adam)
            if [ "$GPUS" = 0 ] || ! has_apex; then
                problem "ADAM=apex: no GPU, or no apex with its extensions for $PYTHON;" \
                    "expected auto or torch"
            fi ;;
        fairseq) flags+=(--optimizer adam --use-old-adam) ;;
    esac
}

check_nodes() {
    if [ "$NODES" -eq 1 ]; then return; fi
    if ! [[ "$RENDEZVOUS" =~ ^[^:[:space:]]+:[0-9]+$ ]]; then
        problem "RENDEZVOUS=$RENDEZVOUS: expected host:port of one of the $NODES nodes," \
            "the same on all"
    fi
}

# Set torchrun's part of the command, which is empty for one process.
set_launcher() {
    launcher=()
    if [ "$NODES" -gt 1 ]; then
        launcher=(-m torch.distributed.run --nnodes "$NODES" --nproc_per_node "$processes"
            --rdzv_backend c10d --rdzv_endpoint "$RENDEZVOUS" --rdzv_id "$JOB")
    elif [ "$processes" -gt 1 ]; then
        launcher=(-m torch.distributed.run --standalone --nproc_per_node "$processes")
    fi
}

read_settings() {
    local arguments=() word numbers=1
    for word in "$@"; do
        if [ "$word" = --print ]; then PRINT=1; else arguments+=("$word"); fi
    done
    flags=() update_freq=1
    if [ -z "$GPUS" ]; then
        GPUS="$(count_gpus)"
        if [ "$GPUS" = 0 ]; then
            problem "GPUS is not set, and no GPU is there (nvidia-smi, CUDA_VISIBLE_DEVICES); use GPUS=0 to train on the CPU, or GPUS=N"
        fi
    fi
    for word in GPUS:0 PROCESSES:1 NODES:1 BATCH_TOKENS:1 MAX_TOKENS:1; do
        whole "${word%:*}" "${word#*:}" || numbers=0
    done
    for word in MEMORY_EFFICIENT CHECKPOINT_ACTIVATIONS PRINT; do one_of "$word" 0 1 || true; done
    one_of DDP pytorch_ddp c10d legacy_ddp no_c10d || true
    if one_of PRECISION auto fp32 fp16 bf16; then set_precision; fi
    check_arguments ${arguments[@]+"${arguments[@]}"}
    if one_of ADAM auto torch apex fairseq none; then
        set_adam ${arguments[@]+"${arguments[@]}"}
    fi
    if [ "$numbers" = 1 ]; then
        processes=$((GPUS > 0 ? GPUS : PROCESSES))
        divide
        check_nodes
        set_launcher
    fi
    if [ ${#problems[@]} -gt 0 ]; then
        printf 'error: the settings cannot be used (docs/launching.md)\n' >&2
        printf -- '- %s\n' "${problems[@]}" >&2
        exit 2
    fi
    flags+=(--max-tokens "$MAX_TOKENS" --update-freq "$update_freq" --ddp-backend "$DDP")
    if [ "$CHECKPOINT_ACTIVATIONS" = 1 ]; then flags+=(--checkpoint-activations); fi
    if [ "$GPUS" = 0 ]; then flags+=(--cpu); fi
    # Otherwise this process would start one process per visible GPU.
    if [ $((processes * NODES)) -eq 1 ]; then flags+=(--distributed-world-size 1); fi
    command=("$PYTHON" ${launcher[@]+"${launcher[@]}"})
    command+=(-m fairseq_recur train "${arguments[@]}" "${flags[@]}")
}
