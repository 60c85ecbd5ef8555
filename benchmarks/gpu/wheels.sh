#!/usr/bin/env bash
# Get the packages that a machine with torch, but without a network, lacks: bash benchmarks/gpu/wheels.sh FOLDER [VERSION] [NAME ...]
#
# FOLDER gets wheels for Linux on x86-64 and Python VERSION (3.12 by default, or 3.11), pinned as in
# requirements/. Take it there, and give it to run.sh as --wheels. torch and what comes with it,
# pytest with xdist and timeout, sacreBLEU and SentencePiece are not in it: name what is missing
# there. PYTHON is an interpreter with pip.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$here/../../scripts/help.sh"

if [ $# -lt 1 ]; then
    echo "usage: bash wheels.sh FOLDER [VERSION] [NAME ...]" >&2
    exit 2
fi
folder="$1" version="${2:-3.12}"
names=(
    ve-fairseq hydra-core omegaconf antlr4-python3-runtime bitarray cffi pycparser rouge_score nltk
    defusedxml pysbd subword-nmt mock "${@:3}"
)
pins="$here/../../requirements/py$version.txt"
pip=("${PYTHON:-python3}" -m pip)
platforms=()
for libc in 2_28 2_27 2_24 2_17 2014 2010 1; do
    case "$libc" in
        2_*) platforms+=(--platform "manylinux_${libc}_x86_64") ;;
        *) platforms+=(--platform "manylinux${libc}_x86_64") ;;
    esac
done

mkdir -p "$folder"
for name in "${names[@]}"; do
    if ! pinned="$(grep -i "^${name}==" "$pins")"; then
        echo "$name is not in $pins; expected a name and a version of Python that are" >&2
        exit 2
    fi
    echo "$pinned"
    "${pip[@]}" download --quiet --no-deps --only-binary :all: --python-version "$version" \
        --implementation cp "${platforms[@]}" --dest "$folder" "$pinned" 2> "$folder/error" ||
        "${pip[@]}" wheel --quiet --no-deps --wheel-dir "$folder" "$pinned" || {
        cat "$folder/error" >&2
        exit 1
    }
done
rm "$folder/error"
du -sh "$folder"
