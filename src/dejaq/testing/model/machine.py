"""R8: any storage against the memory model, step by step, under operations that hypothesis generates.

    run_model(new_place, settings(max_examples=100, stateful_step_count=40, print_blob=True))

`new_place` is called once per example and returns a storage factory over a new, empty place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dejaq import limits
from dejaq.domain.headers import encode_header_change, encode_headers
from dejaq.domain.topic import TopicKind
from dejaq.testing.conformance.scene import StorageFactory
from dejaq.testing.model.pair import Pair
from dejaq.testing.model.pair_state import BUCKETS, LeasePair
from dejaq.testing.model.steps import PlannedRow, PlannedStep, SettleKind, StepKind

T = TypeVar("T")
NewPlace = Callable[[], StorageFactory]

# Few values of each kind, so that equal times, shared slices and repeated ids are frequent.
_IDS = [f"n{number}" for number in range(8)] + ["0" * 31 + "a"]
_DELAYS = [-86_400_000, -20_000, -1, -1, 0, 0, 0, 0, 1, 2, 50, 1_000, 9_999, 10_000, 60_000, 3_600_000]
_OWNERS = st.sampled_from(["billing", "mail"])
_CONSUMERS = st.sampled_from(["worker-1", "worker-2"])
_BODIES = st.sampled_from(["", "a", "bb", "large", "upload-0", "upload-1"])
_PRIORITIES = st.sampled_from([0, 0, 0, -1, 7])
_HEADERS = st.sampled_from([b"", b"", encode_headers({"k": "v"})])
_HEADER_CHANGES = st.sampled_from(
    [b"", encode_header_change({"k": "v"}), encode_header_change({"j": "w"}), encode_header_change({"k": None})]
)
_LEASES = st.sampled_from([100, 1_000, 30_000])
_ROW = st.tuples(st.sampled_from(_DELAYS), _PRIORITIES, _BODIES, _HEADERS)
_DUE_ROW = st.tuples(st.sampled_from([-1, 0, 1]), _PRIORITIES, _BODIES, _HEADERS)
_ROWS = st.lists(_ROW, min_size=1, max_size=6)
_PICK = st.integers(0, 1_000)
_PLANS = st.builds(
    PlannedStep,
    kind=st.sampled_from(StepKind),
    pick=_PICK,
    recent=st.booleans(),
    delay=st.sampled_from(_DELAYS),
    owner=_OWNERS,
    id=st.sampled_from(["", *_IDS]),
    body=st.sampled_from(["made", "made", "upload-0", "upload-1"]),
)
_UPLOADS_MAX = 3
_PASSING = [1, 50, 99, 100, 999, 1_000, 10_000, 30_000, 3_600_000]


class StorageMachine(RuleBasedStateMachine):
    """Generates a history and runs it on a storage and on the model; every answer must be the same."""

    def __init__(self, new_place: NewPlace, *, journal: bool) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._pair = Pair(new_place(), journal=journal)

    def _run(self, step: Coroutine[object, object, T]) -> T:
        return self._loop.run_until_complete(step)

    @initialize(
        limit=st.sampled_from([0, 0, 1, 2]),
        backoff=st.sampled_from(["", "exponential:50ms:1s:0.5"]),
        kind=st.sampled_from([TopicKind.TIMELINE, TopicKind.TIMELINE, TopicKind.PRIORITY]),
        dedup_ms=st.sampled_from([0, 0, 1_000, 60_000]),
    )
    def begin(self, limit: int, backoff: str, kind: TopicKind, dedup_ms: int) -> None:
        """Open both, with a topic of a random kind.

        The topic may have a limit of attempts, a wait after a lost lease and a deduplication window.
        """
        chosen = {"max_attempts": limit, "expiry_backoff": backoff, "kind": kind, "dedup_ms": dedup_ms}
        self._run(self._pair.open(chosen))

    def teardown(self) -> None:
        """Close both."""
        try:
            self._run(self._pair.close())
        finally:
            self._loop.close()

    @rule(ids=st.lists(st.sampled_from(_IDS), min_size=1, max_size=6, unique=True), data=st.data())
    def create_natural(self, ids: list[str], data: st.DataObject) -> None:
        """Create messages with natural ids, some of them taken."""
        rows = data.draw(st.lists(_ROW, min_size=len(ids), max_size=len(ids)))
        refused = data.draw(st.sets(st.integers(0, len(ids) - 1), max_size=1))
        relative = data.draw(st.sets(st.integers(0, len(ids) - 1)))
        self._run(
            self._pair.create(
                ids=ids,
                rows=rows,
                owner=data.draw(_OWNERS),
                session=data.draw(_PICK),
                back=data.draw(st.sampled_from([0, 0, 0, 2, -3])),
                refused=refused,
                relative=relative,
            )
        )

    @rule(rows=_ROWS, bucket=st.integers(0, BUCKETS - 1), data=st.data())
    def create_generated(self, rows: list[PlannedRow], bucket: int, data: st.DataObject) -> None:
        """Create messages with generated ids, some counters used before."""
        self._run(
            self._pair.create(
                ids=None,
                rows=sorted(rows, key=lambda row: row[:2]),
                owner=data.draw(_OWNERS),
                session=data.draw(_PICK),
                back=data.draw(st.sampled_from([0, 0, 0, 2, -3])),
                refused=data.draw(st.sets(st.integers(0, len(rows) - 1), max_size=1)),
                bucket=bucket,
            )
        )

    @precondition(lambda self: self._pair.batches)
    @rule(pick=_PICK, cancelled=st.booleans(), restarted=st.booleans())
    def repeat(self, pick: int, cancelled: bool, restarted: bool) -> None:
        """Send an earlier batch again, sometimes when its messages are gone or the storage was restarted."""
        if cancelled:
            self._run(self._pair.cancel_batch(pick))
        if restarted:
            self._run(self._pair.restart())
        self._run(self._pair.repeat(pick))

    @rule(
        consumer=_CONSUMERS,
        ahead=st.sampled_from([0, 0, 1, 1_000, limits.PREFETCH_MS_MAX]),
        lease_ms=_LEASES,
        buckets=st.sets(st.integers(0, BUCKETS - 1), min_size=1),
        rows_max=st.sampled_from([1, 2, 5, 1_000]),
    )
    def lease(self, consumer: str, ahead: int, lease_ms: int, buckets: set[int], rows_max: int) -> None:
        """Lease some of the due messages."""
        self._lease(consumer, ahead=ahead, lease_ms=lease_ms, buckets=buckets, rows_max=rows_max)

    @rule(consumer=_CONSUMERS, lease_ms=_LEASES)
    def lease_everything(self, consumer: str, lease_ms: int) -> None:
        """Lease all due messages."""
        self._lease(consumer, ahead=0, lease_ms=lease_ms, buckets=set(range(BUCKETS)), rows_max=1_000)

    @rule(rows=st.lists(_DUE_ROW, min_size=2, max_size=5), consumer=_CONSUMERS, lease_ms=_LEASES, pick=_PICK)
    def create_and_lease(self, rows: list[PlannedRow], consumer: str, lease_ms: int, pick: int) -> None:
        """Create messages that are due now, and lease them with all other due messages."""
        self._run(
            self._pair.create(
                ids=None,
                rows=sorted(rows, key=lambda row: row[:2]),
                owner="billing",
                session=pick,
                back=0,
                refused=set(),
                bucket=pick % BUCKETS,
            )
        )
        # Read the message before the lease, so that a recall is known to restore this version.
        self._run(self._pair.compare())
        self._lease(consumer, ahead=1, lease_ms=lease_ms, buckets=set(range(BUCKETS)), rows_max=1_000)

    def _lease(self, consumer: str, *, ahead: int, lease_ms: int, buckets: set[int], rows_max: int) -> None:
        self._run(
            self._pair.lease(
                consumer=consumer, ahead=ahead, lease_ms=lease_ms, buckets=sorted(buckets), rows_max=rows_max
            )
        )

    @precondition(lambda self: self._pair.leases)
    @rule(
        kind=st.sampled_from(SettleKind),
        pick=_PICK,
        part=st.lists(_PICK, min_size=1, max_size=3),
        delay=st.sampled_from(_DELAYS),
        lease_ms=_LEASES,
    )
    def settle_rows(self, kind: SettleKind, pick: int, part: list[int], delay: int, lease_ms: int) -> None:
        """Delete, extend, release, recall or reject some rows of a lease, live or not."""
        lease = self._picked_lease(pick)
        rows = [(row, row + 1) for row in sorted({row % lease.count for row in part})]
        self._run(self._pair.settle(kind, lease, rows=rows, stranger=False, delay=delay, lease_ms=lease_ms))

    @precondition(lambda self: self._pair.leases)
    @rule(
        kind=st.sampled_from(SettleKind),
        pick=_PICK,
        stranger=st.sampled_from([False, False, False, True]),
        delay=st.sampled_from(_DELAYS),
        lease_ms=_LEASES,
    )
    def settle_lease(self, kind: SettleKind, pick: int, stranger: bool, delay: int, lease_ms: int) -> None:
        """Delete, extend, release, recall or reject a whole lease, sometimes as another consumer."""
        lease = self._picked_lease(pick)
        self._run(self._pair.settle(kind, lease, rows=None, stranger=stranger, delay=delay, lease_ms=lease_ms))

    def _picked_lease(self, pick: int) -> LeasePair:
        """Mostly one of the latest leases, which may still be live."""
        recent = self._pair.leases[-2:] if pick % 4 else self._pair.leases
        return recent[pick % len(recent)]

    @precondition(lambda self: self._pair.ids)
    @rule(picks=st.lists(_PICK, min_size=1, max_size=4), owner=_OWNERS, data=st.data())
    def edit(self, picks: list[int], owner: str, data: st.DataObject) -> None:
        """Change messages, sometimes with a version as a condition."""
        count = len(picks)

        def column(values: st.SearchStrategy[T]) -> list[T | None] | None:
            return data.draw(st.none() | st.lists(st.none() | values, min_size=count, max_size=count))

        self._run(
            self._pair.edit(
                picks,
                owner=owner,
                delays=column(st.sampled_from(_DELAYS)),
                bodies=column(_BODIES),
                priorities=column(_PRIORITIES),
                headers=column(_HEADER_CHANGES),
                versions=data.draw(st.sampled_from([None, None, "present", "first"])),
            )
        )

    @precondition(lambda self: self._pair.ids)
    @rule(picks=st.lists(_PICK, min_size=1, max_size=4), owner=_OWNERS)
    def cancel(self, picks: list[int], owner: str) -> None:
        """Cancel messages."""
        self._run(self._pair.cancel(picks, owner=owner))

    @precondition(lambda self: self._pair.ids and self._pair.leases)
    @rule(plans=st.lists(_PLANS, min_size=1, max_size=4), back=st.sampled_from([0, 0, 0, 1, 2]))
    def transact(self, plans: list[PlannedStep], back: int) -> None:
        """Run several steps together, sometimes under a name that was used."""
        self._run(self._pair.transact(plans, back=back))

    @rule(picks=st.lists(_PICK, min_size=1, max_size=3))
    def redrive(self, picks: list[int]) -> None:
        """Send dead letters back."""
        self._run(self._pair.redrive(picks))

    @precondition(lambda self: len(self._pair.uploads) < _UPLOADS_MAX)
    @rule(bucket=st.integers(0, BUCKETS - 1), content=st.sampled_from([b"one", b"two"]))
    def upload(self, bucket: int, content: bytes) -> None:
        """Upload a body that messages may refer to."""
        self._run(self._pair.upload(bucket, content))

    # Hypothesis chooses rules without arguments too often, so these share one rule.
    @rule(event=st.sampled_from(["restart", "trim journal", "reclaim", *["reclaim later"] * 4, *_PASSING]))
    def happen(self, event: str | int) -> None:
        """Let time pass, restart the storage, remove journal records that were read, or reclaim bodies."""
        if event == "restart":
            self._run(self._pair.restart())
        elif event == "reclaim":
            self._run(self._pair.reclaim())
        elif event == "reclaim later":
            self._pair.now += limits.UPLOAD_KEEP_MS
            self._run(self._pair.reclaim())
        elif event == "trim journal":
            self._run(self._pair.trim_journal())
        else:
            self._pair.now += int(event)

    @rule(delay=st.sampled_from(_DELAYS), step=st.sampled_from([1, 7, 1_000, 60_000, 86_400_000]))
    def query(self, delay: int, step: int) -> None:
        """Count, histogram and browse in a part of the timeline, with every field of a filter."""
        self._run(self._pair.compare_queries(delay, step))

    @invariant()
    def same_contents(self) -> None:
        """Both have the same messages, leases and times."""
        self._run(self._pair.compare())

    @invariant()
    def true_journal(self) -> None:
        """Replaying the journal gives the messages of the storage."""
        self._run(self._pair.compare_journal())


def run_model(new_place: NewPlace, size: settings, *, journal: bool = False) -> None:
    """Run the machine; raises an error with the shortest history in which the storage and the model differ.

    With `journal` the storage keeps a journal, and replaying it must give the messages of the storage.
    """

    class BoundMachine(StorageMachine):
        def __init__(self) -> None:
            super().__init__(new_place, journal=journal)

    run_state_machine_as_test(BoundMachine, settings=size)
