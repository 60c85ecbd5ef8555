# What the steps of the example share; each of them sources this file.
# SYSTEMS, SEEDS, EPOCHS, REPEATS, WORK, NAME and OMP_NUM_THREADS can be set from outside.

SUMMARIZATION="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
chosen="${SYSTEMS:-full segmented_32 srformer_32 srformer_8}"
WORK="${WORK:-$SUMMARIZATION/work}"
EPOCHS="${EPOCHS:-4}"
# The environment, the threads, and the functions say, fingerprint and same are the quick start's.
source "$SUMMARIZATION/../quickstart/settings.sh"

DATA="$SUMMARIZATION/data"
BPE_SIZE=3000
SEEDS="${SEEDS:-1}"
REPEATS="${REPEATS:-5}"
NAME="${NAME:-results}" # what files with scores, measurements and tables are called
# Bash passes no arrays on to the steps.
unset SYSTEMS
export SYSTEMS="$chosen"
read -ra systems <<< "$SYSTEMS"

# All systems are trained with exactly these; they differ in cross_attention and nothing else.
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

# Print the flags of a system: full, or a part's name and its segment size. A third number, of
# srformer alone, is its neurons' initial threshold, otherwise 10: see README.md. Nine of ten
# summaries have at most 17 pieces, so the queries of 16 go through the whole source.
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
