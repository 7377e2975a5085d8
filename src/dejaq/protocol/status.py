"""Errors to and from the wire: the proto `Error`."""

from __future__ import annotations

from dejaq.errors import Code, DejaqError, Indefinite, Refused, Unavailable, error_class
from dejaq.protocol.v1 import errors_pb2


def error_to_proto(error: DejaqError) -> errors_pb2.Error:
    """The wire form of an error."""
    return errors_pb2.Error(
        code=int(error.code),  # type: ignore[arg-type]
        message=error.message,
        details=error.details,
        retryable=error.retryable,
        indefinite=error.indefinite,
        throttled_ms=max(0, error.throttled_ms),
        should_resync=error.should_resync,
    )


def error_from_proto(proto: errors_pb2.Error) -> DejaqError:
    """The exception that the wire form stands for; a code of a newer broker is taken by its attributes."""
    try:
        code = Code(proto.code)
    except ValueError:
        return _unknown(proto)
    kind = error_class(code)
    if proto.retryable and not kind.retryable:
        # A broker that runs may get over a fault of its store.
        kind = Unavailable
    error = kind(proto.message, code=code, details=proto.details, throttled_ms=proto.throttled_ms)
    error.should_resync = proto.should_resync
    error.answered = True
    return error


def _unknown(proto: errors_pb2.Error) -> DejaqError:
    kind: type[DejaqError] = Refused
    if proto.indefinite:
        kind = Indefinite
    elif proto.retryable:
        kind = Unavailable
    details = f"code {proto.code}" + (f", {proto.details}" if proto.details else "")
    error = kind(proto.message, details=details, throttled_ms=proto.throttled_ms)
    error.answered = True
    return error
