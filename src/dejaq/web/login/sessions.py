"""The sessions of browsers: an opaque id in a cookie; the credentials stay in the gateway."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from dejaq.sdk.admin.access import Caller

# The prefix makes a browser accept the cookie only for this host, all its paths, and over a safe connection.
COOKIE = "__Host-dejaq"
# A session ends after this time also when its credentials have no end.
LIFE_SECONDS = 12 * 3_600
SESSIONS_MAX = 10_000


@dataclass(slots=True, eq=False)
class WebSession:
    """A caller who signed in with a browser."""

    key: bytes
    credentials: str = field(repr=False)
    caller: Caller
    expires_s: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def accepts(self, token: str) -> bool:
        """Whether a request that changes something shows the token of this session's pages."""
        return hmac.compare_digest(token.encode(), self.csrf.encode())


class WebSessions:
    """The sessions of one gateway, in memory: they end with its process."""

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._sessions: OrderedDict[bytes, WebSession] = OrderedDict()

    def begin(self, credentials: str, caller: Caller) -> tuple[str, WebSession]:
        """A new session and the id for its cookie. It ends when the credentials do."""
        session_id = secrets.token_urlsafe(32)
        now = self._now_s()
        expires_s = min(now + LIFE_SECONDS, caller.expires_ms / 1_000 if caller.expires_ms else now + LIFE_SECONDS)
        session = WebSession(_key(session_id), credentials, caller, expires_s)
        self._sessions[session.key] = session
        while len(self._sessions) > SESSIONS_MAX:
            self.end(next(iter(self._sessions.values())))
        return session_id, session

    def find(self, session_id: str) -> WebSession | None:
        """The session of a cookie, unless it has ended."""
        session = self._sessions.get(_key(session_id))
        if session is not None and (session.ended.is_set() or session.expires_s <= self._now_s()):
            self.end(session)
            return None
        return session

    def end(self, session: WebSession) -> None:
        """Sign the caller out; its open WebSockets are closed."""
        self._sessions.pop(session.key, None)
        session.ended.set()

    def sweep(self) -> None:
        """End the sessions whose time is over."""
        now = self._now_s()
        for session in list(self._sessions.values()):
            if session.expires_s <= now:
                self.end(session)

    def uses(self, credentials: str) -> bool:
        """Whether a session has these credentials."""
        return any(session.credentials == credentials for session in self._sessions.values())

    @property
    def count(self) -> int:
        """How many callers are signed in."""
        return len(self._sessions)


def _key(session_id: str) -> bytes:
    # A lookup by digest takes the same time for a wrong id that begins like a right one.
    return hashlib.sha256(session_id.encode("utf-8", "replace")).digest()
