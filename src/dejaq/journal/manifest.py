"""The signed statements of a journal: the manifest of a segment, the head of the chain, and its current start.

Each is canonical JSON (sorted keys, no spaces) with a signature over the same without it. A manifest holds the hash
of its predecessor's file, so that removing, adding or changing one breaks the chain.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from dejaq.journal.keys import SigningKey, VerifyingKey

FORMAT = 1


class BadStatement(ValueError):
    """A file of the journal is not valid; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """Something signed about one origin's journal."""

    origin: str

    def signed_by(self, key: SigningKey) -> bytes:
        """As it stands in its file."""
        values = {"format": FORMAT, **asdict(self)}
        return _canonical({**values, "signature": key.sign(_canonical(values))}) + b"\n"

    @classmethod
    def read(cls, content: bytes, key: VerifyingKey) -> Self:
        """What a file says; raises BadStatement when it is malformed or not signed by the key."""
        try:
            values = json.loads(content)
            signature = values.pop("signature")
            version = values["format"]
        except (ValueError, TypeError, KeyError, AttributeError):
            raise BadStatement("is not a signed statement of a journal") from None
        if content != _canonical({**values, "signature": signature}) + b"\n":
            raise BadStatement("is not spelled as a journal spells")
        if version != FORMAT:
            raise BadStatement(f"has format {version}; this release reads {FORMAT}")
        if not isinstance(signature, str) or not key.signed(_canonical(values), signature):
            raise BadStatement("has a bad signature")
        del values["format"]
        if {field.name for field in fields(cls)} != values.keys():
            raise BadStatement("has other fields than it should")
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(Statement):
    """Vouches for the segment with the records `first` to `last`."""

    first: int
    last: int
    events: int
    bytes: int
    sha256: str
    # Of the predecessor's manifest file; empty at the beginning of a journal.
    previous_sha256: str
    created_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Head(Statement):
    """The last segment; it shows whether the end of a journal was removed."""

    last: int
    manifest_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention(Statement):
    """The start of the chain after older segments were dropped on purpose."""

    first: int
    # The hash of the manifest before it.
    previous_sha256: str
    dropped_events: int
    dropped_ms: int


def hash_of(content: bytes) -> str:
    """The hash by which a successor names a manifest file."""
    return hashlib.sha256(content).hexdigest()


def _canonical(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode("ascii")
