"""The requirements on every storage: run each of `CHECKS` against a factory of yours.

    for check in CHECKS:
        await check.run(factory)

A factory returns a storage that is not open yet; called again, it returns one over the same contents. A check
raises AssertionError, with the values it saw, when the sentence in `check.about` is not true. The groups `journal`
and `journal_restart` need a storage that keeps a journal.
"""

from __future__ import annotations

from dejaq.testing.conformance.changes import (
    agreement,
    concurrency,
    create,
    dead_letters,
    deduplication,
    ids,
    large,
    leases,
    owner,
    priorities,
    sessions,
    settle,
    steps,
)
from dejaq.testing.conformance.check import Check, StorageFactory, checks_of
from dejaq.testing.conformance.durability import journal, journal_restart, restart
from dejaq.testing.conformance.looking import queries, snapshots, topics
from dejaq.testing.conformance.scene import Scene

CHECKS: tuple[Check, ...] = tuple(
    check
    for module in (
        create,
        deduplication,
        ids,
        sessions,
        leases,
        settle,
        agreement,
        dead_letters,
        priorities,
        owner,
        queries,
        snapshots,
        topics,
        concurrency,
        steps,
        large,
        journal,
    )
    for check in checks_of(module, on_one_part=module is steps)
) + tuple(check for module in (restart, journal_restart) for check in checks_of(module, restarts=True))

__all__ = ["CHECKS", "Check", "Scene", "StorageFactory"]
