#!/usr/bin/env bash
# Test and measure everything on a GPU: bash benchmarks/gpu/run.sh [--minutes N] [--archive FILE] [--multi30k DIR] [--en-de DIR] [--g2p DIR]
#
# Runs tests, kernels, whole models and trainings in pieces of at most eight minutes, the most
# valuable first. Each writes its results as they come. Start it again to go on: no piece is done
# twice. Other options are --work-dir, --only, --retry, --wheels, --list, --summary and --tiny.
# benchmarks/README.md explains them.
# PYTHON is the interpreter in which the plug-in and a torch for the GPU are installed.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$here/../../scripts/help.sh"
exec "${PYTHON:-python3}" "$here/campaign.py" "$@"
