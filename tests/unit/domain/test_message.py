from typing import Any

import pytest

from dejaq import limits
from dejaq.domain.message import Message, Status, check_headers, status_of
from dejaq.errors import Code


@pytest.mark.parametrize(
    ("ts", "lock", "status"),
    [
        (99, "", Status.AVAILABLE),
        (100, "", Status.AVAILABLE),
        (101, "", Status.WAITING),
        (99, "worker", Status.AVAILABLE),
        (100, "worker", Status.AVAILABLE),
        (101, "worker", Status.PROCESSING),
    ],
)
def test_the_status_is_derived_in_order(ts: int, lock: str, status: Status) -> None:
    assert status_of(ts, lock, 100) is status
    message = Message("m", "t", 0, ts, 0, b"", "o", lock, 1, 0)
    assert message.status(100) is status


def test_headers_up_to_their_count() -> None:
    headers = {f"k{number}": "" for number in range(limits.HEADERS_COUNT_MAX)}
    assert check_headers(headers) is Code.OK
    assert check_headers(headers | {"more": ""}) is Code.INVALID_HEADERS


def test_headers_up_to_their_bytes() -> None:
    room = limits.HEADERS_BYTES_MAX - 1
    assert check_headers({"k": "v" * room}) is Code.OK
    assert check_headers({"k": "v" * (room + 1)}) is Code.INVALID_HEADERS
    assert check_headers({"k": "ü" * (room // 2 + 1)}) is Code.INVALID_HEADERS


@pytest.mark.parametrize("headers", [{"": "v"}, {1: "v"}, {"k": 1}, {"k": None}, {"k": b"v"}])
def test_headers_are_named_strings(headers: dict[Any, Any]) -> None:
    assert check_headers(headers) is Code.INVALID_HEADERS


def test_no_headers_are_valid() -> None:
    assert check_headers({}) is Code.OK
