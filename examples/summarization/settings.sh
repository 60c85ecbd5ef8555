# Settings of the example; every step sources this file.
# SYSTEMS, SEEDS, EPOCHS, REPEATS, WORK, NAME and OMP_NUM_THREADS can be set in the environment.

SUMMARIZATION="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
chosen="${SYSTEMS:-full segmented_32 srformer_32 srformer_8}"
WORK="${WORK:-$SUMMARIZATION/work}"
EPOCHS="${EPOCHS:-4}"
# The quick start provides the environment, the threads, and the functions say, fingerprint, same.
source "$SUMMARIZATION/../quickstart/settings.sh"

DATA="$SUMMARIZATION/data"
BPE_SIZE=3000
SEEDS="${SEEDS:-1}"
REPEATS="${REPEATS:-5}"
NAME="${NAME:-results}" # of the files with scores, measurements and tables
# Bash cannot export arrays to the steps.
unset SYSTEMS
export SYSTEMS="$chosen"
read -ra systems <<< "$SYSTEMS"

# All systems are trained with exactly these flags; they differ only in cross_attention.
TRAINING=(
    --task summarization --arch srformer_tiny --share-all-embeddings --dropout 0.0
    --truncate-source --max-source-positions 256 --max-target-positions 64
    --optimizer adamw_fused --adam-betas "(0.9, 0.98)" --clip-norm 1.0
    --lr 3e-3 --lr-scheduler inverse_sqrt --warmup-updates 300
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1
    --max-tokens 2000 --max-tokens-valid 8000 --num-workers 0 --cpu
    --eval-rouge --eval-rouge-remove-bpe sentencepiece
    --eval-rouge-args '{"beam": 1, "max_len_b": 30}'
    --best-checkpoint-metric rougeL --maximize-best-checkpoint-metric
)

# Print the flags of a system: full, or the name of a part and its segment size. srformer takes a
# third number, the initial threshold of its neurons, with the default 10: see README.md. Nine in ten
# summaries have at most 17 pieces, so with a target length of 16 the queries cover the whole source.
cross_attention() {
    local part size threshold
    IFS=_ read -r part size threshold <<< "$1"
    if [ "$1" = full ]; then
        echo "--cross-attention dot"
        return
    elif [[ ! "$1" =~ ^(segmented_[1-9][0-9]*|srformer_[1-9][0-9]*(_[0-9.]+)?)$ ]]; then
        echo "system $1: expected full, segmented_SIZE, srformer_SIZE or" \
            "srformer_SIZE_THRESHOLD" >&2
        return 2
    fi
    local flags="--cross-attention $part --segment-size $size --target-length 16"
    if [ "$part" = srformer ]; then flags+=" --srformer-threshold-init ${threshold:-10}"; fi
    echo "$flags"
}
