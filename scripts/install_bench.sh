#!/usr/bin/env bash
# Install the servers that the benchmarks compare with, without starting any of them as a service.
# Names the servers that cannot be installed; the benchmarks leave them out and run the others.
set -euo pipefail

missing() {
    command -v redis-server >/dev/null || echo redis-server
    command -v beanstalkd >/dev/null || echo beanstalkd
    [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || echo rabbitmq-server
    compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || echo postgresql
    command -v strace >/dev/null || echo strace
}

wanted="$(missing | tr '\n' ' ')"
[ -n "$wanted" ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "bench: this machine has no apt-get; without $wanted- their systems are left out" >&2
    exit 0
fi
if [ "$(id -u)" = 0 ]; then
    as_root=""
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root="sudo"
else
    echo "bench: not root; without $wanted- their systems are left out. As root: apt-get install $wanted" >&2
    exit 0
fi

# Debian starts a service when its package is installed, unless this file forbids it.
policy=/usr/sbin/policy-rc.d
kept=yes
if [ ! -e "$policy" ]; then
    kept=no
    printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
    $as_root chmod 755 "$policy"
fi
restore() { [ "$kept" = yes ] || $as_root rm -f "$policy"; }
trap restore EXIT

echo "bench: installing $wanted" >&2
# Word splitting is intended: one package per word.
# shellcheck disable=SC2086
{ $as_root apt-get update -qq &&
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $wanted; } >&2 ||
    echo "bench: apt-get could not install all of: $wanted- what is missing is left out" >&2
