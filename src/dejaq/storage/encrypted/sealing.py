"""Batches and edits with sealed bodies in place of those that the caller gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dejaq.domain.batch import CreateBatch
from dejaq.domain.changes import Edits
from dejaq.storage.encrypted.body_cipher import Sealer
from dejaq.storage.encrypted.header_cipher import HeaderSealer
from dejaq.storage.encrypted.large_cipher import LargeCipher


class UnsealedBodies:
    """In the place of a `Sealer` where the store itself seals what it writes."""

    def seal(self, ids: Sequence[str], bodies: Sequence[bytes], *, large: bool) -> Sequence[bytes]:
        """The bodies as they are."""
        return bodies


@dataclass(frozen=True, slots=True)
class Ciphers:
    """What seals the bodies of one topic."""

    bodies: Sealer | UnsealedBodies
    large: LargeCipher
    # None where headers stay readable.
    headers: HeaderSealer | None = None

    def batch(self, batch: CreateBatch) -> CreateBatch:
        """A batch with sealed bodies."""
        ids = () if isinstance(self.bodies, UnsealedBodies) else batch.all_ids()
        bodies = self.bodies.seal(ids, batch.bodies, large=batch.large)
        if batch.large:
            bodies = list(map(self.large.inner_body, bodies))
        return replace(
            batch, bodies=bodies, headers=self._row_headers(batch.headers), check=self.large.check_value(batch.check)
        )

    def _row_headers(self, headers: Sequence[bytes] | None) -> Sequence[bytes] | None:
        if headers is None or self.headers is None:
            return headers
        return list(map(self.headers.row, headers))

    def row(self, batch: CreateBatch, row: int, body: bytes) -> CreateBatch:
        """A batch with one row of another, whose headers are not sealed yet, and with this stored body."""
        made = row_of(batch, row, body)
        return replace(made, headers=self._row_headers(made.headers))

    def edits(self, edits: Edits) -> Edits:
        """Edits with sealed bodies and headers."""
        if edits.headers is not None and self.headers is not None:
            edits = replace(edits, headers=list(map(self.headers.change, edits.headers)))
        if edits.bodies is None:
            return edits
        bodies: list[bytes | None] = [
            body
            if body is None
            else self.large.inner_body(self.bodies.seal([message_id], [body], large=edits.large)[0])
            for message_id, body in zip(edits.ids, edits.bodies, strict=True)
        ]
        return replace(edits, bodies=bodies)


def row_of(batch: CreateBatch, row: int, body: bytes) -> CreateBatch:
    """A batch with one row of another, under the name that the row has there, and with another stored body."""
    assert batch.ids is not None
    return replace(
        batch,
        sequence=batch.sequence + row,
        ids=[batch.ids[row]],
        ts=[batch.ts[row]],
        bodies=[body],
        priorities=None if batch.priorities is None else [batch.priorities[row]],
        headers=None if batch.headers is None else [batch.headers[row]],
        refused={},
        relative_rows=[(0, 1)] if any(start <= row < end for start, end in batch.relative_rows) else (),
        check=0,
    )


def with_bodies(batch: CreateBatch, bodies: Mapping[int, bytes]) -> CreateBatch:
    """A batch with other bodies in some rows."""
    stored: Sequence[bytes] = [bodies.get(row, body) for row, body in enumerate(batch.bodies)]
    return replace(batch, bodies=stored)
