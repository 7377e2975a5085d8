"""What an error of the driver or the server means for a change, and the one sentence that tells of it."""

from __future__ import annotations

from enum import Enum, auto

import asyncpg

from dejaq.errors import Code, DejaqError, Unavailable, error_of
from dejaq.storage.postgres.address import Address

# Whatever the driver raises for a server that refuses, fails or cannot be reached.
DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
    ValueError,
)


class Kind(Enum):
    """What to do about an error."""

    AGAIN = auto()  # The server undid the change; the same again may work at once.
    LOST = auto()  # The connection or the server is gone; another may be there soon.
    STANDS = auto()  # Trying again does not help.


# Class 08, and what a server says that stops, starts, stands by or is full of clients.
_LOST_STATES = frozenset({"57P01", "57P02", "57P03", "25006", "53300", "57P05"})
_AGAIN_STATES = frozenset({"40001", "40P01", "55P03"})


class Overtaken(Exception):
    """Another change came between two statements of this one; made again, it sees what that one did."""


def kind_of(error: BaseException) -> Kind:
    """How an error is to be met."""
    if isinstance(error, Overtaken):
        return Kind.AGAIN
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        if state in _AGAIN_STATES:
            return Kind.AGAIN
        return Kind.LOST if state in _LOST_STATES or state.startswith("08") else Kind.STANDS
    if isinstance(error, asyncpg.InternalClientError | OSError | TimeoutError):
        return Kind.LOST
    # The driver raises these for a connection that closed under it; what is wrong in our use of it fails in tests.
    return Kind.LOST if isinstance(error, asyncpg.InterfaceError) else Kind.STANDS


_SENTENCES: dict[str, str] = {
    "28": "{address} refuses the login; check user and password",
    "3D": "{address} names a database that is not there; create it with createdb",
    "42501": "the user of {address} lacks a right in schema {schema!r}; as its owner or an administrator, GRANT it",
    "53100": "the disk of {address} is full; make room, the broker goes on by itself",
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
    """The bucket is on its way to another shard; nothing was changed."""


# What the server says of a bucket that is frozen.
MOVING_STATE = "DQ001"


def failure_of(error: BaseException, address: Address) -> DejaqError:
    """The error of the contract for one of the driver."""
    if getattr(error, "sqlstate", None) == MOVING_STATE:
        return Moving("the message's bucket is on its way to another shard; try again")
    return error if isinstance(error, DejaqError) else error_of(Code.STORE_FAILED, sentence_of(error, address))
