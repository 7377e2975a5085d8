"""The values of encrypted topics as the store writes them: sealed, a whole run at once.

The bodies and headers of a run are one sealed column. Its ids and times stay readable; they are authenticated with the
key under which the run is stored, so nothing of a run can be changed, and no run can be exchanged for another. A
sealed run begins with a byte that no other value begins with.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from dejaq.domain.bodies.body_block import BodyBlock
from dejaq.domain.bodies.packing import UNREADABLE
from dejaq.domain.headers import encode_headers
from dejaq.domain.id_column import IdColumn
from dejaq.domain.topic import Encryption, Topic, TopicKind
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.outbox import MaskChecks
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.value_ciphers import ValueCiphers

# What a sealed run begins with; then the size of its readable part.
_SEALED = b"\2"
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

    def run(self, key: bytes, record: records.Run, ids: IdColumn | None, block: BodyBlock | None) -> bytes:
        """The value of a run; `ids` and `block` have the ids and bodies that are not in the record."""
        cipher = None if self._ciphers is None else self._ciphers.of(keys.topic_of(key))
        listed, bodies = ids.wire if ids else b"", block.data if block else b""
        if cipher is None:
            return b"".join((record.SerializeToString(), listed, bodies))
        readable, secret = _divided(record)
        readable += listed
        before = b"".join((_SEALED, _SIZE.pack(len(readable)), readable))
        return cipher.seal(key + readable, secret + bodies if secret else bodies, before)

    def opened_run(self, key: bytes, value: bytes) -> bytes:
        """The plain value of a run. If it was changed, or belongs to another key, its bodies cannot be read."""
        cipher = None if self._ciphers is None else self._ciphers.of(keys.topic_of(key))
        if not value.startswith(_SEALED):
            return value if cipher is None else _unreadable(value)
        end = _HEAD_BYTES + _SIZE.unpack_from(value, len(_SEALED))[0]
        readable = value[_HEAD_BYTES:end]
        opened = None if cipher is None else cipher.open(key + readable, value[end:])
        return _unreadable(readable) if opened is None else readable + opened

    def body(self, key: bytes, body: bytes) -> bytes:
        """The value of a body that is stored apart."""
        cipher = None if self._ciphers is None else self._ciphers.of(keys.topic_of(key))
        return body if cipher is None else cipher.seal(key, body)

    def opened_body(self, key: bytes, value: bytes) -> bytes:
        """The body in it."""
        cipher = None if self._ciphers is None else self._ciphers.of(keys.topic_of(key))
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
