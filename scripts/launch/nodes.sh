#!/usr/bin/env bash
# Train on several machines; on each of them, with the same variables and arguments:
#   NODES=2 RENDEZVOUS=host:29400 bash scripts/launch/nodes.sh DATA --arch NAME FLAG ...
# docs/launching.md explains the variables. Exit status 75: stopped by a signal and saved; run it
# again to continue.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../help.sh"
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
source "$(dirname "${BASH_SOURCE[0]}")/run.sh"

if [[ "$NODES" =~ ^0*1$ ]]; then
    problem "NODES=1: expected 2 or more; use node.sh for one machine"
fi
start "$@"
