"""The key of every record: one byte for the table, then numbers whose bytes sort as the numbers do.

    m name                                meta: format, boot
    t topic                               topic record
    o topic owner                         name of a producer group
    c topic minute                        count of messages that are due in a minute, as releases up to 0.1 wrote it
    a topic day                           counts of the messages that are due in each minute of a day
    v topic slot                          by how much one commit changed the counts of minutes
    s topic session                       counters a producer session has used
    l topic lease                         lease: its parts
    x topic lease                         lease: its terms, where they are not those it began with
    r topic bucket slice number owner     run, or where in the commit log it is
    g topic bucket slice number owner     rows of the run that are gone
    e topic bucket slice number owner     extent of a wide run, whose rows are of several slices
    d topic bucket session first          directory: generated ids -> run
    i topic bucket id                     index: listed ids -> run, as formats up to 5 wrote it
    A topic record                        entries of listed ids that one commit added and removed
    B topic run piece                     sorted entries of listed ids
    C topic run                           sorted run of entries: its level and length
    D topic run part                      prints of a sorted run
    E topic number                        place of the run that has a number, if its ids have entries
    F topic number merge                  rows of the run with this number moved into runs of a merge
    G topic                               runs with a smaller number have their ids in the index of format 5
    I topic merge number                  piece of a merge: its times and its run
    H topic number                        times of a run of generated ids whose rows moved
    w topic period id                     id that was created in a period of the deduplication window, and when
    q topic period                        how many ids were created in it
    y topic bucket slice number owner     mark of a run whose listed ids have no entries in the index yet
    b topic number                        body that is stored apart
    n topic number                        how many messages have a shared body, and its digest
    h topic digest                        shared bodies by digest
    k number                              large body: what it is
    p number part                         large body: a part
    u number topic                        how many messages of a topic refer to a large body
    j sequence                            journal: what one change did
    f sequence                            journal: where in the commit log that is
    z topic file                          how many frames of a file of the commit log are runs, and their bytes
    L topic bucket offset                 batch of a log, or where in the commit log it is, and what is known of it
    M topic bucket                        offsets and sizes of a bucket of a log
    N topic bucket group                  what a group has committed of a bucket of a log, and its claim
    O topic bucket minute                 batches of a bucket of a log in a minute
    P topic session sequence              batch of a log by its name
    Q topic session                       last sequence of a session that appends to a log, and when
    R topic name                          prepared transaction on logs
    S topic bucket offset                 segment file of a bucket of a log: what it has from this offset on

`bucket` of a run is SPREAD where its rows are of any bucket, each in that of its id.
`slice` is ts // SLICE_MS, of a wide run that of its first row; or, of what was due when it was written to a topic by
priority, READY_SLICE and the priority.
What follows `topic` in a run's key is its *place*, by which other records name it.
"""

from __future__ import annotations

import struct

from dejaq import limits

SLICE_MS = 10_000
# Messages are counted per minute, a whole number of slices, so that a run that is not wide lies in exactly one.
MINUTE_MS = 60_000

# Above every bucket: where a run lies whose rows are of several.
SPREAD = 0xFFFF
# Above every slice of time: from here on a slice is a priority.
READY_SLICE = 1 << 40

