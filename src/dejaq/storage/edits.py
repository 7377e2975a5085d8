"""New values for messages, as an owner asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edits:
    """New values for messages of one owner, as columns; a None column, or a None in it, leaves that field.

    `versions` makes a row conditional: VERSION_CONFLICT unless the message still has that version.
    """

    ids: Sequence[str]
    ts: Sequence[int | None] | None = None
    bodies: Sequence[bytes | None] | None = None
    priorities: Sequence[int | None] | None = None
    headers: Sequence[bytes | None] | None = None
    versions: Sequence[int | None] | None = None
    # Whether some bodies refer to large ones.
    large: bool = False
