"""A connection to that one of several hosts which takes writes.

The driver asks the hosts of a DSN one after the other, so one that is silent uses up the time of all. Here all are
asked at the same time, and the first that takes writes is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from dejaq.storage.postgres.failures import Kind, kind_of

# When one host has answered that it takes no writes, a silent one is waited for so much longer: meanwhile a third may
# have been made the one to ask.
SILENCE_SECONDS = 0.5


def dsns_of(dsn: str) -> list[str]:
    """One DSN for each host that a DSN names."""
    parts = urlsplit(dsn)
    user, at, hosts = parts.netloc.rpartition("@")
    return [urlunsplit(parts._replace(netloc=f"{user}{at}{host}")) for host in hosts.split(",")]


async def connect(dsn: str, *, seconds: float, **options: Any) -> asyncpg.Connection:
    """A connection to a host that takes writes; raises the error that says most about why there is none."""
    options |= {"timeout": seconds, "target_session_attrs": "read-write"}
    hosts = dsns_of(dsn)
    if len(hosts) == 1:
        return await asyncpg.connect(dsn, **options)
    tries = [asyncio.ensure_future(asyncpg.connect(host, **options)) for host in hosts]
    chosen: asyncpg.Connection | None = None
    try:
        left = set(tries)
        while left and chosen is None:
            wait_seconds = seconds if len(left) == len(tries) else SILENCE_SECONDS
            done, left = await asyncio.wait(left, timeout=wait_seconds, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            chosen = next((attempt.result() for attempt in done if attempt.exception() is None), None)
    finally:
        await _give_up(tries, but=chosen)
    if chosen is None:
        raise _telling([_error_of(attempt) for attempt in tries])
    return chosen


async def _give_up(tries: Sequence[asyncio.Future[asyncpg.Connection]], *, but: asyncpg.Connection | None) -> None:
    """Let go of every host but the one that is used."""
    for attempt in tries:
        attempt.cancel()
    for result in await asyncio.gather(*tries, return_exceptions=True):
        if isinstance(result, asyncpg.Connection) and result is not but:
            result.terminate()


def _error_of(attempt: asyncio.Future[asyncpg.Connection]) -> BaseException:
    """Why a host is not used; the silent ones were given up."""
    return (None if attempt.cancelled() else attempt.exception()) or TimeoutError()


def _telling(errors: Sequence[BaseException]) -> BaseException:
    """The error that says most: one that stands, such as a refused login, before one that may pass."""
    return next((error for error in errors if kind_of(error) is Kind.STANDS), errors[0])
