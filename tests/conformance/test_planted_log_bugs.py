"""Defects that are planted into the logs of a store are found by the conformance suite, on every store.

Those of the embedded store are in `tests/regressions/planted/logs.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dejaq.errors import DejaqError
from dejaq.storage.log.base import LogSlice
from dejaq.storage.memory import logs as memory_logs
from dejaq.storage.memory.logs import MemoryLogs
from dejaq.storage.postgres.log import appending, grouping, reading
from dejaq.storage.postgres.log.reading import Bounds
from dejaq.storage.postgres.log.store import PostgresLogs
from dejaq.testing.conformance.logs import LOG_CHECKS
from tests.conformance.backends import memory, postgres

STORES = {"memory": memory, "postgres": postgres}
CHECKS = {check.name: check for check in LOG_CHECKS}


def leave_a_hole(patch: pytest.MonkeyPatch, store: str) -> None:
    if store == "memory":
        append = memory_logs._append

        def append_and_skip(log: Any, topic: Any, batch: Any, now: int) -> Any:
            answer = append(log, topic, batch, now)
            log.buckets[batch.bucket].next += 1
            return answer

        patch.setattr(memory_logs, "_append", append_and_skip)
        return
    lock = appending.lock_buckets

    async def lock_and_skip(*arguments: Any) -> Any:
        ends = await lock(*arguments)
        for end in ends.values():
            end.next += 1
        return ends

    patch.setattr(appending, "lock_buckets", lock_and_skip)


def read_in_another_order(patch: pytest.MonkeyPatch, store: str) -> None:
    logs = MemoryLogs if store == "memory" else PostgresLogs
    read = logs.read

    async def read_backwards(*arguments: Any, **rest: Any) -> LogSlice:
        found = await read(*arguments, **rest)
        return LogSlice(tuple(reversed(found.batches)), found.next)

    patch.setattr(logs, "read", read_backwards)


def read_what_was_rolled_back(patch: pytest.MonkeyPatch, store: str) -> None:
    if store == "memory":
        read = MemoryLogs.read

        async def read_all(*arguments: Any, committed: bool, **rest: Any) -> LogSlice:
            return await read(*arguments, committed=False, **rest)

        patch.setattr(MemoryLogs, "read", read_all)
        return
    of_postgres = reading.read

    async def read_all_rows(*arguments: Any, committed: bool, **rest: Any) -> LogSlice:
        return await of_postgres(*arguments, committed=False, **rest)

    patch.setattr(reading, "read", read_all_rows)


def accept_an_old_claim(patch: pytest.MonkeyPatch, store: str) -> None:
    if store == "memory":
        commit = MemoryLogs.commit

        async def commit_anyway(self: Any, topic: Any, group: str, commits: Any, *rest: Any) -> Any:
            held = (await self.groups(topic)).get(group, {})
            current = [replace(one, claim=held[one.bucket].claim) if one.bucket in held else one for one in commits]
            return await commit(self, topic, group, current, *rest)

        patch.setattr(MemoryLogs, "commit", commit_anyway)
        return
    decide = grouping.decide

    async def decide_anyway(link: Any, topic: Any, group: str, commits: Any) -> Any:
        held = (await grouping.groups(link, topic)).get(group, {})
        current = [replace(one, claim=held[one.bucket].claim) if one.bucket in held else one for one in commits]
        return await decide(link, topic, group, current)

    patch.setattr(grouping, "decide", decide_anyway)


def close_windows_at_once(patch: pytest.MonkeyPatch, store: str) -> None:
    if store == "memory":
        settle = memory_logs._Bucket.settle
        patch.setattr(memory_logs._Bucket, "settle", lambda self, now: settle(self, now + 10**12))
        return
    patch.setattr(Bounds, "stable", property(lambda self: self.next))


BUGS: dict[str, tuple[Callable[[pytest.MonkeyPatch, str], None], str]] = {
    "a_hole_in_the_offsets": (leave_a_hole, "appending.offsets_are_dense"),
    "batches_are_read_in_another_order": (read_in_another_order, "appending.one_call_keeps_its_order"),
    "a_committed_reader_gets_a_batch_that_was_rolled_back": (
        read_what_was_rolled_back,
        "reading.a_rollback_takes_a_batch_out",
    ),
    "a_commit_under_an_old_claim_is_accepted": (accept_an_old_claim, "grouping.an_old_claim_commits_nothing"),
    "a_rollback_window_ends_at_once": (close_windows_at_once, "reading.a_window_holds_committed_readers"),
}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("bug", BUGS)
async def test_a_planted_bug_is_found(bug: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, name = BUGS[bug]
    plant(monkeypatch, store)
    with pytest.raises((AssertionError, DejaqError)):
        await CHECKS[name].run(STORES[store](tmp_path / "store"))
