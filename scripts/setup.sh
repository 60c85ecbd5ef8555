#!/usr/bin/env bash
# Make the project's environment: bash scripts/setup.sh [3.10|3.11|3.12|3.13]
#
# Without an argument it is .venv, with the first of the interpreters below that is there;
# with a version it is .venv-VERSION. Everything is pinned in requirements/. An environment
# that is up to date is left alone. PYTHON=/path/to/python chooses the interpreter itself.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PREFERRED=(3.11 3.12 3.10 3.13)
VERSION_OF='import sys; print("%d.%d" % sys.version_info[:2])'

# Whether $1 runs, is Python $2, and can make environments (Debian packages that apart).
usable() {
    [ "$("$1" -c "import ensurepip, venv; $VERSION_OF" 2>/dev/null)" = "$2" ]
}

# Print an interpreter of version $1: from PATH, else from pyenv.
find_python() {
    local candidate
    for candidate in "python$1" "$(pyenv root 2>/dev/null || true)"/versions/"$1".*/bin/python; do
        if usable "$candidate" "$1"; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

# PYTHON runs, is a version that can be used, and can make environments.
check_python() {
    local version choice
    printf -v choice '%s or ' "${wanted[@]}"
    choice="${choice% or }" # 3.11 or 3.12
    version="$("$PYTHON" -c "$VERSION_OF" 2>/dev/null || true)"
    if [ -z "$version" ]; then
        echo "error: PYTHON=$PYTHON does not run; name a Python ${choice}" >&2
    elif [[ ! " ${wanted[*]} " == *" $version "* ]]; then
        echo "error: PYTHON=$PYTHON is Python $version; expected ${choice}" >&2
    elif ! usable "$PYTHON" "$version"; then
        echo "error: PYTHON=$PYTHON has no modules venv and ensurepip; install them (Debian," \
            "Ubuntu: apt install python3-venv), or name another interpreter" >&2
    else
        return
    fi
    exit 1
}

choose_python() {
    local version
    if [ -n "${PYTHON:-}" ]; then
        echo "$PYTHON"
        return
    fi
    for version in "${wanted[@]}"; do
        if find_python "$version"; then return; fi
    done
    echo "error: no Python ${wanted[*]} with the modules venv and ensurepip was found, on PATH" \
        "or in pyenv. Install one (Debian, Ubuntu: apt install python3-venv), or name it:" \
        "PYTHON=/path/to/python bash scripts/setup.sh" >&2
    exit 1
}

wanted=("${PREFERRED[@]}")
venv=.venv
if [ $# -gt 0 ]; then
    if [[ ! " ${PREFERRED[*]} " == *" $1 "* ]]; then
        echo "error: Python $1 is not supported; expected one of ${PREFERRED[*]}" >&2
        exit 1
    fi
    wanted=("$1")
    venv=".venv-$1"
fi

if [ -n "${PYTHON:-}" ]; then check_python; fi

# One at a time: two would write into each other's environment.
source scripts/lock.sh
lock "$PWD"

# What an environment depends on: where it is, its interpreter, the pins.
state_of() {
    echo "$PWD/$venv $("$1" -VV)"
    cat "requirements/py$2.txt"
}

# Whether the environment that is there is the one to make.
up_to_date() {
    [ -x "$venv/bin/python" ] && [ -f "$venv/state" ] || return 1
    version="$("$venv/bin/python" -c "$VERSION_OF" 2>/dev/null || echo none)"
    [[ " ${wanted[*]} " == *" $version "* ]] || return 1
    if [ -n "${PYTHON:-}" ]; then [ "$("$PYTHON" -VV)" = "$("$venv/bin/python" -VV)" ] || return 1; fi
    state_of "$venv/bin/python" "$version" | cmp -s - "$venv/state"
}

# An environment that somebody else made is not thrown away. A file beside it marks those that are
# being made here, because `venv --clear` empties the folder itself.
if [ -e "$venv" ] && [ ! -f "$venv.begun" ] && [ ! -f "$venv/state" ]; then
    echo "error: $PWD/$venv exists and was not made by this script, which would replace it;" \
        "rename or remove it" >&2
    exit 1
fi
if ! up_to_date; then
    python="$(choose_python)"
    version="$("$python" -c "$VERSION_OF")"
    echo "Setting up $venv with Python $version; this takes some minutes once"
    touch "$venv.begun"
    "$python" -m venv --clear "$venv"
    # fairseq 0.12.2, the one for Python 3.10, has metadata that later pips refuse.
    if [ "$version" = 3.10 ]; then pip="pip<24.1"; else pip="pip"; fi
    "$venv/bin/python" -m pip install --quiet --upgrade "$pip"
    # compileall takes all cores, and pip one. Some files are for other Pythons, and do not compile.
    "$venv/bin/python" -m pip install --quiet --no-compile \
        --requirement "requirements/py$version.txt"
    # fairseq asks for torchaudio and does not use it; one of an older torch cannot be loaded, and
    # transformers, which loads it where it is installed, fails with it.
    "$venv/bin/python" -m pip uninstall --quiet --yes torchaudio
    # A third of all code is tests, or models of transformers, of which the project compares two.
    PYTHONWARNINGS=ignore "$venv/bin/python" -m compileall -q -j 0 \
        -x '/(tests|transformers/models)/' "$venv/lib" > /dev/null || true
    state_of "$venv/bin/python" "$version" > "$venv/state"
    rm -f "$venv.begun"
fi

# The project's own metadata changes more often, and installing it takes seconds. `pip install .`
# puts a copy of the code into the environment, which later changes would not reach.
copies=("$venv"/lib/python*/site-packages/fairseq_recur)
if [ -e "${copies[0]}" ] || ! cat setup.py pyproject.toml | cmp -s - "$venv/project"; then
    # setuptools warns of every editable installation, in a frame.
    PYTHONWARNINGS=ignore "$venv/bin/python" -m pip install --quiet --no-deps --editable .
    name="$("$venv/bin/fairseq-recur" --version)"
    cat setup.py pyproject.toml > "$venv/project"
    echo "$venv is ready: Python $version, $name"
fi
