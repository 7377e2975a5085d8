"""API keys: `dq_<id>_<secret>`, of which only the SHA-256 is stored.

The secret has 256 random bits, so a fast digest is enough: there is nothing to guess, and a slow one would let callers
with wrong keys use up the broker's processor.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass

from dejaq.domain.context import Principal, PrincipalKind

PREFIX = "dq_"
ID_BYTES = 6
SECRET_BYTES = 32
_FORM = re.compile(r"dq_([0-9a-f]{12})_([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is stored of a key. `digest` is the SHA-256 of the whole key in hexadecimal."""

    id: str
    digest: str
    # The user for whom it acts, and the groups that its principal has.
    user: str = ""
    groups: tuple[str, ...] = ()
    # What people call it, who made it and when.
    label: str = ""
    made_by: str = ""
    made_ms: int = 0
    # When it ends; 0 for a key without an end.
    expires_ms: int = 0

    @property
    def principal(self) -> Principal:
        """The identity of a caller with this key."""
        return Principal(name=f"key:{self.id}", kind=PrincipalKind.KEY, user=self.user, groups=frozenset(self.groups))

    def matches(self, secret: str) -> bool:
        """Whether `secret` is this key; the time does not depend on how much of it is right."""
        return hmac.compare_digest(self.digest, digest_of(secret))

    def packed(self) -> bytes:
        """The record of the key."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def unpack(cls, record: bytes) -> ApiKey:
        """The key that `packed` wrote; raises ValueError for anything else."""
        try:
            values = json.loads(record)
            return cls(
                id=str(values["id"]),
                digest=str(values["digest"]),
                user=str(values["user"]),
                groups=tuple(map(str, values["groups"])),
                label=str(values["label"]),
                made_by=str(values["made_by"]),
                made_ms=int(values["made_ms"]),
                expires_ms=int(values["expires_ms"]),
            )
        except (KeyError, TypeError, AttributeError) as wrong:
            raise ValueError(f"not a key: {wrong!r}") from None


def new_secret(random_bytes: Callable[[int], bytes]) -> tuple[str, str]:
    """The id and the whole text of a new key."""
    key_id = random_bytes(ID_BYTES).hex()
    return key_id, f"{PREFIX}{key_id}_{random_bytes(SECRET_BYTES).hex()}"


def id_in(text: str) -> str | None:
    """The id in a key; None for what is not a key."""
    found = _FORM.fullmatch(text)
    return found[1] if found is not None else None


def digest_of(text: str) -> str:
    """What is stored of a key."""
    return hashlib.sha256(text.encode()).hexdigest()
