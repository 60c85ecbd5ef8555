#!/usr/bin/env bash
# Run the fast tests on every supported Python: bash scripts/environments.sh [3.10 3.12 ...]
# Each environment is .venv-VERSION, made by scripts/setup.sh; logs go to .cache/environments.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ $# -eq 0 ]; then set -- 3.10 3.11 3.12 3.13; fi
export OMP_NUM_THREADS=1 HYDRA_FULL_ERROR=1
unset PYTHON # one interpreter for all would be the wrong one for three
logs=.cache/environments
mkdir -p "$logs"
table=""
failed=0

for version in "$@"; do
    log="$logs/$version.log"
    : > "$log"
    distribution="-" torch="-"
    echo "Python $version: setting up and testing (log: $log)"
    bin="$PWD/.venv-$version/bin"
    if ! { bash scripts/setup.sh "$version" &&
        "$bin/python" -m pip install --quiet --requirement requirements/triton.txt; } >> "$log" 2>&1; then
        result="not set up: $(grep . "$log" | tail -n 1)"
        failed=1
    else
        pins="$("$bin/python" -m pip freeze 2>/dev/null)"
        distribution="$(grep -E '^(ve-)?fairseq(-fixed)?==' <<< "$pins")"
        torch="$(grep '^torch==' <<< "$pins")"
        PATH="$bin:$PATH" "$bin/python" -m pytest -n 2 --dist loadfile -m "not slow" >> "$log" 2>&1 || failed=1
        result="$(grep . "$log" | tail -n 1)"
    fi
    table+="$version|$distribution|$torch|$result"$'\n'
done

printf '\n%-7s %-24s %-18s %s\n' Python fairseq torch tests
while IFS='|' read -r version distribution torch result; do
    if [ -n "$version" ]; then
        printf '%-7s %-24s %-18s %s\n' "$version" "$distribution" "$torch" "$result"
    fi
done <<< "$table"
exit "$failed"
