"""Errors over gRPC: a status, and the proto `Error` in trailing metadata."""

from __future__ import annotations

from collections.abc import Iterable

import grpc
from google.protobuf.message import DecodeError

from dejaq.errors import Code, DejaqError, Indefinite, InternalError, NoBroker, error_of
from dejaq.protocol.status import error_from_proto, error_to_proto
from dejaq.protocol.v1 import errors_pb2

ERROR_METADATA = "dejaq-error-bin"

_STATUS: dict[Code, grpc.StatusCode] = {
    Code.BATCH_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Code.BODY_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Code.LIMIT_EXCEEDED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Code.OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Code.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Code.TOPIC_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Code.TOPIC_DELETING: grpc.StatusCode.FAILED_PRECONDITION,
    Code.TOPIC_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    Code.ID_TAKEN: grpc.StatusCode.ALREADY_EXISTS,
    Code.OUT_OF_STATE: grpc.StatusCode.FAILED_PRECONDITION,
    Code.VERSION_UNSUPPORTED: grpc.StatusCode.FAILED_PRECONDITION,
    Code.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Code.PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
    Code.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Code.DRAINING: grpc.StatusCode.UNAVAILABLE,
    Code.NO_BROKER: grpc.StatusCode.UNAVAILABLE,
    Code.STORE_FAILED: grpc.StatusCode.UNAVAILABLE,
    Code.INDEFINITE: grpc.StatusCode.UNKNOWN,
    Code.INTERNAL: grpc.StatusCode.INTERNAL,
}
# What a call ends with when the connection, not the broker, decided; its outcome is then unknown.
_CUT = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})


def grpc_status(error: DejaqError) -> grpc.StatusCode:
    """The gRPC status closest to an error, for clients that know nothing else."""
    if 10 <= error.code <= 19:
        return grpc.StatusCode.INVALID_ARGUMENT
    return _STATUS.get(error.code, grpc.StatusCode.ABORTED)


def grpc_metadata(error: DejaqError) -> tuple[tuple[str, bytes], ...]:
    """The trailing metadata that carries the whole error."""
    return ((ERROR_METADATA, error_to_proto(error).SerializeToString()),)


def error_from_grpc(
    status: grpc.StatusCode, details: str, metadata: Iterable[tuple[str, str | bytes]] | None
) -> DejaqError:
    """The exception for a failed call: the broker's own error where it sent one, else by the status."""
    for key, value in metadata or ():
        if key == ERROR_METADATA and isinstance(value, bytes):
            try:
                return error_from_proto(errors_pb2.Error.FromString(value))
            except DecodeError:
                break
    if status is grpc.StatusCode.UNAVAILABLE:
        return NoBroker(details=details)
    if status in _CUT:
        return Indefinite(f"the call ended without an answer: {status.name.lower()}", details=details)
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return error_of(Code.LIMIT_EXCEEDED, details or "")
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return error_of(Code.VERSION_UNSUPPORTED, f"the broker does not know this call: {details}")
    return InternalError(f"the call failed: {status.name.lower()}", details=details)
