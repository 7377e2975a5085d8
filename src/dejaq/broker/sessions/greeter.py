"""The client sessions of this broker: accepts them within the limits, lists them, and ends them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator

from dejaq.broker.access.open_streams import OpenStreams
from dejaq.broker.sessions.session import Frames, Send, Session
from dejaq.broker.sessions.state import SessionState
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import Code, DejaqError, error_of
from dejaq.protocol.status import error_to_proto
from dejaq.protocol.v1 import carrier_pb2 as carrier

log = logging.getLogger(__name__)
# How long the deletion of a topic waits for the requests of the sessions on it. A storage that fails over takes some
# seconds to answer.
EVACUATE_SECONDS = 15.0

# After so many sessions the event loop does other work.
SESSIONS_PER_STEP = 50

# (topic number, state) -> sessions
Census = Counter[tuple[int, SessionState]]


class Greeter:
    """Every session that is open, by its number."""

    def __init__(
        self,
        *,
        make_session: Callable[[int, CallContext], Session],
        sessions_max: int,
        connections_max: int,
        streams: OpenStreams,
    ) -> None:
        self._make_session = make_session
        self._streams = streams
        self._sessions_max = sessions_max
        self._connections_max = connections_max
        self._sessions: dict[int, Session] = {}
        # When to stop waiting for sessions that were ended because of their topic.
        self._deadlines: dict[int, float] = {}
        self._peers: Counter[str] = Counter()
        self._last = 0
        self._closed: DejaqError | None = None
        self._changed = asyncio.Event()

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def __len__(self) -> int:
        return len(self._sessions)

    async def serve(self, context: CallContext, frames: Frames, send: Send) -> None:
        """Run one client's session to its end; beyond a limit the client gets an error at once."""
        peer = context.peer
        refusal = self._refusal(peer)
        if refusal is not None:
            await send(carrier.BrokerFrame(error=error_to_proto(refusal)))
            return
        self._last += 1
        session = self._sessions[self._last] = self._make_session(self._last, context)
        self._peers[peer] += 1
        stream = self._streams.get(context.request_id)
        if stream is not None:
            stream.end_by(session.end)
        try:
            await session.serve(frames, send)
        finally:
            del self._sessions[session.number]
            self._deadlines.pop(session.number, None)
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
        """Refuse new sessions from now on."""
        self._closed = error

    def states(self) -> dict[SessionState, int]:
        """How many sessions are in each state."""
        counts = Counter(session.state for session in self)
        return {state: counts[state] for state in SessionState}

    def census(self) -> Census:
        """How many sessions work on each topic in each state."""
        return Counter((session.topic.number, session.state) for session in self if session.topic is not None)

    def end_all(self, error: DejaqError) -> None:
        """End every session."""
        for session in self:
            session.end(error)

    async def check_rights(self) -> None:
        """End the sessions whose callers have lost the right to them: the rules have changed."""
        for number, session in enumerate(self, 1):
            refusal = session.rights.lost()
            if refusal is not None:
                session.end(refusal)
            if number % SESSIONS_PER_STEP == 0:
                await asyncio.sleep(0)

    async def evacuate(self, topic: Topic, error: DejaqError) -> None:
        """End the sessions on a topic and wait until their requests are finished, but no longer than EVACUATE_SECONDS.

        The time of a session counts from the first call, so that calling again does not wait for it again. A request
        that is still running afterwards meets a topic that is gone, and the storage refuses it.
        """
        leaving = [session for session in self if session.works_on(topic)]
        now = asyncio.get_running_loop().time()
        deadlines = [self._deadlines.setdefault(session.number, now + EVACUATE_SECONDS) for session in leaving]
        for session in leaving:
            session.end(error)
        late = [one for one, end in zip(leaving, deadlines, strict=True) if not await _finished(one, end)]
        if late:
            log.warning(
                "%d sessions on topic %s had unfinished requests %g s after their end; the first is that of %s",
                len(late),
                topic.name,
                EVACUATE_SECONDS,
                late[0].peer,
            )

    async def empty(self) -> None:
        """Wait until no session is left."""
        while self._sessions:
            self._changed.clear()
            await self._changed.wait()


async def _finished(session: Session, deadline: float) -> bool:
    """Wait for the requests of a session that was ended; whether they were finished in time."""
    try:
        async with asyncio.timeout_at(deadline):
            await session.finished()
    except TimeoutError:
        return False
    return True
