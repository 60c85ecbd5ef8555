# What the launchers and the recipes ask about the GPUs of this machine.

# The fastest precision of this machine's first GPU: half precision needs tensor cores.
gpu_precision() {
    local capability
    capability="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1)"
    case "$capability" in
        7.*) echo fp16 ;;
        [1-6].*) echo fp32 ;;
        *) echo bf16 ;; # 8.0 (A100) and later
    esac
}

# The number of GPUs that a process sees here.
count_gpus() {
    if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then # empty, or -1: none
        tr ',' '\n' <<< "$CUDA_VISIBLE_DEVICES" | grep -cE '^ *[A-Za-z0-9]' || true
    else
        { nvidia-smi --list-gpus 2> /dev/null || true; } | grep -c '^GPU' || true
    fi
}
