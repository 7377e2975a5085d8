"""Batches and edits with sealed bodies in place of those that the caller gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dejaq.domain.batch import CreateBatch
from dejaq.domain.changes import Edits
from dejaq.storage.encrypted.body_cipher import Sealer
from dejaq.storage.encrypted.large_cipher import LargeCipher


@dataclass(frozen=True, slots=True)
class Ciphers:
    """What seals the bodies of one topic."""

    bodies: Sealer
    large: LargeCipher

    def batch(self, batch: CreateBatch) -> CreateBatch:
        """A batch with sealed bodies."""
        bodies = self.bodies.seal(batch.all_ids(), batch.bodies, large=batch.large)
        if batch.large:
            bodies = list(map(self.large.inner_body, bodies))
        return replace(batch, bodies=bodies, check=self.large.check_value(batch.check))

    def edits(self, edits: Edits) -> Edits:
        """Edits with sealed bodies."""
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
