#!/usr/bin/env bash
# Build the sdist, and from it the wheel, and check both: bash scripts/package.sh [FOLDER]
#
# FOLDER gets the two files. Without it they are removed after the check.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
here="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/setup.sh
PATH="$PWD/.venv/bin:$PATH"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
# Without isolation nothing is fetched: setuptools is one of the pins.
python -m build --no-isolation --outdir "$scratch/dist" . > "$scratch/log" 2>&1 ||
    { cat "$scratch/log" >&2; exit 1; }
twine check --strict "$scratch"/dist/*

tar -tzf "$scratch"/dist/*.tar.gz | cut -d/ -f2- | sort > "$scratch/sdist"
python -m zipfile -l "$scratch"/dist/*.whl | awk '{print $1}' |
    sed 's|.*\.dist-info/licenses/||' | sort > "$scratch/wheel"
{
    find fairseq_recur -type f -not -name '*.pyc'
    echo LICENSE
} | sort > "$scratch/wanted"
for kind in sdist wheel; do
    absent="$(comm -23 "$scratch/wanted" "$scratch/$kind" | tr '\n' ' ')"
    if [ -n "$absent" ]; then
        echo "error: the $kind lacks $absent; name the files in setup.py" >&2
        exit 1
    fi
done
if [ $# -gt 0 ]; then
    folder="$(cd "$here" && realpath -m "$1")"
    mkdir -p "$folder"
    cp "$scratch"/dist/* "$folder"
fi
