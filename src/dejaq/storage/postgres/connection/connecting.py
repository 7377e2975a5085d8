"""Connects to the one of several hosts that accepts writes.

The driver asks the hosts of a DSN one after the other, so one silent host uses up the time for all. Here all hosts are
asked at the same time, and the first that accepts writes is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from dejaq.storage.postgres.connection.failures import ErrorKind, kind_of

# When one host has answered that it accepts no writes, silent hosts get this much more time: meanwhile a third host may
# have become the primary.
SILENCE_SECONDS = 0.5


def dsns_of(dsn: str) -> list[str]:
    """One DSN per host of a DSN."""
    parts = urlsplit(dsn)
    user, at, hosts = parts.netloc.rpartition("@")
    return [urlunsplit(parts._replace(netloc=f"{user}{at}{host}")) for host in hosts.split(",")]


async def connect(dsn: str, *, seconds: float, **options: Any) -> asyncpg.Connection:
    """A connection to a host that accepts writes; raises the most informative error when there is none."""
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
    """Close the connections to all hosts except the one that is used."""
    for attempt in tries:
        attempt.cancel()
    for result in await asyncio.gather(*tries, return_exceptions=True):
        if isinstance(result, asyncpg.Connection) and result is not but:
            result.terminate()


def _error_of(attempt: asyncio.Future[asyncpg.Connection]) -> BaseException:
    """Why a host is not used; connections to silent hosts were cancelled."""
    return (None if attempt.cancelled() else attempt.exception()) or TimeoutError()


def _telling(errors: Sequence[BaseException]) -> BaseException:
    """The most informative error: a permanent one, such as a refused login, before a temporary one."""
    return next((error for error in errors if kind_of(error) is ErrorKind.STANDS), errors[0])
