#!/usr/bin/env bash
# Install the Debian packages that the project uses and that are missing; name those that cannot be installed.
# The exit code is 0 when no required package is missing at the end. With `java`, it installs only what Spark needs.
set -euo pipefail

only="${1:-all}"

python="${PYTHON:-python3}"

python_works() { "$python" -c 'import ensurepip, venv' 2>/dev/null; }

# Prints the missing packages: the required ones with $1 = required, those only tests use with $1 = tests.
missing() {
    if [ "$1" = required ]; then
        command -v "$python" >/dev/null || echo python3
        python_works || echo python3-venv
    else
        [ "$only" = java ] || command -v strace >/dev/null || echo strace
        [ "$only" = java ] || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || echo postgresql
        [ "$only" = java ] || command -v redis-server >/dev/null || echo redis-server
        [ "$only" = java ] || command -v etcd >/dev/null || echo etcd-server
        [ "$only" = java ] || command -v ip >/dev/null || echo iproute2
        [ "$only" = java ] || command -v nft >/dev/null || echo nftables
        [ "$only" = java ] || command -v etcdctl >/dev/null || echo etcd-client
        [ "$only" = java ] || command -v promtool >/dev/null || echo prometheus
        [ "$only" = java ] || command -v curl >/dev/null || echo curl
        [ "$only" = java ] || command -v node >/dev/null || echo nodejs
        [ "$only" = java ] || command -v npm >/dev/null || echo npm
        [ "$only" = java ] || command -v mvn >/dev/null || echo maven
        [ "$only" = java ] || command -v chromium-headless-shell >/dev/null || command -v chromium >/dev/null ||
            echo chromium-headless-shell
        [ -n "${JAVA_HOME:-}" ] || command -v java >/dev/null || echo openjdk-17-jre-headless
    fi
}

wanted="$(missing required; missing tests)"
[ -n "$wanted" ] || exit 0
# Word splitting is intended: one package per word.
# shellcheck disable=SC2086
set -- $wanted

if ! command -v apt-get >/dev/null; then
    echo "dejaq: missing from this machine: $*; it has no apt-get, so install them by its own means" >&2
elif [ "$(id -u)" = 0 ]; then
    echo "dejaq: installing $*" >&2
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; } >&2 ||
        echo "dejaq: apt-get could not install $*; install them by hand" >&2
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    echo "dejaq: installing $* with sudo" >&2
    { sudo apt-get update -qq &&
        sudo DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; } >&2 ||
        echo "dejaq: apt-get could not install $*; install them by hand" >&2
else
    echo "dejaq: missing from this machine: $*; as root, run: apt-get install $*" >&2
fi

if [ -n "$(missing required)" ]; then
    exit 1
fi
if [ -n "$(missing tests)" ]; then
    echo "dejaq: going on without $(missing tests | tr '\n' ' ')- what needs it says so" >&2
fi
