# Shared settings and functions of the quick start; each of its steps sources this file.
# The environment variables EPOCHS, WORK and OMP_NUM_THREADS override the defaults.

QUICKSTART="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
ROOT="$(cd "$QUICKSTART/../.." && pwd)"
DATA="$QUICKSTART/data"
WORK="${WORK:-$QUICKSTART/work}"
EPOCHS="${EPOCHS:-4}"
SYSTEMS=(transformer transformer_biarn_tiny)

# Waiting threads spin only for a moment and then sleep. With OpenMP's default, a second program on
# the two cores slowed training from 12 updates per second to 2; this way it is 6, and 12 alone.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}" GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-1000}"
bash "$ROOT/scripts/setup.sh" # does nothing if the environment is up to date
PATH="$ROOT/.venv/bin:$PATH"

BPE_SIZE=2000
BPE=(--bpe sentencepiece --sentencepiece-model "$WORK/bpe.model")

# The size of the preset transformer_biarn_tiny, for fairseq's transformer.
TINY=(
    --encoder-embed-dim 128 --encoder-ffn-embed-dim 512
    --encoder-layers 2 --encoder-attention-heads 4
    --decoder-embed-dim 128 --decoder-ffn-embed-dim 512
    --decoder-layers 2 --decoder-attention-heads 4
)

# Both systems use exactly these flags. Dropout does not pay in so few epochs: the validation loss of
# fairseq's transformer after two epochs is 4.74 without it and 4.90 with 0.1.
TRAINING=(
    --share-all-embeddings --dropout 0.0
    --optimizer adamw_fused --adam-betas "(0.9, 0.98)" --clip-norm 1.0
    --lr 3e-3 --lr-scheduler inverse_sqrt --warmup-updates 300
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1
    --max-tokens 1000 --max-tokens-valid 4000 --seed 1 --num-workers 0 --cpu
)

say() { printf '\n== %s\n' "$*"; }

# fingerprint ITEM...: print a checksum of files and words; a change repeats a step.
fingerprint() {
    local item
    for item in "$@"; do
        if [ -f "$item" ]; then cat "$item"; else printf '%s\n' "$item"; fi
    done | cksum
}

# same FILE TEXT: whether the content of FILE is TEXT.
same() { [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]; }
