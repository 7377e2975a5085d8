"""A worker's function that gets a decoded body and returns the reply."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from dejaq.errors import Code, error_of
from dejaq.sdk.blocking.lease import Lease as BlockingLease
from dejaq.sdk.consuming.lease import Lease
from dejaq.sdk.working.codecs import Codec

# The reasons of dead letters whose body or result the codec refused.
UNDECODABLE, UNENCODABLE = "undecodable", "unencodable"
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class TypedFunction:
    """Calls `function` with the body decoded as its annotation says, and with the lease when it has
    a second argument.
    """

    def __init__(self, function: Callable[..., Any], codec: Codec, rejected: Callable[[str], Exception]) -> None:
        self._function = function
        self._codec = codec
        self._rejected = rejected
        self._kind, self._takes_lease = _argument_of(function)
        try:
            # An error in a type that the codec cannot read is raised now.
            codec.decode(b"", self._kind)
        except TypeError as error:
            raise error_of(Code.INVALID_ARGUMENT, f"{_name(function)}: {error}") from error
        except Exception:  # noqa: BLE001 - an empty body is seldom a value
            return

    async def call(self, lease: Lease) -> None:
        """Call an async function."""
        result = await self._function(*self._arguments(lease))
        reply = self._reply(lease, result)
        if reply is not None:
            await lease.delete(reply=reply)

    def call_blocking(self, lease: BlockingLease) -> None:
        """Call a function that blocks."""
        result = self._function(*self._arguments(lease))
        reply = self._reply(lease, result)
        if reply is not None:
            lease.delete(reply=reply)

    def _arguments(self, lease: Lease | BlockingLease) -> tuple[Any, ...]:
        body = lease.body
        try:
            value = self._codec.decode(body, self._kind)
        except Exception as error:
            raise self._rejected(UNDECODABLE) from error
        return (value, lease) if self._takes_lease else (value,)

    def _reply(self, lease: Lease | BlockingLease, result: object) -> bytes | None:
        """The reply to the producer; None when the producer does not wait, or the function has settled the lease."""
        if lease.settled or not lease.wants_reply:
            return None
        try:
            return self._codec.encode(result)
        except Exception as error:
            raise self._rejected(UNENCODABLE) from error


def _argument_of(function: Callable[..., Any]) -> tuple[Any, bool]:
    """The type of the first argument, and whether the function has a second argument for the lease."""
    try:
        parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    except (NameError, TypeError, ValueError) as error:
        raise error_of(
            Code.INVALID_ARGUMENT, f"the annotations of {_name(function)} cannot be read: {error}"
        ) from error
    needed = [
        one for one in parameters if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if not 1 <= len(needed) <= 2 or any(one.kind not in _POSITIONAL for one in needed):
        raise error_of(
            Code.INVALID_ARGUMENT,
            f"with a codec, {_name(function)} takes the decoded body, and the lease if it needs it",
        )
    if needed[0].annotation is needed[0].empty:
        raise error_of(
            Code.INVALID_ARGUMENT,
            f"annotate {needed[0].name!r} of {_name(function)}: its type says how a body is decoded",
        )
    return needed[0].annotation, len(needed) == 2


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)
