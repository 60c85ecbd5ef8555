#!/usr/bin/env bash
# Rebuild an averaged checkpoint of a recorded table:
#     bash examples/modeling_recurrence/rebuild.sh EXPERIMENT SYSTEM [SEED]
#
# EXPERIMENT is trained, continued, layers, continued_gpu, overview, table4, rsa, figure5, short_cut
# or causes, as README.md names their folders; SYSTEM is a row of its table. Sets up the
# environment, fetches and prepares the corpus, trains the model that the system starts from, if
# there is one, then the system, averages and scores. Stop it at any time, and start it again to
# continue: nothing is done twice. WORK is the folder of all results, TEXT a folder that has the
# text already. With PRINT=1 nothing is written, and the commands are printed.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
ROOT="$(cd "$here/../.." && pwd)"
source "$ROOT/scripts/recipes/shared.sh"
if [ $# -lt 2 ] || [ $# -gt 3 ]; then
    fail "expected EXPERIMENT SYSTEM [SEED], found $# words; README.md has an example"
fi
experiment="$1" system="$2" SEED="${3:-1}"
number SEED
table="$experiment" corpora=(multi30k_cpu) prepared=multi30k_4k merges=4000 changes=(--set speed=null)
case "$experiment" in
    overview | table4 | rsa | figure5 | short_cut | causes) ;;
    trained | continued | layers | continued_gpu)
        table=continued corpora=(multi30k_trained) prepared=multi30k merges=10000 changes=()
        baseline=1 # the seed of the model from which all seeds continue, but those of layers
        case "$experiment" in
            trained) table=from_scratch ;;
            continued) corpora+=(further) ;;
            layers) corpora+=(further) baseline="$SEED" ;;
            continued_gpu) corpora+=(further_gpu) ;;
        esac ;;
    *) fail "EXPERIMENT $experiment; expected trained, continued, layers, continued_gpu, overview," \
        "table4, rsa, figure5, short_cut or causes" ;;
esac
known="$(sed -n 's/^  \([^ #:]*\):.*/\1/p' "$here/tables/$table.yaml")"
if ! grep -qxF -e "$system" <<< "$known"; then
    fail "SYSTEM $system is not in tables/$table.yaml; expected one of:" $known
fi
work="${WORK:-$here/work}"
case "$work" in /*) ;; *) work="$PWD/$work" ;; esac
text="${TEXT:-$work/text}"
if [ "$work" != "$here/work" ]; then # the corpora name the data in the usual folder
    changes+=(
        --set "data=$(yaml_text "$work/$prepared/data-bin")"
        --set "score.reference=$(yaml_text "$work/$prepared/test.de")"
        --set "generate.bpe-codes=$(yaml_text "$work/$prepared/codes")"
    )
fi
printing || bash "$ROOT/scripts/setup.sh" # does nothing if the environment is up to date
PATH="$ROOT/.venv/bin:$PATH"
# As the recorded trainings had: with more threads, sums have other last digits.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

# build FOLDER TABLE SYSTEM SEED WORD...: train, average and score a row, and what it starts from
build() {
    local folder="$1" file="$here/tables/$2.yaml" row="$3" seed="$4"
    shift 4
    call fairseq-recur experiment run "$file" "$@" --work-dir "$work/$folder" \
        --systems "$row" --seeds "$seed" ${changes[@]+"${changes[@]}"}
}

if [ -z "${TEXT:-}" ]; then call bash "$here/fetch_multi30k.sh" "$text"; fi
call bash "$here/prepare.sh" "$text" en de "$work/$prepared" "$merges"
if [ "$table" = continued ]; then
    build trained from_scratch transformer "$baseline" "$here/corpora/multi30k_trained.yaml"
    changes+=(--set "start=$(yaml_text "$work/trained/transformer/seed$baseline/average.pt")")
fi
files=()
for name in "${corpora[@]}"; do files+=("$here/corpora/$name.yaml"); done
build "$experiment" "$table" "$system" "$SEED" "${files[@]}"
printing || echo "The checkpoint is $work/$experiment/$system/seed$SEED/average.pt"
