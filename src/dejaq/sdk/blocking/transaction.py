"""Generated from `dejaq.sdk.changing.transaction` by `scripts/generate_sync.py`; edit that module, not this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from dejaq.sdk.blocking.portal import Blocking
from dejaq.sdk.changing.transaction import HasHeld
from dejaq.sdk.changing.transaction import Transaction as AsyncTransaction
from dejaq.sdk.log.transacting import HasGroupCommits, HasLogTarget
from dejaq.sdk.producing.outgoing import HeaderChange, Headers
from dejaq.sdk.times import At, Delay


class Transaction(Blocking[AsyncTransaction]):
    """Collects changes and commits them when its block ends. Create it with `client.transaction`.

    Every change is checked against the state before the transaction, so each message may be named only once.
    """

    __slots__ = ()

    @property
    def group(self) -> str:
        """The group of this transaction."""
        return self._inner.group

    def delete(self, lease: HasHeld) -> None:
        """Delete a leased message, or a batch of them."""
        self._inner.delete(lease)

    def release(self, lease: HasHeld, *, at: At | None = None, delay: Delay | None = None) -> None:
        """Put a leased message, or a batch, back on the timeline: at `at`, after `delay` seconds, or immediately."""
        self._inner.release(lease, at=at, delay=delay)

    def send(
        self,
        topic: str,
        body: bytes,
        *,
        at: At | None = None,
        delay: Delay | None = None,
        id: str | None = None,
        priority: int = 0,
        headers: Headers | None = None,
        group: str | None = None,
    ) -> str:
        """Create a message in a topic, as `Producer.send` does; returns its id."""
        return self._inner.send(topic, body, at=at, delay=delay, id=id, priority=priority, headers=headers, group=group)

    create = send

    def move(
        self,
        topic: str,
        ids: str | Sequence[str],
        *,
        at: At | None = None,
        delay: Delay | None = None,
        group: str | None = None,
    ) -> None:
        """Give messages of the group another time."""
        self._inner.move(topic, ids, at=at, delay=delay, group=group)

    def edit(
        self,
        topic: str,
        id: str,
        *,
        body: bytes | None = None,
        at: At | None = None,
        delay: Delay | None = None,
        priority: int | None = None,
        headers: HeaderChange | None = None,
        version: int | None = None,
        group: str | None = None,
    ) -> None:
        """Change one message of the group; a field that is not given keeps its value.

        `headers` are merged with those of the message; a header whose new value is None is removed.
        """
        self._inner.edit(
            topic, id, body=body, at=at, delay=delay, priority=priority, headers=headers, version=version, group=group
        )

    def append(
        self,
        log: HasLogTarget,
        body: bytes,
        *,
        key: bytes = b"",
        headers: Headers | None = None,
        bucket: int | None = None,
    ) -> None:
        """Append a message to a log, as `Log.append` does. The messages of one bucket are one batch."""
        self._inner.append(log, body, key=key, headers=headers, bucket=bucket)

    def commit_offsets(self, member: HasGroupCommits, offsets: Mapping[int, int] | None = None) -> None:
        """Commit what a member of a group has handed out until now, or these offsets; each is the next one to read.

        The transaction is refused with CLAIM_LOST when another member has one of the buckets by then.
        """
        self._inner.commit_offsets(member, offsets)

    def cancel(self, topic: str, ids: str | Sequence[str], *, group: str | None = None) -> None:
        """Remove messages of the group."""
        self._inner.cancel(topic, ids, group=group)

    def __enter__(self) -> Self:
        self._portal.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.follow(self._inner.__aexit__(kind, error, trace))

    def commit(self) -> None:
        """Commit all changes now; raises the first refusal, and then nothing was changed."""
        self._portal.follow(self._inner.commit())

    def prepare(self, log: HasLogTarget, name: str, *, timeout: float = 60.0) -> None:
        """Store the changes under a name of this log; `commit_prepared` or `abort_prepared` of any client decides.

        Until then, committed readers stop before the messages. After `timeout` seconds the transaction is aborted. Only
        `append` and `commit_offsets` can be prepared.
        """
        self._portal.run(self._inner.prepare(log, name, timeout=timeout))
