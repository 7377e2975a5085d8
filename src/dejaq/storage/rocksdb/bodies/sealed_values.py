"""The values of encrypted topics as the store writes them: sealed, a whole run at once.

The bodies and headers of a run are one sealed column, or one per group of rows. Its ids and times stay readable; they
are authenticated with the key under which the run is stored, so nothing of a run can be changed, and no run or group
can be exchanged for another. A sealed run begins with a byte that no other value begins with.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from struct import Struct

from dejaq.domain.bodies.body_block import BodyBlock
from dejaq.domain.bodies.packing import UNREADABLE
from dejaq.domain.headers import encode_headers
from dejaq.domain.id_column import IdColumn
from dejaq.domain.topic import Encryption, Topic, TopicKind
from dejaq.errors import Code, error_of
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.outbox import MaskChecks
from dejaq.storage.rocksdb.bodies.row_groups import (
    RowGroups,
    digest_of,
    divided,
    head_bytes,
    is_divided,
    join_columns,
    joined,
    read_head,
)
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.timeline.memory.minute_table import Column
from dejaq.storage.value_ciphers import ValueCipher, ValueCiphers

# What a sealed run begins with; then the size of its readable part, or the head of its groups.
_SEALED, _SEALED_GROUPS = b"\2", b"\3"
_SIZE = Struct(">I")
_HEAD_BYTES = len(_SEALED) + _SIZE.size
# The header that a message has instead of those that could not be opened.
_UNREADABLE_HEADERS = encode_headers({"dejaq-unreadable-headers": "*"})


class SealedValues:
    """Forms the values of runs and of bodies that are stored apart; those of other topics are plain."""

    def __init__(self, ciphers: ValueCiphers | None = None) -> None:
        self._ciphers = ciphers

    async def learn(self, topics: Sequence[Topic]) -> None:
        """Get the keys of topics, whose runs are read next; raises KEY_UNAVAILABLE."""
        if self._ciphers is not None:
            await self._ciphers.learn(topics)

    def is_locked(self, topic: Topic) -> bool:
        """Whether nothing may be written to a topic, because it is encrypted and its key is unknown."""
        encrypted = topic.settings.encryption is not Encryption.NONE and topic.settings.kind is not TopicKind.LOG
        return encrypted and (self._ciphers is None or self._ciphers.of(topic.number) is None)

    def run(
        self,
        key: bytes,
        record: records.Run,
        ids: IdColumn | None,
        block: BodyBlock | None,
        times: Column | None = None,
    ) -> bytes:
        """The value of a run; `ids` and `block` have the ids and bodies that are not in the record.

        `times` has the times of the record, if they are a column already.
        """
        cipher = self._cipher_of(key)
        # The rows of a run in the order of priority cannot be searched by their times.
        if ids is not None and block is not None and not keys.is_ready(key) and is_divided(record, ids):
            if cipher is None:
                return divided(record, ids, block, times=times)
            return _SEALED_GROUPS + divided(record, ids, block, partial(_seal_group, cipher, key), times)
        listed, bodies = ids.wire if ids else b"", block.data if block else b""
        if cipher is None:
            return b"".join((record.SerializeToString(), listed, bodies))
        readable, secret = _divided(record)
        readable += listed
        before = b"".join((_SEALED, _SIZE.pack(len(readable)), readable))
        return cipher.seal(key + readable, secret + bodies if secret else bodies, before)

    def _cipher_of(self, key: bytes) -> ValueCipher | None:
        return None if self._ciphers is None else self._ciphers.of(keys.topic_of(key))

    def opened_run(self, key: bytes, value: bytes) -> bytes:
        """The plain value of a run. If it was changed, or belongs to another key, its bodies cannot be read."""
        cipher = self._cipher_of(key)
        if value.startswith(_SEALED_GROUPS):
            return self._opened_groups(key, value)
        if not value.startswith(_SEALED):
            return joined(value) if cipher is None else _unreadable(value)
        end = _HEAD_BYTES + _SIZE.unpack_from(value, len(_SEALED))[0]
        readable = value[_HEAD_BYTES:end]
        opened = None if cipher is None else cipher.open(key + readable, value[end:])
        return _unreadable(readable) if opened is None else readable + opened

    def is_plain(self, key: bytes) -> bool:
        """Whether the value of a run is stored as it is."""
        return self._ciphers is None or self._cipher_of(key) is None

    def head_at(self, key: bytes, value: bytes) -> int | None:
        """Where the head of the groups of a value is, of which the beginning is given; None where it has none, or where
        its groups are not what the topic needs.
        """
        if self._cipher_of(key) is None:
            return None if value.startswith(_SEALED_GROUPS) else 0
        return len(_SEALED_GROUPS) if value.startswith(_SEALED_GROUPS) else None

    def opened_group(self, key: bytes, groups: RowGroups, group: int, data: bytes) -> bytes:
        """The plain form of a group of rows. If it was changed, or moved, only its own bodies cannot be read."""
        cipher = None if self._ciphers is None else self._cipher_of(key)
        if cipher is None:
            return data
        readable, opened = _open_group(cipher, key, groups.digest, group, data)
        return _unreadable(readable) if opened is None else readable + opened

    def _opened_groups(self, key: bytes, value: bytes) -> bytes:
        """All groups of a run: each is opened by itself."""
        cipher, plain = self._cipher_of(key), value[len(_SEALED_GROUPS) :]
        groups = read_head(plain)
        if groups is None:
            raise error_of(Code.STORE_CORRUPT, "a sealed run was changed; restore the store from a backup")
        rest = plain[head_bytes(plain) : groups.start]
        digest = digest_of(rest, groups.rows, groups.per_group)
        parts = [groups.part(number) for number in range(groups.count)]
        opened = [
            _open_group(cipher, key, digest, part.group, plain[part.start : part.start + part.length]) for part in parts
        ]
        if all(secret is not None for _, secret in opened):
            return join_columns(groups, rest, [readable + (secret or b"") for readable, secret in opened])
        return rest + _joined_readable(opened)

    def body(self, key: bytes, body: bytes) -> bytes:
        """The value of a body that is stored apart."""
        cipher = self._cipher_of(key)
        return body if cipher is None else cipher.seal(key, body)

    def opened_body(self, key: bytes, value: bytes) -> bytes:
        """The body in it."""
        cipher = self._cipher_of(key)
        if cipher is None:
            return value
        opened = cipher.open(key, value)
        return UNREADABLE if opened is None else opened

    def digest(self, topic: int, digest: bytes) -> bytes:
        """The digest by which a shared body is stored."""
        cipher = None if self._ciphers is None else self._ciphers.of(topic)
        return digest if cipher is None else cipher.digest(digest)

    def mask(self, topic: int) -> MaskChecks | None:
        """How the journal gets the check values of a topic's bodies; None: as they are."""
        cipher = None if self._ciphers is None else self._ciphers.of(topic)
        return None if cipher is None else cipher.checks


