#!/usr/bin/env bash
# Build .venv with $PYTHON, or name in one line the missing parts.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"

if ! command -v "$python" >/dev/null; then
    scripts/install_system.sh
fi
if ! command -v "$python" >/dev/null; then
    echo "dejaq: no '$python' on this machine; install Python 3.11 or newer, or run make with PYTHON=/path/to/python3" >&2
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "dejaq: $("$python" --version) is too old; DejaQ needs Python 3.11 or newer (make PYTHON=python3.11 ...)" >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "dejaq: this Python has no venv module; installing it" >&2
    scripts/install_system.sh
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "dejaq: '$python' cannot build virtual environments; install python3-venv for it and run make again" >&2
    exit 1
fi
if [ ! -x .venv/bin/python ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    "$python" -m venv --clear .venv
fi
