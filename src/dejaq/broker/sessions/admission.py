"""What a broker looks at before it asks the storage: the form and size of what a client sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dejaq import limits
from dejaq.domain.batch import too_large
from dejaq.domain.changes import Edits
from dejaq.domain.headers import decode_header_change, decode_headers
from dejaq.domain.ids import valid_id, valid_ids
from dejaq.domain.message import check_headers
from dejaq.domain.topic import TopicSettings
from dejaq.domain.transitions import check_ts
from dejaq.errors import Code, InvalidArgument, error_of
from dejaq.protocol.columns import times_from_proto
from dejaq.protocol.v1 import carrier_pb2 as carrier

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EditColumns:
    """The columns of an edit; an empty one leaves its field."""

    ids: list[str]
    ts: list[int]
    bodies: list[bytes]
    priorities: list[int]
    headers: list[bytes]
    versions: list[int | None]
    large: bool = False

    @classmethod
    def from_proto(cls, proto: carrier.EditBatch, *, now: int) -> EditColumns:
        """The changes that were sent; raises when they are malformed or too many."""
        changes = cls(
            ids=list(proto.ids),
            ts=times_from_proto(proto.ts, relative=proto.relative, now=now),
            bodies=list(proto.bodies),
            priorities=list(proto.priorities),
            headers=list(proto.headers),
            versions=list(proto.versions),
            large=proto.large,
        )
        check_count(len(changes.ids))
        columns = (changes.ts, changes.bodies, changes.priorities, changes.headers)
        if not any(columns):
            raise InvalidArgument("an edit changes nothing: every column is empty")
        if any(len(column) not in (0, len(changes.ids)) for column in (*columns, changes.versions)):
            raise InvalidArgument("the columns of an edit must be empty or as long as its ids")
        size = sum(map(len, changes.bodies)) + sum(map(len, changes.headers))
        if size > limits.BATCH_BYTES_MAX:
            raise error_of(Code.BATCH_TOO_LARGE, f"{size} bytes in one batch; at most {limits.BATCH_BYTES_MAX}")
        return changes

    def refused(self, settings: TopicSettings, now: int) -> dict[int, Code]:
        """The rows that no storage may take."""
        refused = refused_ids(self.ids)
        for row, ts in enumerate(self.ts):
            code = check_ts(ts, now=now, max_future_ms=settings.max_future_ms)
            if code is not Code.OK:
                refused.setdefault(row, code)
        for row, body in enumerate(self.bodies):
            if too_large(body, settings, large=self.large):
                refused.setdefault(row, Code.BODY_TOO_LARGE)
        refuse_headers(self.headers, refused, is_good=_good_header_change)
        return refused

    def edits(self, rows: list[int]) -> Edits:
        """The changes of some rows, as the storage takes them."""
        return Edits(
            ids=_pick(self.ids, rows),
            ts=_pick(self.ts, rows) or None,
            bodies=_pick(self.bodies, rows) or None,
            priorities=_pick(self.priorities, rows) or None,
            headers=_pick(self.headers, rows) or None,
            versions=_pick(self.versions, rows) or None,
            large=self.large,
        )


def _pick(column: Sequence[T], rows: list[int]) -> Sequence[T]:
    return [column[row] for row in rows] if column and len(rows) != len(column) else column


def check_count(count: int) -> None:
    """Raise when a batch names no message or too many."""
    if count == 0:
        raise InvalidArgument("the batch names no message")
    if count > limits.BATCH_COUNT_MAX:
        raise error_of(Code.BATCH_TOO_LARGE, f"{count} items in one batch; at most {limits.BATCH_COUNT_MAX}")


def versions_of(proto: carrier.CancelBatch) -> list[int | None] | None:
    """The versions that messages must have to be cancelled; None where none are asked for."""
    if len(proto.versions) not in (0, len(proto.ids)):
        raise InvalidArgument(f"{len(proto.versions)} versions for {len(proto.ids)} ids")
    return list(proto.versions) or None


def refused_ids(ids: Sequence[str]) -> dict[int, Code]:
    """The rows whose ids have not the form of one."""
    if valid_ids(ids):
        return {}
    return {row: Code.INVALID_ID for row, message_id in enumerate(ids) if not valid_id(message_id)}


def _good_headers(encoded: bytes) -> bool:
    return check_headers(decode_headers(encoded)) is Code.OK


def _good_header_change(encoded: bytes) -> bool:
    return check_headers({key: value or "" for key, value in decode_header_change(encoded).items()}) is Code.OK


def refuse_headers(
    headers: Sequence[bytes], refused: dict[int, Code], *, is_good: Callable[[bytes], bool] = _good_headers
) -> None:
    """Refuse the rows whose headers are too large or no map of strings; each different one is looked at once."""
    bad = {encoded for encoded in set(headers) if encoded and not _fits(encoded, is_good)}
    if bad:
        for row, encoded in enumerate(headers):
            if encoded in bad:
                refused.setdefault(row, Code.INVALID_HEADERS)


def _fits(encoded: bytes, is_good: Callable[[bytes], bool]) -> bool:
    # Tags and lengths add at most a dozen bytes to each entry.
    if len(encoded) > limits.HEADERS_BYTES_MAX + 12 * limits.HEADERS_COUNT_MAX:
        return False
    try:
        return is_good(encoded)
    except ValueError:
        return False


def check_name(name: str, chars_max: int, *, what: str) -> None:
    """Raise INVALID_ARGUMENT for a name that cannot be shown, or is too long."""
    if not 1 <= len(name) <= chars_max or not name.isprintable():
        raise InvalidArgument(f"a {what} is 1 to {chars_max} printable characters, not {name[:80]!r}")
