"""The client sessions of this broker: lets them in within the limits, knows them all, and ends them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator

from dejaq.broker.carrier.session import Frames, Send, Session, SessionState
from dejaq.domain.topic import Topic
from dejaq.errors import Code, DejaqError, error_of
from dejaq.protocol.status import error_to_proto
from dejaq.protocol.v1 import carrier_pb2 as carrier

# (topic number, state) -> sessions
Census = Counter[tuple[int, SessionState]]


class Greeter:
    """Every session that is open, by its number."""

    def __init__(self, *, make_session: Callable[[int, str], Session], sessions_max: int, connections_max: int) -> None:
        self._make_session = make_session
        self._sessions_max = sessions_max
        self._connections_max = connections_max
        self._sessions: dict[int, Session] = {}
        self._peers: Counter[str] = Counter()
        self._last = 0
        self._closed: DejaqError | None = None
        self._changed = asyncio.Event()

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def __len__(self) -> int:
        return len(self._sessions)

    async def serve(self, frames: Frames, send: Send, peer: str) -> None:
        """Run one client's session to its end; beyond a limit the client is told so at once."""
        refusal = self._refusal(peer)
        if refusal is not None:
            await send(carrier.BrokerFrame(error=error_to_proto(refusal)))
            return
        self._last += 1
        session = self._sessions[self._last] = self._make_session(self._last, peer)
        self._peers[peer] += 1
        try:
            await session.serve(frames, send)
        finally:
            del self._sessions[session.number]
            self._peers[peer] -= 1
            if not self._peers[peer]:
                del self._peers[peer]
            self._changed.set()

    def _refusal(self, peer: str) -> DejaqError | None:
        if self._closed is not None:
            return self._closed
        if len(self._sessions) >= self._sessions_max:
            return error_of(Code.LIMIT_EXCEEDED, f"{self._sessions_max} sessions are open, the most this broker keeps")
        if peer not in self._peers and len(self._peers) >= self._connections_max:
            return error_of(
                Code.LIMIT_EXCEEDED,
                f"{self._connections_max} clients are connected, the most this broker keeps",
            )
        return None

    def close(self, error: DejaqError) -> None:
        """Let nobody in any more."""
        self._closed = error

    def states(self) -> dict[SessionState, int]:
        """How many sessions are in each state."""
        counts = Counter(session.state for session in self)
        return {state: counts[state] for state in SessionState}

    def census(self) -> Census:
        """How many sessions work on each topic in each state."""
        return Counter((session.topic.number, session.state) for session in self if session.topic is not None)

    def producers(self) -> dict[int, list[str]]:
        """The producer groups that are connected, by the number of their topic."""
        groups: dict[int, list[str]] = {}
        for session in self:
            if session.producer is not None:
                groups.setdefault(session.producer.topic.number, []).append(session.producer.group)
        return groups

    def end_all(self, error: DejaqError) -> None:
        """End every session."""
        for session in self:
            session.end(error)

    async def evacuate(self, topic: Topic, error: DejaqError) -> None:
        """End the sessions on a topic and wait until nothing of theirs is under way."""
        leaving = [session for session in self if session.works_on(topic)]
        for session in leaving:
            session.end(error)
        for session in leaving:
            await session.finished()

    async def empty(self) -> None:
        """Wait until no session is left."""
        while self._sessions:
            self._changed.clear()
            await self._changed.wait()
