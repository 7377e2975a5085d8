"""The meaning of an error of the driver or the server for a change, and the sentence that reports it."""

from __future__ import annotations

from enum import Enum, auto

import asyncpg

from dejaq.errors import Code, DejaqError, Unavailable, error_of
from dejaq.storage.postgres.connection.address import Address

# Every error that the driver raises for a server that refuses, fails or cannot be reached.
DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
    ValueError,
)


class ErrorKind(Enum):
    """How to react to an error."""

    AGAIN = auto()  # The server undid the change; the same again may work at once.
    LOST = auto()  # The connection or the server is gone; another may be there soon.
    STANDS = auto()  # Trying again does not help.


# Class 08, and the states of a server that stops, starts, is a standby or has too many clients.
_LOST_STATES = frozenset({"57P01", "57P02", "57P03", "25006", "25P03", "53300", "57P05"})
_AGAIN_STATES = frozenset({"40001", "40P01", "55P03"})


class Overtaken(Exception):
    """Another change was committed between two statements of this one; a repeat sees its result."""


def kind_of(error: BaseException) -> ErrorKind:
    """How to react to this error."""
    if isinstance(error, Overtaken):
        return ErrorKind.AGAIN
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        if state in _AGAIN_STATES:
            return ErrorKind.AGAIN
        return ErrorKind.LOST if state in _LOST_STATES or state.startswith("08") else ErrorKind.STANDS
    if isinstance(error, asyncpg.InternalClientError | OSError | TimeoutError):
        return ErrorKind.LOST
    # The driver raises these for a connection that was closed during use; errors in our use of it fail in tests.
    return ErrorKind.LOST if isinstance(error, asyncpg.InterfaceError) else ErrorKind.STANDS


_SENTENCES: dict[str, str] = {
    "XX001": "{address} found damaged data; repair the database or restore it from a backup",
    "XX002": "{address} found a damaged index; run REINDEX, and look for the cause",
    "28": "{address} refuses the login; check user and password",
    "3D": "{address} names a database that is not there; create it with createdb",
    "42501": "the user of {address} lacks a right in schema {schema!r}; as its owner or an administrator, GRANT it",
    "53100": "the disk of {address} is full; free some space; the broker then continues by itself",
    "53300": "{address} takes no more connections; raise its max_connections or lower postgres_connections",
    "25006": "{address} is a read-only standby; name the primary, or all hosts of the cluster",
    "3F": "schema {schema!r} of {address} is not there; run: dejaq storage migrate",
    "42P01": "schema {schema!r} of {address} lacks a table; run: dejaq storage migrate",
}


def sentence_of(error: BaseException, address: Address) -> str:
    """One sentence for people, without any secret."""
    if isinstance(error, DejaqError):
        return str(error)
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return _SENTENCES["25006"].format(address=address, schema=address.schema)
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        for begin, sentence in _SENTENCES.items():
            if state.startswith(begin):
                return sentence.format(address=address, schema=address.schema)
        return f"{address} answered with an error: {error.args[0] if error.args else state}"
    if isinstance(error, asyncpg.InterfaceError | ValueError | OSError | TimeoutError):
        reason = getattr(error, "strerror", None) or type(error).__name__
        return f"{address} cannot be reached: {reason}"
    return f"{address} failed: {type(error).__name__}"


class Moving(Unavailable):
    """The bucket is being moved to another shard; nothing was changed."""


# The server's message for a frozen bucket.
MOVING_STATE = "DQ001"


def failure_of(error: BaseException, address: Address) -> DejaqError:
    """The error of the storage contract for an error of the driver."""
    if getattr(error, "sqlstate", None) == MOVING_STATE:
        return Moving("the message's bucket is being moved to another shard; try again")
    if isinstance(error, DejaqError):
        return error
    code = Code.STORE_CORRUPT if tells_of_damage(error) else Code.STORE_FAILED
    return error_of(code, sentence_of(error, address))


def tells_of_damage(error: BaseException) -> bool:
    """Whether the server reports that the stored data is damaged."""
    return getattr(error, "sqlstate", None) in ("XX001", "XX002")
