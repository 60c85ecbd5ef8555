#!/usr/bin/env bash
# Build the documentation's site, with every warning an error: bash scripts/docs.sh [FOLDER]
#
# FOLDER is site by default. bash scripts/docs.sh serve shows the pages on this machine instead
# and follows changes. REPOSITORY_URL=https://HOST/OWNER/NAME REPOSITORY_EDIT=edit/main/ gives each
# page a link to its file there, for editing. The tools have an environment of their own, .venv-docs, with the pins of
# requirements/docs.txt; PYTHON=/path/to/python chooses its interpreter. Once it is there,
# nothing is fetched, neither by the build nor by a reader's browser.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
here="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=.venv-docs
state_of() {
    echo "$PWD/$venv $("$1" -VV)"
    cat requirements/docs.txt
}

if ! { [ -x $venv/bin/python ] && state_of $venv/bin/python | cmp -s - $venv/state; }; then
    python="${PYTHON:-}"
    if [ -z "$python" ]; then
        if [ -x .venv/bin/python ]; then python=.venv/bin/python; else python=python3; fi
    fi
    echo "Setting up $venv with $("$python" -V)"
    "$python" -m venv --clear $venv
    $venv/bin/python -m pip install --quiet --requirement requirements/docs.txt
    state_of $venv/bin/python > $venv/state
fi

export NO_MKDOCS_2_WARNING=1
if [ "${1:-}" = serve ]; then
    exec $venv/bin/python -m mkdocs serve
fi
root="$PWD"
folder="$(cd "$here" && realpath -m "${1:-$root/site}")"
exec $venv/bin/python -m mkdocs build --strict --site-dir "$folder"
