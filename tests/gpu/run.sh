#!/usr/bin/env bash
# Every check and benchmark that needs a GPU, as one table (Markdown), in under 5 minutes:
#   bash tests/gpu/run.sh [PYTHON]
# PYTHON needs refopt's dependencies, CuPy and ml_dtypes; PyTorch is a peer where it is installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHONPATH="$PWD:$PWD/tests${PYTHONPATH:+:$PYTHONPATH}" exec "${1:-python3}" tests/gpu/table.py
