#!/usr/bin/env bash
# The quick start: bash examples/quickstart/run.sh
#
# Sets up the environment, prepares the data, trains two systems, translates, scores. Stop it at any
# time, and start it again to continue: nothing is done twice. WORK is the folder of all results,
# EPOCHS the length of the trainings. SEEDS="1 2 3" repeats them with other seeds, and
# SYSTEMS="transformer birnn wider" adds the control of wider.yaml.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/help.sh"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
work="${WORK:-$here/work}" epochs="${EPOCHS:-4}"
read -ra seeds <<< "${SEEDS:-1}"
read -ra systems <<< "${SYSTEMS:-transformer birnn}"
files=("$here/experiment.yaml")
case " ${systems[*]} " in *" wider "*) files+=("$here/wider.yaml") ;; esac
bash "$root/scripts/setup.sh" # does nothing if the environment is up to date
PATH="$root/.venv/bin:$PATH"

SECONDS=0 # bash counts up from here, without the set-up
bash "$here/prepare.sh" "$here/data" "$work" 2000 en de
# Two trainings side by side, each with one thread.
OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" \
    fairseq-recur experiment run "${files[@]}" --work-dir "$work/runs" --jobs 2 \
    --systems "${systems[@]}" --seeds "${seeds[@]}" --show-validation \
    --set "data=$(yaml_text "$work/data-bin")" --set "train.max-epoch=$epochs" \
    --set "generate.sentencepiece-model=$(yaml_text "$work/bpe.model")"

outputs=() logs=() labels=()
for system in "${systems[@]}"; do
    outputs+=("$system=$work/runs/$system/seed${seeds[0]}/test.txt")
    logs+=("$work/runs/$system/seed${seeds[0]}/train.log")
    labels+=(--label "$system")
done
echo "Ten sentences of the test set"
python "$here/show.py" "$here/data/test" "${outputs[@]}" | tee "$work/translations.txt"
fairseq-recur plot curves "${logs[@]}" "${labels[@]}" --metric valid_loss valid_bleu \
    --output "$work/learning_curve.png"

case "$work" in "$PWD"/*) shown="${work#"$PWD"/}" ;; *) shown="$work" ;; esac
case "$here" in "$PWD"/*) here="${here#"$PWD"/}" ;; esac
# The commands below find this run again.
again="${WORK:+WORK=$(printf %q "$shown") }" system="${systems[0]}"
page="$here/README.md" here="$(printf %q "$here")"
case " ${systems[*]} " in *" birnn "*) system=birnn ;; esac
chosen="$again" # translate.sh takes the first seed of all that are trained
if [ "${seeds[0]}" != 1 ]; then chosen+="SEED=${seeds[0]} "; fi
settings="$again${SEEDS:+SEEDS=\"$SEEDS\" }${SYSTEMS:+SYSTEMS=\"$SYSTEMS\" }"
cat <<END

Done in $((SECONDS / 60)) min $((SECONDS % 60)) s. Everything is in $shown:
  runs/table.md, results.json     the table above, with all details
  translations.txt                the ten sentences above
  learning_curve.png              loss and BLEU on the validation set, both systems
  runs/SYSTEM/seed${seeds[0]}/test.txt      all translations of the test set, as fairseq-generate prints them
  runs/SYSTEM/seed${seeds[0]}/average.pt    the scored model, next to checkpoint*.pt and train.log
  data-bin, bpe.model             the prepared data

Translate sentences with $system (Ctrl-D ends it), or pipe them in:
  ${chosen}bash $here/translate.sh $system
  echo "Click the cell that you want to delete." | ${chosen}bash $here/translate.sh $system

What to try next:
  ${settings}EPOCHS=$((2 * epochs)) bash $here/run.sh       continue, twice as long
  fairseq-recur train --help             every option (source .venv/bin/activate first)
  $page    what the numbers mean, and what comes next
END
