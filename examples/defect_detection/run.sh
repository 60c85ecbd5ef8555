#!/usr/bin/env bash
# Defect detection with CodeT5: bash examples/defect_detection/run.sh DATA MODEL [OPTION...]
#
# DATA is the folder of CodeXGLUE's data set, or of any pairs of texts. MODEL is the folder of a
# CodeT5 in Hugging Face's format. README.md explains both. Sets up the environment, prepares the
# data, then fine-tunes, decodes and scores the systems of experiment.yaml. Stop it at any time, and
# start it again to continue: nothing is done twice. OPTIONs are those of an experiment. WORK is the
# folder of all results, EPOCHS the largest number of epochs; MAX_SOURCE and MAX_TARGET limit the
# tokens of a text and of an answer.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/help.sh"
if [ $# -lt 2 ]; then
    echo "error: expected DATA and MODEL, found $# arguments; give both, as README.md shows" >&2
    exit 2
fi
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
work="${WORK:-$here/work}" epochs="${EPOCHS:-20}" longest="${MAX_TARGET:-3}"
bash "$root/scripts/setup.sh" # does nothing if the environment is up to date
PATH="$root/.venv/bin:$PATH"

PYTHONPATH="$root/scripts${PYTHONPATH:+:$PYTHONPATH}" python "$here/prepare.py" "$1" "$2" "$work" \
    --max-source "${MAX_SOURCE:-512}" --max-target "$longest"
lines="$(wc -l < "$work/text/train.target")"
shift 2
fairseq-recur experiment run "$here/experiment.yaml" --work-dir "$work/runs" --show-validation \
    --set "data=$work/data-bin" --set "start=$work/model/model.pt" \
    --set "score.reference=$work/text/test.target" \
    --set "generate.gpt2-encoder-json=$work/model/encoder.json" \
    --set "generate.gpt2-vocab-bpe=$work/model/vocab.bpe" \
    --set "generate.max-len-b=$((longest - 1))" --set "train.max-epoch=$epochs" \
    --set "train.total-num-update=$((epochs * ((lines + 31) / 32)))" "$@"
