"""Message ids as keys: a generated id ends in a mark that no natural id can have, and sorts right behind its twin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dejaq.domain.batch import CreateBatch, IdSpan
from dejaq.domain.ids import generated_ids, parse_generated

MARK = "!"
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
        # The server takes no zero byte, and no id has one.
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
    spans: list[IdSpan] = []
    prefix, following = "", -1
    listed: list[str] | None = None
    for key in keys:
        if key[-1] != MARK:
            if listed is None:
                listed = []
                spans.append(IdSpan(0, ids=listed))
            listed.append(key)
            spans[-1].count += 1
            following = -1
            continue
        listed = None
        counter = int(key[_PREFIX_CHARS:_ID_CHARS], 16)
        if counter != following or key[:_PREFIX_CHARS] != prefix:
            prefix = key[:_PREFIX_CHARS]
            spans.append(IdSpan(0, prefix=prefix, first=counter))
        spans[-1].count += 1
        following = counter + 1
    return spans
