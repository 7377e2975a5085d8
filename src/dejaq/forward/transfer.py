"""Moves messages between two topics of one store, each message in one transaction with its acknowledgement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dejaq.errors import Code, Refused
from dejaq.forward.base import Parcel, headers_with_origin, with_key
from dejaq.forward.log import LogSink, LogSource
from dejaq.forward.topic import TopicSink, TopicSource
from dejaq.sdk.changing.transaction import Transaction
from dejaq.sdk.client import Client

# The message belongs to another forwarder by now, which moves it.
_LOST = frozenset({Code.CLAIM_LOST, Code.LEASE_LOST, Code.NOT_FOUND})


class LogTransfer:
    """Between two logs, or a log and a timeline: exactly once."""

    def __init__(self, client: Client, source: TopicSource | LogSource, sink: TopicSink | LogSink) -> None:
        self._client, self._source, self._sink = client, source, sink
        self._possible = True

    async def __call__(self, parcels: Sequence[Parcel]) -> Mapping[int, str] | None:
        """Move messages; the reason by position of each that was refused. None if one transaction cannot have both."""
        if not self._possible:
            return None
        refused: dict[int, str] = {}
        waiting = [list(enumerate(parcels))]
        while waiting:
            some = waiting.pop()
            try:
                await self._transact([parcel for _, parcel in some])
            except Refused as error:
                if error.code is Code.DIFFERENT_STORES:
                    self._possible = False
                    return None
                if len(some) > 1:
                    # Smaller transactions, in the order of the messages.
                    waiting += [some[len(some) // 2 :], some[: len(some) // 2]]
                elif error.code not in _LOST:
                    refused |= await self._write(*some[0])
        return refused

    async def _transact(self, parcels: Sequence[Parcel]) -> None:
        group = self._sink.group if isinstance(self._sink, TopicSink) else ""
        async with self._client.transaction(group=group or "forward") as step:
            for parcel in map(with_key, parcels) if isinstance(self._sink, LogSink) else parcels:
                self._put(step, parcel)
            if isinstance(self._source, LogSource):
                step.commit_offsets(self._source.member, self._source.ends(parcels))

    def _put(self, step: Transaction, parcel: Parcel) -> None:
        sink = self._sink
        if isinstance(self._source, TopicSource):
            step.delete(parcel.token)
        if isinstance(sink, LogSink):
            bucket = sink.bucket_of(parcel)
            step.append(sink.log, parcel.body, key=parcel.key, headers=headers_with_origin(parcel), bucket=bucket)
        else:
            sink.send(step, parcel)

    async def _write(self, place: int, parcel: Parcel) -> dict[int, str]:
        """Write one message and then acknowledge it: the sink may know it, and says why it refuses it."""
        reasons = await self._sink.write([parcel])
        if reasons:
            return {place: reasons[0]}
        await self._source.ack([parcel])
        return {}
