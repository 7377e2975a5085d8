"""Errors as RFC 9457 problem details, with the stable code of DejaQ."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from starlette.responses import Response

from dejaq.errors import MEANINGS, Code, DejaqError, Indefinite, StoreError, Unavailable

KIND = "application/problem+json"
# The default per class of error is 400; these codes have a status of their own.
STATUSES: dict[Code, int] = {
    Code.BODY_TOO_LARGE: 413,
    Code.BATCH_TOO_LARGE: 413,
    Code.LIMIT_EXCEEDED: 422,
    Code.BODY_UNREADABLE: 422,
    Code.ID_TAKEN: 409,
    Code.LEASED: 409,
    Code.LEASE_LOST: 409,
    Code.NOT_OWNER: 403,
    Code.VERSION_CONFLICT: 412,
    Code.DIFFERENT_STORES: 409,
    Code.NOT_FOUND: 404,
    Code.TOPIC_NOT_FOUND: 404,
    Code.TOPIC_DELETING: 409,
    Code.TOPIC_EXISTS: 409,
    Code.BODY_MISSING: 404,
    Code.OUT_OF_STATE: 409,
    Code.TOO_LATE: 409,
    Code.CLAIM_LOST: 409,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.INTERNAL: 500,
}
RETRY_SECONDS = 1


def status_of_error(error: DejaqError) -> int:
    """The HTTP status of an error."""
    if error.throttled_ms:
        return 429
    if error.code in STATUSES:
        return STATUSES[error.code]
    return 503 if isinstance(error, Unavailable | Indefinite | StoreError) else 400


def problem_of(error: DejaqError) -> dict[str, Any]:
    """The members of a problem."""
    members: dict[str, Any] = {
        "type": f"urn:dejaq:error:{error.code.name}",
        "title": MEANINGS.get(error.code, error.code.name),
        "status": status_of_error(error),
        "detail": error.message + (f" ({error.details})" if error.details else ""),
        "code": error.code.name,
        "retryable": error.retryable,
        "indefinite": error.indefinite,
    }
    if error.throttled_ms:
        members["throttled_ms"] = error.throttled_ms
    if error.failed:
        members["failed"] = {message_id: code.name for message_id, code in error.failed.items()}
    return members


def problem_response(error: DejaqError) -> Response:
    """The response that reports an error; a retryable one says when to try again."""
    members = problem_of(error)
    status = members["status"]
    headers: dict[str, str] = {}
    if status in (429, 503):
        headers["Retry-After"] = str(max(RETRY_SECONDS, math.ceil(error.throttled_ms / 1_000)))
    return Response(msgspec.json.encode(members), status_code=status, media_type=KIND, headers=headers)


def refused(status: int, code: Code, detail: str, **headers: str) -> Response:
    """A problem that the gateway itself finds, with a status of its own."""
    members = {
        "type": f"urn:dejaq:error:{code.name}",
        "title": MEANINGS[code],
        "status": status,
        "detail": detail,
        "code": code.name,
        "retryable": status == 429,
        "indefinite": False,
    }
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(msgspec.json.encode(members), status_code=status, media_type=KIND, headers=named)