META, TOPIC, OWNER, MINUTE_COUNT, SESSION = b"m", b"t", b"o", b"c", b"s"
DAY_COUNTS, COUNT_CHANGE = b"a", b"v"
JOURNAL, JOURNAL_FRAME = b"j", b"f"
LARGE, LARGE_PART, LARGE_USES = b"k", b"p", b"u"
LEASE, TERMS, RUN, GONE, DIRECTORY, INDEX, BODY = b"l", b"x", b"r", b"g", b"d", b"i", b"b"
USES, DIGEST = b"n", b"h"
YOUNG, EXTENT = b"y", b"e"
LOG_USE = b"z"
ID_CHANGES, ID_PIECE, ID_RUN, ID_PRINTS, ID_FRAME = b"A", b"B", b"C", b"D", b"J"
PLACE, MOVED, LISTED_SINCE, MOVED_TIMES, MERGED_PIECE = b"E", b"F", b"G", b"H", b"I"
LOG_BATCH, LOG_BUCKET, LOG_OFFSET, LOG_MINUTE, LOG_NAME, LOG_SESSION = b"L", b"M", b"N", b"O", b"P", b"Q"
LOG_PREPARED, LOG_SEGMENT = b"R", b"S"
CREATED, CREATED_COUNT = b"w", b"q"
# In these, a value may be a pointer to a frame of the commit log, which is counted.
FRAME_TABLES = (RUN, LOG_BATCH, ID_FRAME)
OF_TOPIC = (
    *(TOPIC, OWNER, MINUTE_COUNT, SESSION, LEASE, TERMS, RUN, GONE, DIRECTORY, INDEX, BODY, USES, DIGEST, YOUNG),
    *(CREATED, CREATED_COUNT, DAY_COUNTS, COUNT_CHANGE, EXTENT, LOG_USE),
    *(LOG_BATCH, LOG_BUCKET, LOG_OFFSET, LOG_MINUTE, LOG_NAME, LOG_SESSION, LOG_PREPARED, LOG_SEGMENT),
    *(ID_CHANGES, ID_PIECE, ID_RUN, ID_PRINTS, ID_FRAME, PLACE, MOVED, LISTED_SINCE, MOVED_TIMES, MERGED_PIECE),
)

# Where the bucket stands in a key.
BUCKET_BYTES = slice(5, 7)
PLACE_BYTES = 22

_TOPIC = struct.Struct(">cI")
_TOPIC_NUMBER = struct.Struct(">cIQ")
_BUCKET = struct.Struct(">cIH")
_TOPIC_PAIR = struct.Struct(">cIQQ")
_RUN = struct.Struct(">cIHQQI")
_PLACE = struct.Struct(">HQQI")
_LARGE = struct.Struct(">cQ")
_LARGE_AND = struct.Struct(">cQI")
_LOG_USE = struct.Struct(">cII")


def of_topic(table: bytes, topic: int) -> bytes:
    """The prefix of a topic's records in a table."""
    return _TOPIC.pack(table, topic)


def numbered(table: bytes, topic: int, number: int) -> bytes:
    """A record named by a 64-bit number."""
    return _TOPIC_NUMBER.pack(table, topic, number)


def pair(table: bytes, topic: int, first: int, second: int) -> bytes:
    """A record named by two 64-bit numbers."""
    return _TOPIC_PAIR.pack(table, topic, first, second)


def pair_of(key: bytes) -> tuple[int, int]:
    """The two numbers."""
    _, _, first, second = _TOPIC_PAIR.unpack(key)
    return first, second


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


def journal_frame(sequence: int) -> bytes:
    """The address of a record of the journal."""
    return JOURNAL_FRAME + sequence.to_bytes(8, "big")


def log_use(topic: int, file: int) -> bytes:
    """How much of a file of the commit log are runs of a topic."""
    return _LOG_USE.pack(LOG_USE, topic, file)


def log_use_of(key: bytes) -> tuple[int, int]:
    """(topic, file)."""
    _, topic, file = _LOG_USE.unpack(key)
    return topic, file


def topic_of(key: bytes) -> int:
    """The topic in the key of a record of a topic."""
    return int.from_bytes(key[1:5], "big")


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


def bucket_of(run_key: bytes) -> int:
    """The bucket in the key of a run."""
    return int.from_bytes(run_key[BUCKET_BYTES], "big")


def number_of(run_key: bytes) -> int:
    """The number in the key of a run."""
    return int.from_bytes(run_key[15:23], "big")


def number_of_place(at: bytes) -> int:
    """The number in the place of a run."""
    return int.from_bytes(at[10:18], "big")


def owner_of(run_key: bytes) -> int:
    """The owner in the key of a run."""
    return int.from_bytes(run_key[-4:], "big")


def ready_slice(priority: int) -> int:
    """The slice of what is due and has this priority."""
    return READY_SLICE + priority - limits.PRIORITY_MIN


def ready_priority(time_slice: int) -> int:
    """The priority of such a slice."""
    return time_slice - READY_SLICE + limits.PRIORITY_MIN


def is_ready(run_key: bytes) -> bool:
    """Whether a run is in the order of priority."""
    return slice_of(run_key) >= READY_SLICE


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
