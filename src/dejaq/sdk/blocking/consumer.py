"""Generated from `dejaq.sdk.consuming.consumer` by `scripts/generate_sync.py`; edit that module, not this one."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from dejaq.sdk.blocking.lease import Batch, Lease
from dejaq.sdk.blocking.portal import Blocking
from dejaq.sdk.consuming.consumer import BATCH_SIZE, BUSY_SECONDS
from dejaq.sdk.consuming.consumer import Batches as AsyncBatches
from dejaq.sdk.consuming.consumer import Consumer as AsyncConsumer


class Consumer(Blocking[AsyncConsumer]):
    """An iterator of leases; `batches` yields many leases at a time. Open it with `with`.

    No message is handed over before the broker's clock has reached its time. After an outage the consumer reconnects
    under its name, keeps its messages, and does not hand over any message twice. Several threads may iterate over one
    consumer; each message goes to one of them.
    """

    __slots__ = ()

    @property
    def topic(self) -> str:
        """The topic of this consumer."""
        return self._inner.topic

    @property
    def name(self) -> str:
        """The name of this consumer."""
        return self._inner.name

    def open(self) -> None:
        """Connect and subscribe; raises NoBroker after the deadline, or the broker's refusal."""
        self._portal.run(self._inner.open())

    def close(self) -> None:
        """Return the messages that user code has not seen, finish the changes in progress, and disconnect.

        A message that user code has and did not settle stays leased until its lease ends; then it is delivered again.
        """
        if self._portal.is_open:
            self._portal.follow(self._inner.close())

    def stop(self) -> None:
        """Take no more messages: return those that user code has not seen and end the iteration.

        Messages that user code has can still be settled.
        """
        self._portal.run(self._inner.stop())

    def pause(self) -> None:
        """Take nothing until `resume`: messages that user code has not seen are returned, and other consumers get them
        at once.
        """
        self._portal.run(self._inner.pause())

    def resume(self) -> None:
        """Take messages again after `pause`, unless the consumer has taken `max_messages`."""
        self._portal.run(self._inner.resume())

    def busy(self, seconds: float = BUSY_SECONDS) -> None:
        """Take nothing for so many seconds, and a smaller share after that; other consumers take
        over meanwhile.
        """
        self._portal.run(self._inner.busy(seconds))

    @property
    def paused(self) -> bool:
        """Whether the consumer takes no messages at present; a consumer that has taken `max_messages` takes no more."""
        return self._inner.paused

    def __enter__(self) -> Self:
        self._portal.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._portal.is_open:
            self._portal.follow(self._inner.__aexit__(kind, error, trace))

    def now_ms(self) -> int:
        """The best estimate of the broker's clock from this consumer's own session."""
        return self._inner.now_ms()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Lease:
        return Lease(self._portal.follow(self._inner.__anext__()), self._portal)

    def batches(self, size: int = BATCH_SIZE) -> Batches:
        """Batches of at most `size` leases: a batch has all messages that are due as soon as there is one."""
        return Batches(self._inner.batches(size), self._portal)

    def take(self, size: int = BATCH_SIZE, *, timeout: float | None = None) -> Batch:
        """The next batch; raises StopIteration when the consumer has ended.

        With `timeout` it raises TimeoutError when nothing is due within so many seconds; no message is taken then.
        """
        return Batch(self._portal.follow(self._inner.take(size, timeout=timeout)), self._portal)


class Batches(Blocking[AsyncBatches]):
    """An iterator of batches of one consumer."""

    __slots__ = ()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        return Batch(self._portal.follow(self._inner.__anext__()), self._portal)
