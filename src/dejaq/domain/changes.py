"""Every change to messages as a value: the arguments of `Storage.apply`, and the steps of a transaction.

A change names its topic and its rows as columns. Changes by an owner name ids; changes by a consumer name rows of one
lease (None: all of them). Which of them is allowed is decided by `domain.transitions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dejaq.domain.batch import ChangeName, CreateBatch, RowRange
from dejaq.domain.dead_letter import Cause
from dejaq.domain.topic import Topic


@dataclass(frozen=True, slots=True)
class Edits:
    """New values for messages of one owner, as columns; a None column, or a None in it, leaves that field.

    Headers are given as a change (`headers.encode_header_change`) that is merged with those of the message.
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


@dataclass(frozen=True, slots=True)
class Create:
    """Create the admitted rows of a batch: OK, ALREADY_EXISTS, ID_TAKEN, or the code in `batch.refused`.

    ALREADY_EXISTS is the answer for the same id with the same content and for a repeat of the batch. The time of a row
    in `batch.relative_rows` is not compared. In a topic with
    `dedup_ms` it is also the answer for a natural id without a message that was created within that time, and
    LIMIT_EXCEEDED for each row with a new one beyond `max_dedup_ids`.
    """

    topic: Topic
    batch: CreateBatch


@dataclass(frozen=True, slots=True)
class Edit:
    """Change time, body, priority or headers: OK, NOT_FOUND, NOT_OWNER, LEASED or VERSION_CONFLICT.

    INVALID_HEADERS when the message would have too many headers, BODY_MISSING when a large body is not found.

    The rows are changed in order, so an id that occurs twice is changed twice. A changed message gets a new version and
    keeps its attempts; an expired lease of the message ends.
    """

    topic: Topic
    owner: str
    edits: Edits


@dataclass(frozen=True, slots=True)
class Cancel:
    """Remove messages of one owner: OK, NOT_FOUND, NOT_OWNER, LEASED, or VERSION_CONFLICT when `versions` differ.

    The cancelled ids are recorded under `name` in the same commit: a repeat under that name is OK for them.
    """

    topic: Topic
    owner: str
    ids: Sequence[str]
    versions: Sequence[int | None] | None = None
    name: ChangeName | None = None


@dataclass(frozen=True, slots=True)
class Redrive:
    """Move messages that no consumer holds to `target`: OK, NOT_FOUND, LEASED, or ID_TAKEN there.

    Each message gets the id, headers and owner it had before it became a dead letter, is due now and has no attempts.
    The journal records a cancel in `topic` and a create in `target`.
    """

    topic: Topic
    target: Topic
    ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove rows of a live lease: OK or LEASE_LOST by row number.

    `handed_us` is when user code received them, for the journal: no time, one for all, or one for each row.
    """

    topic: Topic
    lease_id: int
    consumer: str
    rows: Sequence[RowRange] | None
    handed_us: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Extend:
    """Move the end of a live lease to `expires`: OK or LEASE_LOST by row number. The lease id stays the same.

    A lease is never shortened: it must always end after the time at which its message is due.
    """

    topic: Topic
    lease_id: int
    consumer: str
    rows: Sequence[RowRange] | None
    expires: int


@dataclass(frozen=True, slots=True)
class Release:
    """End a live lease and put the rows at `ts` (one time, or one for each row): OK or LEASE_LOST by row number."""

    topic: Topic
    lease_id: int
    consumer: str
    rows: Sequence[RowRange] | None
    ts: int | Sequence[int]
    handed_us: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Recall:
    """Undo a live lease that user code never saw, with its time and attempts as before: OK or LEASE_LOST.

    With `expires`, rows whose lease has another end stay leased: the consumer has them in a later session, which may be
    at another broker and has extended the lease.
    """

    topic: Topic
    lease_id: int
    consumer: str
    rows: Sequence[RowRange] | None
    expires: int | None = None


@dataclass(frozen=True, slots=True)
class Reject:
    """Move rows of a live lease to the dead-letter topic, with its cause: OK or LEASE_LOST by row number."""

    topic: Topic
    lease_id: int
    consumer: str
    rows: Sequence[RowRange] | None
    dead_letter: Topic
    cause: Cause
    handed_us: Sequence[int] = ()


ByConsumer = Delete | Extend | Release | Recall | Reject
ByOwner = Edit | Cancel
Change = Create | ByOwner | Redrive | ByConsumer
