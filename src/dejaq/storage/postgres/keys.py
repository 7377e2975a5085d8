"""Message ids as keys: a generated id ends in a mark that no natural id has.

So a generated id sorts right after a natural id with the same text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from dejaq.domain.batch import CreateBatch, IdSpan, RowRange
from dejaq.domain.ids import generated_ids, parse_generated

MARK = "!"
_GONE = "*"
_PREFIX_CHARS, _ID_CHARS = 24, 32


def keys_of(batch: CreateBatch) -> list[str]:
    """The key of every row."""
    if batch.ids is not None:
        return list(batch.ids)
    ids = generated_ids(batch.session.prefix(batch.bucket), batch.sequence, len(batch))
    return [message_id + MARK for message_id in ids]


def id_of(key: str) -> str:
    """The id of a key."""
    return key[:-1] if key[-1] == MARK else key


def candidates(ids: Iterable[str]) -> list[str]:
    """Every key that one of the ids may have."""
    found: list[str] = []
    for message_id in ids:
        # The server accepts no zero byte, and no id has one.
        if "\x00" in message_id:
            continue
        found.append(message_id)
        if looks_generated(message_id):
            found.append(message_id + MARK)
    return found


def looks_generated(message_id: str) -> bool:
    """Whether an id has the form of a generated one."""
    return len(message_id) == _ID_CHARS and parse_generated(message_id) is not None


def spans_of(keys: Sequence[str]) -> list[IdSpan]:
    """The ids of the keys, consecutive counters as ranges."""
    if _ascend(keys):
        return _runs(keys)
    spans: list[IdSpan] = []
    prefix, following = "", -1
    listed: list[str] | None = None
    for key in keys:
        if not key.endswith(MARK):
            if listed is None:
                listed = []
                spans.append(IdSpan(0, ids=listed))
            listed.append(key)
            spans[-1].count += 1
            following = -1
            continue
        listed = None
        counter = _counter(key)
        if counter != following or key[:_PREFIX_CHARS] != prefix:
            prefix = key[:_PREFIX_CHARS]
            spans.append(IdSpan(0, prefix=prefix, first=counter))
        spans[-1].count += 1
        following = counter + 1
    return spans


def _counter(key: str) -> int:
    return int(key[_PREFIX_CHARS:_ID_CHARS], 16)


def _ascend(keys: Sequence[str]) -> bool:
    """Whether all are generated, each after the previous one: checked in a few passes without Python code per key."""
    return "".join(keys).count(MARK) == len(keys) == len(set(keys)) and list(keys) == sorted(keys)


def _runs(keys: Sequence[str]) -> list[IdSpan]:
    """The runs of ascending keys; a binary search finds the end of each, because counters only grow faster."""
    spans: list[IdSpan] = []
    start = 0
    while start < len(keys):
        end = _end_of_run(keys, start)
        spans.append(IdSpan(end - start, prefix=keys[start][:_PREFIX_CHARS], first=_counter(keys[start])))
        start = end
    return spans


def _end_of_run(keys: Sequence[str], start: int) -> int:
    prefix, first, count = keys[start][:_PREFIX_CHARS], _counter(keys[start]), len(keys)

    def breaks(row: int) -> bool:
        return keys[row][:_PREFIX_CHARS] != prefix or _counter(keys[row]) - first != row - start

    return bisect_left(range(count), True, lo=start, hi=count, key=breaks) if breaks(count - 1) else count


def bounds_of(spans: Iterable[IdSpan]) -> tuple[list[str], list[str]]:
    """The first and the last key of every run; a natural id is a run by itself."""
    firsts: list[str] = []
    lasts: list[str] = []
    for span in spans:
        if span.ids is not None:
            firsts += span.ids
            lasts += span.ids
        else:
            firsts.append(f"{span.prefix}{span.first:08x}{MARK}")
            lasts.append(f"{span.prefix}{span.first + span.count - 1:08x}{MARK}")
    return firsts, lasts


class LeaseKeys:
    """The keys of a lease by row number, kept as spans: a run of generated ids takes the memory of one key."""

    def __init__(self, spans: Sequence[IdSpan]) -> None:
        self._spans = spans
        self._ends = list(accumulate(span.count for span in spans))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def open(self) -> int:
        """How many rows belong to the lease and are on this shard."""
        return sum(span.count if span.ids is None else sum(map(bool, span.ids)) for span in self._spans)

    @classmethod
    def unpack(cls, text: str) -> LeaseKeys:
        """The keys that `pack` wrote."""
        spans: list[IdSpan] = []
        for token in text.split(" "):
            key, mark, count = token.partition(MARK)
            if mark:
                spans.append(IdSpan(int(count or 1), prefix=key[:_PREFIX_CHARS], first=_counter(key)))
            else:
                spans.append(IdSpan(1, ids=[key if key != _GONE else ""]))
        return cls(spans)

    def pack(self) -> str:
        """The keys as one text, as they are stored in the table."""
        return " ".join(
            f"{span.prefix}{span.first:08x}{MARK}{span.count}"
            if span.ids is None
            else " ".join(key or _GONE for key in span.ids)
            for span in self._spans
        )

    def listed(self) -> list[str]:
        """Every key, one per row; an empty text for a row that no longer belongs to the lease."""
        mark = {True: MARK, False: ""}
        return [key + mark[span.ids is None] for span in self._spans for key in span.expand()]

    def cut(self, ranges: Iterable[RowRange]) -> list[IdSpan]:
        """The spans of some ranges of rows."""
        spans: list[IdSpan] = []
        for start, end in ranges:
            for span, upto in zip(self._spans, self._ends, strict=True):
                begin = upto - span.count
                low, high = max(start, begin) - begin, min(end, upto) - begin
                if low >= high:
                    continue
                ids = None if span.ids is None else span.ids[low:high]
                spans.append(IdSpan(high - low, prefix=span.prefix, first=span.first + low, ids=ids))
        return spans
