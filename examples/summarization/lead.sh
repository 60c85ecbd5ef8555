# What run.sh, scratch.sh and continued.sh share: the data of a model that copies the first words of
# its text. A small model that starts from it copies names into its summaries, which it does not
# learn from a few thousand summaries.

# prepare_lead TEXTS MODEL PREPARED OUTPUT: write OUTPUT/data-bin and OUTPUT/text, once for the same
# texts and pieces. PREPARED has the pieces and the data-bin of the summaries, MODEL is its
# SentencePiece model
prepare_lead() ( # in a shell of its own, with which the lock ends
    local texts="$1" model="$2" prepared="$3" output="$4" folder inputs
    folder="$(dirname "${BASH_SOURCE[0]}")"
    source "$folder/../../scripts/lock.sh"
    lock "$(dirname "$output")"
    inputs="$(cat "$texts"/{train,valid,test}.source "$texts/train.target" "$model" \
        "$prepared/data-bin/dict.source.txt" | cksum)"
    if [ -f "$output/prepared" ] && [ "$(cat "$output/prepared")" = "$inputs" ]; then return; fi
    rm -rf "$output"
    mkdir -p "$output"
    PYTHONPATH="$folder/../../scripts${PYTHONPATH:+:$PYTHONPATH}" \
        python "$folder/lead.py" "$texts" "$model" "$prepared/pieces" "$output"
    fairseq-recur preprocess -s source -t target --joined-dictionary \
        --srcdict "$prepared/data-bin/dict.source.txt" --destdir "$output/data-bin" \
        --trainpref "$output/pieces/train" --validpref "$output/pieces/valid" \
        --testpref "$output/pieces/test" > "$output/preprocess.log" 2>&1 ||
        { tail "$output/preprocess.log" >&2; exit 1; }
    echo "$inputs" > "$output/prepared"
)

# prepare_example: set up the environment and the corpus of this folder in $work, once. Sets $lead,
# the first words of the test texts: what is copied, and the baseline
prepare_example() {
    local folder root
    folder="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
    root="$(cd "$folder/../.." && pwd)"
    work="${WORK:-$folder/work}"
    bash "$root/scripts/setup.sh" # does nothing if the environment is up to date
    PATH="$root/.venv/bin:$PATH"
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
    bash "$folder/../quickstart/prepare.sh" "$folder/data" "$work" 3000 source target
    prepare_lead "$folder/data" "$work/bpe.model" "$work" "$work/lead"
    lead="$(yaml_text "$work/lead/text/test.target")"
}
