#!/usr/bin/env bash
# Train on this machine: [VARIABLE=VALUE ...] bash scripts/launch/node.sh DATA --arch NAME FLAG ...
# docs/launching.md explains the variables. Exit status 75: stopped by a signal and saved; run it
# again to continue.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../help.sh"
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
source "$(dirname "${BASH_SOURCE[0]}")/run.sh"

if [[ "$NODES" =~ ^[0-9]+$ ]] && [ "$NODES" -gt 1 ]; then
    problem "NODES=$NODES: expected 1; run nodes.sh on each of several"
fi
start "$@"