def _divided(record: records.Run) -> tuple[bytes, bytes]:
    """What stays readable of a record, and what is sealed."""
    if not record.bodies and not record.headers:
        return record.SerializeToString(), b""
    secret = records.Run(headers=record.headers, bodies=record.bodies).SerializeToString()
    readable = records.Run()
    readable.CopyFrom(record)
    readable.ClearField("bodies")
    readable.ClearField("headers")
    return readable.SerializeToString(), secret


def _unreadable(readable: bytes) -> bytes:
    """A run whose bodies and headers could not be opened: its messages are delivered, their bodies cannot be read."""
    record = records.Run.FromString(readable)
    count = len(record.ts)
    apart = record.apart or [0] * count
    del record.bodies[:], record.headers[:]
    record.bodies.extend(b"" if number else UNREADABLE for number in apart)
    record.headers.extend([_UNREADABLE_HEADERS] * count)
    return bytes(record.SerializeToString())


def _seal_group(cipher: ValueCipher, key: bytes, digest: bytes, group: int, readable: bytes, secret: bytes) -> bytes:
    name = b"".join((key, digest, _SIZE.pack(group), readable))
    return cipher.seal(name, secret, _SIZE.pack(len(readable)) + readable)


def _open_group(
    cipher: ValueCipher | None, key: bytes, digest: bytes, group: int, data: bytes
) -> tuple[bytes, bytes | None]:
    """The readable part of a group, and the other one if it can be opened."""
    end = _SIZE.size + _SIZE.unpack_from(data)[0]
    readable = data[_SIZE.size : end]
    name = b"".join((key, digest, _SIZE.pack(group), readable))
    return readable, None if cipher is None else cipher.open(name, data[end:])


def _joined_readable(groups: Sequence[tuple[bytes, bytes | None]]) -> bytes:
    """The rows of groups of which some could not be opened."""
    whole = records.Run()
    headers: list[bytes] = []
    for readable, secret in groups:
        part = records.Run.FromString(_unreadable(readable) if secret is None else readable + secret)
        headers += part.headers or [b""] * len(part.ts)
        part.ClearField("headers")
        whole.MergeFrom(part)
    whole.headers.extend(headers)
    return bytes(whole.SerializeToString())
