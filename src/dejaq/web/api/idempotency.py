"""The header `Idempotency-Key`: messages without an id get one that a repeat of the request gets again."""

from __future__ import annotations

import hashlib

from starlette.requests import Request

from dejaq.errors import Code, error_of

KEY_CHARS_MAX = 200


def id_of_key(request: Request, *scope: str) -> str:
    """An id that depends on the key and on what the request is about; empty without a key."""
    key = request.headers.get("idempotency-key", "")
    if len(key) > KEY_CHARS_MAX:
        raise error_of(Code.INVALID_ARGUMENT, f"an Idempotency-Key has at most {KEY_CHARS_MAX} characters")
    return hashlib.sha256("\n".join((*scope, key)).encode()).hexdigest()[:40] if key else ""
