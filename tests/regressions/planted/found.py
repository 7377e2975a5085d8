"""Planted bugs for the defects that adversarial testing found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.regressions.bugs import Bug


def _a_session_is_unknown_in_its_first_turns() -> None:
    import asyncio

    from dejaq.sdk.session.connection import Connection
    from dejaq.sdk.session.link import Link

    use, supervise = Connection._use, Connection._supervise

    async def supervised(self: Connection, link: Link) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        use(self, link)
        await supervise(self, link)

    Connection._use = lambda _self, _link: None  # type: ignore[method-assign]
    Connection._supervise = supervised  # type: ignore[method-assign]


def _a_pause_is_looked_at_before_subscribing_only() -> None:
    from dejaq.protocol.transport import Transport
    from dejaq.sdk.consuming import consumer
    from dejaq.sdk.session.link import Link, ask_once

    async def enter(self: consumer.Consumer, link: Link, _transport: Transport) -> None:
        self._holder.reconnect()
        frame = self._connection.frame()
        frame.consumer.topic = self.topic
        frame.consumer.name = self.name
        await ask_once(link, frame)
        if not self._paused:
            frame = self._connection.frame()
            frame.subscribe.CopyFrom(self._subscription.subscribe())
            await ask_once(link, frame)

    consumer.Consumer._enter = enter  # type: ignore[method-assign]


def _errors_keep_every_traceback() -> None:
    from dejaq.errors import InvalidArgument

    InvalidArgument.with_traceback = lambda self, _trace: self  # type: ignore[method-assign, assignment]


def _new_directories_are_not_synced() -> None:
    """A data directory is lost with everything that was synced in it."""
    from dejaq import directories

    def make(path: Path, *, mode: int = 0o777) -> None:
        path.mkdir(mode=mode, parents=True, exist_ok=True)

    directories.make_directory = make


def _all_changes_of_a_call_are_one_write() -> None:
    from dejaq.storage.rocksdb import store

    store.grouped = lambda changes: [changes]  # type: ignore[assignment, misc]


def _a_store_closes_during_a_checkpoint() -> None:
    from dejaq.storage.rocksdb.engine.checkpoints import Checkpoints

    async def finish(_self: Checkpoints) -> None:
        return

    Checkpoints.finish = finish  # type: ignore[method-assign]


def _room_is_made_behind_the_cursor() -> None:
    from dejaq.storage.rocksdb.timeline.ready import ReadyWindow
    from dejaq.storage.rocksdb.timeline.window import FreeRows, Window

    def late_key(self: ReadyWindow | Window) -> bytes | None:
        held = sorted(source.run.key for _, _, source in self._heap if isinstance(source, FreeRows))
        return held[len(held) * 3 // 4] if held else None

    ReadyWindow.late_key = Window.late_key = late_key


POWER = "tests/integration/testing/test_power_disk.py"
CONSUMER = "tests/integration/sdk/test_consumer.py"

BUGS: Mapping[str, Bug] = {
    "mixed-call": Bug(
        _all_changes_of_a_call_are_one_write,
        "tests/conformance/test_conformance.py::test_storage[rocksdb-settle.changes_of_many_kinds_in_one_call_see_one_another]",
    ),
    "room-behind-the-cursor": Bug(
        _room_is_made_behind_the_cursor,
        "tests/unit/storage/rocksdb/test_window.py"
        "::test_rows_that_are_offered_again_behind_the_cursor_do_not_move_it_over_unread_runs",
    ),
    "close-during-checkpoint": Bug(
        _a_store_closes_during_a_checkpoint,
        "tests/integration/storage/test_checkpoint.py::test_a_store_is_closed_after_its_running_checkpoint",
    ),
    "pause-right-after-open": Bug(
        _a_session_is_unknown_in_its_first_turns,
        f"{CONSUMER}::test_a_consumer_that_pauses_as_soon_as_it_is_open_takes_nothing",
    ),
    "pause-while-subscribing": Bug(
        _a_pause_is_looked_at_before_subscribing_only,
        f"{CONSUMER}::test_a_consumer_that_pauses_while_it_subscribes_releases_messages_that_come",
    ),
    "error-raised-again": Bug(
        _errors_keep_every_traceback,
        f"{CONSUMER}::test_an_error_that_is_raised_again_and_again_does_not_grow",
    ),
    "new-directories-are-not-synced": Bug(
        _new_directories_are_not_synced,
        f"{POWER}::test_a_directory_that_was_made_survives_with_those_above_it",
    ),
}
