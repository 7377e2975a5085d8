"""Finds from the imports of each test module which tests `make test-fast` leaves out; no test is marked by hand.

`server`: the test needs an installed server (PostgreSQL, etcd, Redis, Kafka), or drops packets. `slow`: the test starts
processes, generates random histories, or plants bugs. A test that is parametrized by store is marked by its own store
only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from types import ModuleType

import pytest

SERVERS = {
    f"dejaq.testing.servers.{name}"
    for name in ("brokers", "etcd", "kafka", "network", "patroni", "postgres", "redis", "shards")
} | {"dejaq.synchronization.embedded"}
PROCESSES = {"dejaq.testing.servers.process", "subprocess", "multiprocessing"}
SLOW_FOLDERS = {"acceptance", "chaos", "fuzz", "regressions"}
SLOW_MODULES = {
    "tests.conformance.test_model",
    "tests.conformance.test_planted_bugs",
    "tests.integration.cluster.test_balance",
    "tests.integration.sdk.test_balance",
    "tests.unit.storage.rocksdb.test_levels",
}
# They run one short command: git, which lists the files of the repository.
FAST_MODULES = {"tests.unit.test_tidy"}
STORES_WITHOUT_SERVER = {"memory", "rocksdb", "rocksdb_on_disk"}


def mark(item: pytest.Function) -> None:
    """Mark one test."""
    used = _used_by(item.module)
    folder = item.module.__name__.split(".")[1]
    if used & SERVERS and not STORES_WITHOUT_SERVER & _parameters(item):
        item.add_marker(pytest.mark.server)
    slow = used & PROCESSES and item.module.__name__ not in FAST_MODULES
    if slow or folder in SLOW_FOLDERS or item.module.__name__ in SLOW_MODULES:
        item.add_marker(pytest.mark.slow)


def _parameters(item: pytest.Function) -> set[object]:
    """The strings that a test is parametrized with."""
    chosen = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return {one for one in chosen if isinstance(one, str)}


@cache
def _used_by(module: ModuleType) -> frozenset[str]:
    """The modules that a test module imports, directly or through other test modules."""
    found: set[str] = set()
    waiting = [module, *_conftests(module)]
    seen = set(waiting)
    while waiting:
        for name in _imported(waiting.pop()):
            found.add(name)
            other = sys.modules.get(name)
            if name.startswith("tests.") and other is not None and other not in seen:
                seen.add(other)
                waiting.append(other)
    return frozenset(found)


def _conftests(module: ModuleType) -> Iterator[ModuleType]:
    """The conftest modules in a module's folder and in the folders above it."""
    parts = module.__name__.split(".")
    for length in range(2, len(parts)):
        if (found := sys.modules.get(".".join([*parts[:length], "conftest"]))) is not None:
            yield found


def _imported(module: ModuleType) -> Iterator[str]:
    """The modules from which a module imports its names."""
    for value in vars(module).values():
        if isinstance(value, ModuleType):
            yield value.__name__
        elif isinstance(home := getattr(value, "__module__", None), str):
            yield home
