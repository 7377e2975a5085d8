"""The states of a session, and the commands that each accepts."""

from __future__ import annotations

from enum import StrEnum


class SessionState(StrEnum):
    """The state of a session, which decides the commands that it accepts."""

    CONNECTED = "connected"
    IDLE = "idle"
    PRODUCER = "producer"
    CONSUMER = "consumer"
    SUBSCRIBED = "subscribed"
    LOG = "log"


_ANYWHERE = frozenset(SessionState)
_CONSUMING = frozenset({SessionState.CONSUMER, SessionState.SUBSCRIBED})
FITS: dict[str, frozenset[SessionState]] = {
    "ping": _ANYWHERE,
    "renew": _ANYWHERE,
    "hello": frozenset({SessionState.CONNECTED}),
    "producer": frozenset({SessionState.IDLE}),
    "consumer": frozenset({SessionState.IDLE}),
    "create": frozenset({SessionState.PRODUCER}),
    "edit": frozenset({SessionState.PRODUCER}),
    "cancel": frozenset({SessionState.PRODUCER}),
    "subscribe": _CONSUMING,
    "unsubscribe": frozenset({SessionState.SUBSCRIBED}),
    "busy": frozenset({SessionState.SUBSCRIBED}),
    "settle": _CONSUMING,
    "deletes": _CONSUMING,
    "extends": _CONSUMING,
    "recalled": _CONSUMING,
    "progress": _CONSUMING,
    "log": frozenset({SessionState.IDLE, SessionState.LOG}),
}
