#!/usr/bin/env bash
# Install the OpenID provider of the tests from npm, as its lock file says, into the virtual environment.
# Without Node or npm, or when npm does not answer, it says so, and the tests that need the provider are skipped by name.
set -euo pipefail
cd "$(dirname "$0")/.."
target=.venv/node

if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
    echo "dejaq: no node or npm on this machine: the tests with a real OpenID provider are skipped" >&2
    exit 0
fi
mkdir -p "$target"
cp tests/integration/security/openid/package.json tests/integration/security/openid/package-lock.json "$target/"
npm ci --prefix "$target" --ignore-scripts --no-audit --no-fund --loglevel=error >&2 ||
    echo "dejaq: npm could not install the OpenID provider: the tests that need it are skipped" >&2
