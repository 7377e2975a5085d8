"""The calls and sessions that callers have open, each with its credentials, so that they end when those do."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dejaq.domain.context import CallContext, Principal, PrincipalKind
from dejaq.errors import DejaqError
from dejaq.security.base import Credentials, Identity

SESSION_ID_BYTES = 6
DEVICE_CHARS_MAX = 128


def session_id_of(principal: Principal, device: str) -> str:
    """The same at every broker and after every connection, for a user on a device; empty for unknown callers.

    An API key and a certificate have one session, whatever the client calls its device: its end refuses them by
    themselves. A user's tokens are refused by the logins behind them.
    """
    if not principal.recorded:
        return ""
    if principal.kind in (PrincipalKind.KEY, PrincipalKind.CERTIFICATE):
        device = ""
    return hashlib.sha256(f"{principal.name}\0{device}".encode()).hexdigest()[: 2 * SESSION_ID_BYTES]


@dataclass(slots=True, eq=False)
class OpenStream:
    """One call or session of a caller."""

    context: CallContext
    credentials: Credentials
    identity: Identity
    since_us: int
    # Whether it is a session, which counts towards the limit of its user.
    is_session: bool
    task: asyncio.Task[object] | None = field(default=None, repr=False)
    # Why it was ended; None while it is served.
    error: DejaqError | None = None
    _end: Callable[[DejaqError], None] | None = None

    @property
    def device(self) -> str:
        """The client's own name of its device."""
        return self.credentials.device

    def end_by(self, end: Callable[[DejaqError], None]) -> None:
        """End it with this call instead of a cancellation, so that the client gets the reason in order."""
        self._end = end
        if self.error is not None:
            end(self.error)

    def end(self, error: DejaqError) -> None:
        """End it; a second call does nothing."""
        if self.error is not None:
            return
        self.error = error
        if self._end is not None:
            self._end(error)
        elif self.task is not None:
            self.task.cancel()


class OpenStreams:
    """Every open stream, by the id of its request."""

    def __init__(self) -> None:
        self._streams: dict[str, OpenStream] = {}
        # Those of authenticated callers.
        self._named: dict[str, OpenStream] = {}
        self._sessions: Counter[str] = Counter()

    def __iter__(self) -> Iterator[OpenStream]:
        return iter(list(self._streams.values()))

    def __len__(self) -> int:
        return len(self._streams)

    def sessions_of(self, principal: Principal) -> int:
        """The number of sessions that a principal has open."""
        return self._sessions[principal.name]

    @property
    def session_count(self) -> int:
        """The number of sessions of authenticated callers."""
        return sum(self._sessions.values())

    @property
    def named(self) -> list[OpenStream]:
        """The streams of authenticated callers."""
        return list(self._named.values())

    def get(self, request_id: str) -> OpenStream | None:
        """The stream of a request."""
        return self._streams.get(request_id)

    def add(self, stream: OpenStream) -> None:
        """Keep a stream until `remove`."""
        self._streams[stream.context.request_id] = stream
        if stream.context.principal.recorded:
            self._named[stream.context.request_id] = stream
            if stream.is_session:
                self._sessions[stream.context.principal.name] += 1

    def remove(self, stream: OpenStream) -> None:
        """Forget a stream."""
        del self._streams[stream.context.request_id]
        name = stream.context.principal.name
        if self._named.pop(stream.context.request_id, None) is not None and stream.is_session:
            self._sessions[name] -= 1
            if not self._sessions[name]:
                del self._sessions[name]
