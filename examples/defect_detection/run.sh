#!/usr/bin/env bash
# Defect detection with CodeT5: bash examples/defect_detection/run.sh DATA MODEL [OPTION...]
#
# DATA is the folder of CodeXGLUE's data set, or of any pairs of texts. MODEL is the folder of a
# CodeT5 in Hugging Face's format. README.md explains both. Sets up the environment, prepares the
# data, then fine-tunes, decodes and scores the systems of experiment.yaml. Stop it at any time, and
# start it again to continue: nothing is done twice. OPTIONs are those of an experiment. WORK is the
# folder of all results, EPOCHS the largest number of epochs, BATCH the number of texts of an update;
# MAX_SOURCE and MAX_TARGET limit the tokens of a text and of an answer.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
ROOT="$(cd "$here/../.." && pwd)"
source "$ROOT/scripts/recipes/shared.sh"
if [ $# -lt 2 ]; then
    fail "expected DATA and MODEL, found $# arguments; give both, as README.md shows"
fi
work="${WORK:-$here/work}"
EPOCHS="${EPOCHS:-20}" BATCH="${BATCH:-32}"
MAX_SOURCE="${MAX_SOURCE:-512}" MAX_TARGET="${MAX_TARGET:-3}"
for name in EPOCHS BATCH MAX_SOURCE MAX_TARGET; do number "$name"; done
for word in "${@:3}"; do # the length of the schedule follows from these
    setting="${word#--set=}"
    name="${setting%%=*}"
    case "${name//_/-}" in
        generate.*) ;;
        *.batch-size | *.max-sentences | *.max-tokens | *.update-freq)
            fail "$setting: set BATCH=N in front of the command instead" ;;
        *.max-epoch) fail "$setting: set EPOCHS=N in front of the command instead" ;;
    esac
done
bash "$ROOT/scripts/setup.sh" # does nothing if the environment is up to date
PATH="$ROOT/.venv/bin:$PATH"

PYTHONPATH="$ROOT/scripts${PYTHONPATH:+:$PYTHONPATH}" python "$here/prepare.py" "$1" "$2" "$work" \
    --max-source "$MAX_SOURCE" --max-target "$MAX_TARGET"
lines="$(wc -l < "$work/text/train.target")"
updates=$((EPOCHS * ((lines + BATCH - 1) / BATCH)))
warmup=$((updates / 10 < 1000 ? updates / 10 : 1000))
# The paper's accuracy belongs beside results on its own data, which their sizes tell.
published=()
if [ "$lines" -eq 21854 ] && [ "$(wc -l < "$work/text/valid.target")" -eq 2732 ] &&
    [ "$(wc -l < "$work/text/test.target")" -eq 2732 ]; then
    published=(
        --set "systems.codet5.published={Accuracy: 64.60}"
        --set "systems.rsa_codet5.published={Accuracy: 65.96}"
    )
fi
shift 2
fairseq-recur experiment run "$here/experiment.yaml" --work-dir "$work/runs" --show-validation \
    ${published[@]+"${published[@]}"} \
    --set "data=$(yaml_text "$work/data-bin")" \
    --set "start=$(yaml_text "$work/model/model.pt")" \
    --set "score.reference=$(yaml_text "$work/text/test.target")" \
    --set "generate.gpt2-encoder-json=$(yaml_text "$work/model/encoder.json")" \
    --set "generate.gpt2-vocab-bpe=$(yaml_text "$work/model/vocab.bpe")" \
    --set "generate.max-len-b=$((MAX_TARGET - 1))" --set "train.max-epoch=$EPOCHS" \
    --set "train.batch-size=$BATCH" --set "train.warmup-updates=$warmup" \
    --set "train.total-num-update=$updates" "$@"
