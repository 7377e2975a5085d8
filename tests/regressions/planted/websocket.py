"""Planted bugs of the WebSocket endpoint: each takes one of its protections away."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tests.regressions.bugs import Bug


def _messages_have_no_limit() -> None:
    from dejaq.protocol.websocket import connection

    connection.MESSAGE_BYTES_MAX = 2**62


def _clients_need_no_mask() -> None:
    from dejaq.protocol.websocket.framing import FrameReader

    check = FrameReader._check

    def lenient(self: FrameReader, first: int, second: int, size: int) -> None:
        check(self, first, second | 0x80 if self._masked else second, size)

    FrameReader._check = lenient  # type: ignore[method-assign]


def _silent_connections_are_kept() -> None:
    from dejaq.protocol.websocket import connection

    connection.PINGS = 2**30


def _requests_may_take_forever() -> None:
    from dejaq.broker.websocket.http import HttpConnection

    made = HttpConnection.connection_made

    def connection_made(self: HttpConnection, transport: asyncio.BaseTransport) -> None:
        made(self, transport)
        if self._timer is not None:
            self._timer.cancel()

    HttpConnection.connection_made = connection_made  # type: ignore[method-assign]


def _every_connection_is_read() -> None:
    from dejaq.protocol.websocket import connection

    connection.HELD_BYTES_MAX = 2**62


def _credit_is_not_checked() -> None:
    from dejaq.protocol.websocket.stream import Stream

    arrive = Stream.arrive

    def arrives(self: Stream, payload: bytes) -> None:
        self._theirs = 2**40
        arrive(self, payload)

    Stream.arrive = arrives  # type: ignore[assignment, method-assign]


def _any_host_is_served() -> None:
    from dejaq.broker.websocket.http import Pages

    Pages.refuses_host = lambda _self, _head: False  # type: ignore[method-assign]


def _the_mask_of_a_large_message_does_not_turn() -> None:
    from dejaq.protocol.websocket.framing import FrameReader, unmask

    def unmask_in_place(self: FrameReader, size: int) -> None:
        assert self._large is not None
        end = self._have + size
        self._large[self._have : end] = unmask(self._large[self._have : end], self._key)

    FrameReader._unmask_in_place = unmask_in_place  # type: ignore[method-assign]


def _small_messages_wait() -> None:
    from asyncio import base_events, selector_events

    for module in (base_events, selector_events.base_events):
        module._set_nodelay = lambda _sock: None  # type: ignore[attr-defined]


_FRAMING = "tests/unit/protocol/websocket/test_framing.py"
_HOSTILE = "tests/chaos/test_hostile_websockets.py"
_ENDPOINT = "tests/integration/broker/test_websocket.py"

BUGS: Mapping[str, Bug] = {
    "no-limit": Bug(
        _messages_have_no_limit, f"{_HOSTILE}::test_r14_a_message_beyond_the_limit_ends_only_that_connection"
    ),
    "no-mask": Bug(_clients_need_no_mask, f"{_FRAMING}::test_a_frame_that_breaks_the_rules_is_a_protocol_error"),
    "silent": Bug(
        _silent_connections_are_kept, f"{_HOSTILE}::test_r14_a_client_that_vanished_without_a_word_is_noticed"
    ),
    "slow-request": Bug(
        _requests_may_take_forever, f"{_HOSTILE}::test_r14_a_connection_that_never_finishes_its_request_is_ended"
    ),
    "held": Bug(
        _every_connection_is_read, f"{_HOSTILE}::test_r14_a_connection_with_too_many_unanswered_bytes_is_not_read"
    ),
    "credit": Bug(_credit_is_not_checked, f"{_ENDPOINT}::test_more_than_the_credit_of_a_stream_closes_the_connection"),
    "any-host": Bug(_any_host_is_served, f"{_ENDPOINT}::test_every_other_request_is_refused_with_its_reason"),
    "nagle": Bug(_small_messages_wait, f"{_ENDPOINT}::test_small_messages_are_sent_at_once_at_both_ends"),
    "mask-turn": Bug(
        _the_mask_of_a_large_message_does_not_turn,
        f"{_FRAMING}::test_a_message_of_any_size_arrives_whole_in_any_pieces",
    ),
}
