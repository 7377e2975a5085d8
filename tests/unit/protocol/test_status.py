"""Errors keep all their attributes over the network."""

from __future__ import annotations

import grpc
import pytest

from dejaq.errors import Code, DejaqError, Indefinite, Refused, Unavailable, error_of
from dejaq.protocol.grpc_status import ERROR_METADATA, error_from_grpc, grpc_metadata, grpc_status
from dejaq.protocol.status import error_from_proto, error_to_proto
from dejaq.protocol.v1 import errors_pb2


@pytest.mark.parametrize("code", [code for code in Code if not code.succeeded])
def test_every_error_is_received_unchanged(code: Code) -> None:
    error = error_of(code, "what happened", details="to what", throttled_ms=7)
    back = error_from_proto(errors_pb2.Error.FromString(error_to_proto(error).SerializeToString()))
    assert type(back) is type(error)
    assert (back.code, back.message, back.details, back.throttled_ms) == (code, "what happened", "to what", 7)
    assert (back.retryable, back.indefinite, back.should_resync) == (
        error.retryable,
        error.indefinite,
        error.should_resync,
    )


def test_a_temporary_fault_of_the_store_is_received_with_its_code_and_is_retryable() -> None:
    """U12: the code of the store was replaced by UNAVAILABLE."""
    error = error_from_proto(error_to_proto(Unavailable("no space", code=Code.STORE_FAILED)))
    assert (type(error), error.code, error.retryable, error.answered) == (Unavailable, Code.STORE_FAILED, True, True)


@pytest.mark.parametrize("code", list(Code))
def test_the_protocol_has_the_same_codes(code: Code) -> None:
    assert errors_pb2.Code.Name(int(code)) == code.name
    assert len(errors_pb2.Code.keys()) == len(Code)


@pytest.mark.parametrize(
    ("flags", "kind"), [({"indefinite": True}, Indefinite), ({"retryable": True}, Unavailable), ({}, Refused)]
)
def test_an_unknown_code_of_a_newer_broker_is_mapped_by_its_attributes(
    flags: dict[str, bool], kind: type[DejaqError]
) -> None:
    proto = errors_pb2.Error(message="new", **flags)  # type: ignore[arg-type]
    proto.ParseFromString(proto.SerializeToString() + b"\x08\xe7\x07")
    error = error_from_proto(proto)
    assert type(error) is kind
    assert "999" in error.details


@pytest.mark.parametrize("code", [code for code in Code if not code.succeeded])
def test_the_status_carries_the_error(code: Code) -> None:
    error = error_of(code, "message")
    status = grpc_status(error)
    assert status is not grpc.StatusCode.OK
    assert error_from_grpc(status, "text", grpc_metadata(error)).code is code


def test_a_status_without_an_error_is_mapped_by_itself() -> None:
    assert error_from_grpc(grpc.StatusCode.UNAVAILABLE, "gone", None).code is Code.NO_BROKER
    assert error_from_grpc(grpc.StatusCode.DEADLINE_EXCEEDED, "late", ()).indefinite
    assert error_from_grpc(grpc.StatusCode.RESOURCE_EXHAUSTED, "too big", ()).code is Code.LIMIT_EXCEEDED
    assert error_from_grpc(grpc.StatusCode.UNIMPLEMENTED, "new call", ()).code is Code.VERSION_UNSUPPORTED
    garbage = ((ERROR_METADATA, b"\xff\xff\xff"),)
    assert error_from_grpc(grpc.StatusCode.INTERNAL, "odd", garbage).code is Code.INTERNAL
