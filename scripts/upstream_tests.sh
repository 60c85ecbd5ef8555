#!/usr/bin/env bash
# Run fairseq's own tests as a user of the plug-in: bash scripts/upstream_tests.sh FOLDER [TEST...]
# FOLDER is a copy of fairseq's tests/, of the release that is installed or a newer one. TEST are
# files in it, or test_binaries.py::CLASS::NAME; all by default. The tests run without the plug-in,
# with it, and with each of PRESETS (by default one preset of each system; none if it is empty) in
# place of the architecture "transformer". The output lists the tests that the plug-in mends, those
# that it breaks, and those that fail with a preset but pass with fairseq's transformer. The exit
# status is 1 if there is one of the last two.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
if [[ $# -lt 1 || ! -f "$1/utils.py" ]]; then
    echo "usage: upstream_tests.sh FOLDER [TEST...], where FOLDER is fairseq's tests/" >&2
    exit 2
fi
folder=$(cd "$1" && pwd)
shift
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [[ -x $root/.venv/bin/python ]]; then PATH="$root/.venv/bin:$PATH"; fi
export PYTHONPATH="$root" OMP_NUM_THREADS=1

# Write the tests that pass to $work/NAME.passed, from a copy with another architecture if given.
run() {
    local name=$1 arch=$2 plugin=$3
    shift 3
    mkdir "$work/$name"
    cp -r "$folder" "$work/$name/tests"
    if [[ -n $arch ]]; then
        sed -i -E "s/\"transformer(_iwslt_de_en)?\"/\"$arch\"/" "$work/$name/tests"/test_*.py
    fi
    local tests=("${@/#/tests/}")
    [[ $# -gt 0 ]] || tests=(tests)
    # shellcheck disable=SC2086  # $plugin is empty or two words
    (cd "$work/$name" && python -m pytest $plugin -c /dev/null --rootdir . -p no:cacheprovider \
        -o "addopts=" -q -rA --tb=no --continue-on-collection-errors "${tests[@]}") \
        >"$work/$name.log" 2>&1 || true
    awk '$1 == "PASSED" { print $2 }' "$work/$name.log" | sort >"$work/$name.passed"
    awk '$1 == "FAILED" || $1 == "ERROR" { print $2 }' "$work/$name.log" | sort >"$work/$name.failed"
    echo "$name: $(wc -l <"$work/$name.passed") pass, $(wc -l <"$work/$name.failed") fail"
}

# Print a title and the lines of standard input, if there are any; then the status is 1.
list() {
    local found
    found=$(cat)
    [[ -z $found ]] && return
    printf '%s:\n%s\n' "$1" "${found//tests\//  tests/}"
    return 1
}

status=0
run stock "" "" "$@"
if [[ ! -s $work/stock.passed ]]; then
    tail "$work/stock.log" >&2
    echo "error: none of fairseq's tests passes without the plug-in; run scripts/setup.sh, and give" \
        "the tests of the installed fairseq" >&2
    exit 2
fi
run plugin "" "-p fairseq_recur" "$@"
comm -13 "$work/stock.passed" "$work/plugin.passed" | list "mended by the plug-in" || true
comm -23 "$work/stock.passed" "$work/plugin.passed" | list "broken by the plug-in" || status=1
for preset in ${PRESETS-transformer_biarn srformer rsa_transformer}; do
    run "$preset" "$preset" "-p fairseq_recur" "$@"
    comm -12 "$work/plugin.passed" "$work/$preset.failed" | list "failing with $preset" || status=1
done
exit $status
