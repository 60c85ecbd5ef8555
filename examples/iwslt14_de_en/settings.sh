# Settings of fairseq's README for IWSLT14; scripts/recipes/translation.sh sources this file.
BASE=transformer_iwslt_de_en
LR="${LR:-0.0005}" DROPOUT="${DROPOUT:-0.3}" AVERAGE="${AVERAGE:-5}" SAVE_EVERY="${SAVE_EVERY:-1000}"
MAX_UPDATES="${MAX_UPDATES:-50000}"
set_tokens 4096 4096
SHARING=(--share-decoder-input-output-embed)
OPTIMIZATION=(--adam-betas "(0.9, 0.98)" --weight-decay 0.0001)
SEARCH=(--beam 5 --lenpen 1 --max-len-a 0 --max-len-b 200)
