#!/usr/bin/env bash
# Set up the environment, then check format, style, docstrings and types: bash scripts/lint.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/setup.sh
PATH="$PWD/.venv/bin:$PATH"
ruff format --check .
ruff check .
mypy
