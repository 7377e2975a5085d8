"""The ways from this broker to the others of its cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping

from google.protobuf.message import Message

from dejaq.broker.background import Background
from dejaq.errors import DejaqError, Unavailable
from dejaq.protocol.channel import GrpcTransport
from dejaq.protocol.transport import Response, Transport
from dejaq.protocol.v1 import peer_pb2 as peer

log = logging.getLogger(__name__)

NUDGE_SECONDS = 1.0
Connect = Callable[[str], Transport]
# topic number -> bucket -> the earliest time; no bucket stands for all.
_Nudges = dict[int, dict[int | None, int]]


class Peers:
    """A transport to each other broker, and the nudges that wait to be sent to it."""

    def __init__(self, *, background: Background, connect: Connect = GrpcTransport) -> None:
        self._background = background
        self._connect = connect
        self._addresses: dict[str, str] = {}
        self._transports: dict[str, Transport] = {}
        self._nudges: dict[str, _Nudges] = {}
        self._sending: set[str] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self.nudges_sent = 0

    def __iter__(self) -> Iterable[str]:
        return iter(sorted(self._addresses))

    def set(self, addresses: Mapping[str, str]) -> None:
        """These are the others now, by their ids."""
        for broker, address in list(self._addresses.items()):
            if addresses.get(broker) != address:
                del self._addresses[broker]
                self._nudges.pop(broker, None)
                transport = self._transports.pop(broker, None)
                if transport is not None:
                    closing = asyncio.get_running_loop().create_task(transport.close())
                    self._closing.add(closing)
                    closing.add_done_callback(self._closing.discard)
        self._addresses.update(addresses)

    async def close(self) -> None:
        """Let go of every connection."""
        self._addresses.clear()
        transports, self._transports = list(self._transports.values()), {}
        for transport in transports:
            await transport.close()
        await asyncio.gather(*self._closing)

    async def call(
        self, broker: str, method: str, request: Message, response: type[Response], seconds: float
    ) -> Response:
        """Ask another broker; raises a DejaqError."""
        address = self._addresses.get(broker)
        if address is None:
            raise Unavailable(f"broker {broker} is not in the cluster")
        transport = self._transports.get(broker)
        if transport is None:
            transport = self._transports[broker] = self._connect(address)
        return await transport.call(method, request, response, seconds)

    def nudge(self, broker: str, topic: int, ts: int, buckets: Iterable[int]) -> None:
        """Tell a broker that something is now on a timeline; nudges that wait for the wire are merged."""
        if broker not in self._addresses:
            return
        waiting = self._nudges.setdefault(broker, {}).setdefault(topic, {})
        for bucket in tuple(buckets) or (None,):
            known = waiting.get(bucket)
            waiting[bucket] = ts if known is None else min(known, ts)
        if broker not in self._sending:
            self._sending.add(broker)
            self._background.spawn(self._send(broker), name=f"nudge {broker}")

    async def _send(self, broker: str) -> None:
        try:
            while waiting := self._nudges.pop(broker, None):
                request = peer.NudgeRequest(nudges=_nudges_of(waiting))
                self.nudges_sent += len(request.nudges)
                await self.call(broker, "Peer.Nudge", request, peer.NudgeResponse, NUDGE_SECONDS)
        except DejaqError as error:
            # Only a hint is lost: the broker looks around by itself.
            log.debug("broker %s was not nudged: %s", broker, error)
        finally:
            self._sending.discard(broker)

    async def gather(self, calls: Iterable[Coroutine[None, None, Response]]) -> list[Response | DejaqError]:
        """Every answer, or the error in its place."""
        results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, DejaqError):
                raise result
        return [result for result in results if not isinstance(result, BaseException) or isinstance(result, DejaqError)]


def _nudges_of(waiting: _Nudges) -> list[peer.Nudge]:
    """One nudge for each topic and time, with its buckets."""
    nudges: list[peer.Nudge] = []
    for topic, times in waiting.items():
        everywhere = times.pop(None, None)
        if everywhere is not None:
            nudges.append(peer.Nudge(topic=topic, ts=everywhere))
        by_ts: dict[int, list[int]] = {}
        for bucket, ts in times.items():
            if bucket is not None:
                by_ts.setdefault(ts, []).append(bucket)
        nudges += [peer.Nudge(topic=topic, ts=ts, buckets=buckets) for ts, buckets in by_ts.items()]
    return nudges
