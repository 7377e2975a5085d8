"""The key of every record: one byte for the table, then numbers whose bytes sort as the numbers do.

    m name                                meta: format, boot
    t topic                               topic record
    o topic owner                         name of a producer group
    c topic cell                          count of messages in a cell of time
    s topic session                       counters a producer session has used
    l topic lease                         lease: its parts
    x topic lease                         lease: its terms, where they are not those it began with
    r topic bucket slice number owner     run
    g topic bucket slice number owner     rows of the run that are gone
    d topic bucket session first          directory: generated ids -> run
    i topic bucket id                     index: listed ids -> run
    y topic bucket slice number owner     mark of a run whose listed ids have no entries in the index yet
    b topic number                        body that is stored apart
    n topic number                        how many messages have a shared body, and its digest
    h topic digest                        shared bodies by digest
    k number                              large body: what it is
    p number part                         large body: a part
    u number topic                        how many messages of a topic refer to a large body
    j sequence                            journal: what one change did

`bucket` of a run is SPREAD where its rows are of any bucket, each in that of its id.
`slice` is ts // SLICE_MS; or, of what was due when it was written to a topic by priority, READY_SLICE and the priority.
What follows `topic` in a run's key is its *place*, by which other records name it.
"""

from __future__ import annotations

import struct

from dejaq import limits

SLICE_MS = 10_000
# Counters are kept per cell, a whole number of slices, so that a run lies in exactly one.
CELL_MS = 60_000

# Above every bucket: where a run lies whose rows are of several.
SPREAD = 0xFFFF
# Above every slice of time: from here on a slice is a priority.
READY_SLICE = 1 << 40

META, TOPIC, OWNER, CELL, SESSION = b"m", b"t", b"o", b"c", b"s"
JOURNAL = b"j"
LARGE, LARGE_PART, LARGE_USES = b"k", b"p", b"u"
LEASE, TERMS, RUN, GONE, DIRECTORY, INDEX, BODY = b"l", b"x", b"r", b"g", b"d", b"i", b"b"
USES, DIGEST = b"n", b"h"
YOUNG = b"y"
OF_TOPIC = (TOPIC, OWNER, CELL, SESSION, LEASE, TERMS, RUN, GONE, DIRECTORY, INDEX, BODY, USES, DIGEST, YOUNG)

# Where the bucket stands in a key.
BUCKET_BYTES = slice(5, 7)
PLACE_BYTES = 22

_TOPIC = struct.Struct(">cI")
_TOPIC_NUMBER = struct.Struct(">cIQ")
_BUCKET = struct.Struct(">cIH")
_RUN = struct.Struct(">cIHQQI")
_PLACE = struct.Struct(">HQQI")
_LARGE = struct.Struct(">cQ")
_LARGE_AND = struct.Struct(">cQI")


def of_topic(table: bytes, topic: int) -> bytes:
    """The prefix of a topic's records in a table."""
    return _TOPIC.pack(table, topic)


def numbered(table: bytes, topic: int, number: int) -> bytes:
    """A record named by a 64-bit number."""
    return _TOPIC_NUMBER.pack(table, topic, number)


def digest(topic: int, value: bytes) -> bytes:
    """The shared bodies that have a digest."""
    return _TOPIC.pack(DIGEST, topic) + value


def large(number: int) -> bytes:
    """The record of a large body."""
    return _LARGE.pack(LARGE, number)


def large_number(key: bytes) -> int:
    """The number in the key of a large body."""
    return int.from_bytes(key[1:9], "big")


def large_part(number: int, part: int) -> bytes:
    """A part of a large body."""
    return _LARGE_AND.pack(LARGE_PART, number, part)


def large_use(number: int, topic: int) -> bytes:
    """How many messages of a topic refer to a large body."""
    return _LARGE_AND.pack(LARGE_USES, number, topic)


def large_use_of(key: bytes) -> tuple[int, int]:
    """(number, topic)."""
    _, number, topic = _LARGE_AND.unpack(key)
    return number, topic


def journal(sequence: int) -> bytes:
    """A record of the journal."""
    return JOURNAL + sequence.to_bytes(8, "big")


def of_bucket(table: bytes, topic: int, bucket: int) -> bytes:
    """The prefix of a bucket's records in a table."""
    return _BUCKET.pack(table, topic, bucket)


def run(topic: int, bucket: int, time_slice: int, number: int, owner: int) -> bytes:
    """The key of a run."""
    return _RUN.pack(RUN, topic, bucket, time_slice, number, owner)


def slice_start(topic: int, bucket: int, time_slice: int) -> bytes:
    """Where the runs of a slice begin."""
    return _BUCKET.pack(RUN, topic, bucket) + time_slice.to_bytes(8, "big")


def slice_of(run_key: bytes) -> int:
    """The slice in the key of a run."""
    return int.from_bytes(run_key[7:15], "big")


def ready_slice(priority: int) -> int:
    """The slice of what is due and has this priority."""
    return READY_SLICE + priority - limits.PRIORITY_MIN


def ready_priority(time_slice: int) -> int:
    """The priority of such a slice."""
    return time_slice - READY_SLICE + limits.PRIORITY_MIN


def ready_start(topic: int, bucket: int) -> bytes:
    """Where the runs of a bucket begin that are in the order of priority."""
    return slice_start(topic, bucket, READY_SLICE)


def ready_end(topic: int, bucket: int) -> bytes:
    """Where they end."""
    return after(of_bucket(RUN, topic, bucket))


def place(run_key: bytes) -> bytes:
    """What names a run within its topic."""
    return run_key[5:]


def unpack_place(at: bytes) -> tuple[int, int, int, int]:
    """(bucket, slice, number, owner)."""
    return _PLACE.unpack(at)


def is_spread(at: bytes) -> bool:
    """Whether the run at a place is over several buckets."""
    return at.startswith(b"\xff\xff")


def at_place(table: bytes, topic: int, at: bytes) -> bytes:
    """The key of a run, or of its gone rows, by its place."""
    return _TOPIC.pack(table, topic) + at


def gone(run_key: bytes) -> bytes:
    """The key of the gone rows of a run."""
    return GONE + run_key[1:]


def young(run_key: bytes) -> bytes:
    """The mark of a run whose ids are not in the index."""
    return YOUNG + run_key[1:]


def directory(topic: int, bucket: int, session: bytes, first: int) -> bytes:
    """The directory entry of a run of generated ids."""
    return _BUCKET.pack(DIRECTORY, topic, bucket) + session + first.to_bytes(4, "big")


def index(topic: int, bucket: int, message_id: str) -> bytes:
    """The index entry of a listed id."""
    return _BUCKET.pack(INDEX, topic, bucket) + message_id.encode()


def session(topic: int, packed: bytes) -> bytes:
    """The record of a producer session."""
    return _TOPIC.pack(SESSION, topic) + packed


def owner(topic: int, number: int) -> bytes:
    """The record of a producer group's name."""
    return _TOPIC.pack(OWNER, topic) + number.to_bytes(4, "big")


def after(prefix: bytes) -> bytes:
    """The first key behind every key that begins with `prefix`."""
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")
