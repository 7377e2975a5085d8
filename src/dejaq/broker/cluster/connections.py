"""The connections from this broker to the other brokers of its cluster."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from itertools import islice

from google.protobuf.message import Message

from dejaq.broker.background import Background
from dejaq.errors import DejaqError, Unavailable
from dejaq.protocol.channel import GrpcTransport
from dejaq.protocol.transport import Response, Transport
from dejaq.protocol.v1 import peer_pb2 as peer

log = logging.getLogger(__name__)

NOTICE_SECONDS = 1.0
SETTLED_SECONDS = 2.0
RETRY_SECONDS = 0.2
SETTLED_MAX = 100_000
SETTLED_AT_ONCE = 1_000
Connect = Callable[[str], Transport]
# topic number -> bucket -> the earliest time; None means every bucket.
_Notices = dict[int, dict[int | None, int]]


class PeerConnections:
    """A transport to each other broker, and the notices that wait to be sent to it."""

    def __init__(self, *, background: Background, connect: Connect = GrpcTransport) -> None:
        self._background = background
        self._connect = connect
        self._addresses: dict[str, str] = {}
        self._transports: dict[str, Transport] = {}
        self._notices: dict[str, _Notices] = {}
        self._sending: set[str] = set()
        self._settled: dict[str, deque[peer.SettledRows]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.notices_sent = 0

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._addresses))

    def set(self, addresses: Mapping[str, str]) -> None:
        """Replace the addresses of the other brokers, by id."""
        for broker, address in list(self._addresses.items()):
            if addresses.get(broker) != address:
                del self._addresses[broker]
                self._notices.pop(broker, None)
                self._settled.pop(broker, None)
                transport = self._transports.pop(broker, None)
                if transport is not None:
                    closing = asyncio.get_running_loop().create_task(transport.close())
                    self._closing.add(closing)
                    closing.add_done_callback(self._closing.discard)
        self._addresses.update(addresses)

    async def close(self) -> None:
        """Close every connection."""
        self._addresses.clear()
        transports, self._transports = list(self._transports.values()), {}
        for transport in transports:
            await transport.close()
        await asyncio.gather(*self._closing)

    async def call(
        self, broker: str, method: str, request: Message, response: type[Response], seconds: float
    ) -> Response:
        """Call another broker; raises a DejaqError."""
        address = self._addresses.get(broker)
        if address is None:
            raise Unavailable(f"broker {broker} is not in the cluster")
        transport = self._transports.get(broker)
        if transport is None:
            transport = self._transports[broker] = self._connect(address)
        return await transport.call(method, request, response, seconds)

    def notify(self, broker: str, topic: int, ts: int, buckets: Iterable[int]) -> None:
        """Notify a broker of new messages; notices that wait to be sent are merged."""
        if broker not in self._addresses:
            return
        waiting = self._notices.setdefault(broker, {}).setdefault(topic, {})
        for bucket in tuple(buckets) or (None,):
            known = waiting.get(bucket)
            waiting[bucket] = ts if known is None else min(known, ts)
        if broker not in self._sending:
            self._sending.add(broker)
            self._background.spawn(self._send(broker), name=f"notify {broker}")

    async def _send(self, broker: str) -> None:
        try:
            while waiting := self._notices.pop(broker, None):
                request = peer.NudgeRequest(nudges=_notices_of(waiting))
                self.notices_sent += len(request.nudges)
                await self.call(broker, "Peer.Nudge", request, peer.NudgeResponse, NOTICE_SECONDS)
        except DejaqError as error:
            # Only a hint is lost: that broker's pumps check by themselves once per second.
            log.debug("broker %s was not notified: %s", broker, error)
        finally:
            self._sending.discard(broker)

    def settled(self, broker: str, rows: peer.SettledRows) -> None:
        """Report settled rows of a broker's consumers to it; rows that wait to be sent share a call."""
        if broker not in self._addresses:
            return
        waiting = self._settled.get(broker)
        if waiting is None:
            # The oldest are dropped first: their leases expire first, and that frees the consumer's credit too.
            waiting = self._settled[broker] = deque(maxlen=SETTLED_MAX)
            self._background.spawn(self._send_settled(broker, waiting), name=f"report settled rows to {broker}")
        waiting.append(rows)

    async def _send_settled(self, broker: str, waiting: deque[peer.SettledRows]) -> None:
        try:
            while waiting and self._settled.get(broker) is waiting and not self._background.closing:
                rows = list(islice(waiting, SETTLED_AT_ONCE))
                try:
                    request = peer.SettledRequest(rows=rows)
                    await self.call(broker, "Peer.Settled", request, peer.SettledResponse, SETTLED_SECONDS)
                except DejaqError as error:
                    log.info("settled rows are sent to broker %s again: %s", broker, error)
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                # Some may have been dropped during the call.
                sent = set(map(id, rows))
                while waiting and id(waiting[0]) in sent:
                    waiting.popleft()
        finally:
            if self._settled.get(broker) is waiting:
                del self._settled[broker]

    async def gather(self, calls: Iterable[Coroutine[None, None, Response]]) -> list[Response | DejaqError]:
        """Every answer, or the error in its place."""
        results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, DejaqError):
                raise result
        return [result for result in results if not isinstance(result, BaseException) or isinstance(result, DejaqError)]


def _notices_of(waiting: _Notices) -> list[peer.Nudge]:
    """One notice for each topic and time, with its buckets."""
    notices: list[peer.Nudge] = []
    for topic, times in waiting.items():
        everywhere = times.pop(None, None)
        if everywhere is not None:
            notices.append(peer.Nudge(topic=topic, ts=everywhere))
        by_ts: dict[int, list[int]] = {}
        for bucket, ts in times.items():
            if bucket is not None:
                by_ts.setdefault(ts, []).append(bucket)
        notices += [peer.Nudge(topic=topic, ts=ts, buckets=buckets) for ts, buckets in by_ts.items()]
    return notices
