"""Every limit of DejaQ, with its unit last in the name; each is tested at and beyond its edge."""

from __future__ import annotations

ID_CHARS_MAX = 64
TOPIC_NAME_CHARS_MAX = 128
GROUP_CHARS_MAX = 64
CONSUMER_NAME_CHARS_MAX = 64

# The end of the year 9999, the last instant a Python datetime can show.
TS_MS_MAX = 253_402_300_799_999
PRIORITY_MIN = -(2**31)
PRIORITY_MAX = 2**31 - 1

# The largest body in a batch; one above it is uploaded in parts.
BODY_BYTES_MAX = 1024 * 1024
LARGE_BODY_BYTES_MAX = 64 * 1024 * 1024
PART_BYTES_MAX = 1024 * 1024
# Uploads, and downloads, that a broker serves at one time; each holds a few parts in memory.
UPLOADS_MAX = 16
DOWNLOADS_MAX = 32
# How long an upload may take between two of its parts.
PART_MS_MAX = 30_000
# How long a large body stays that no message refers to.
UPLOAD_KEEP_MS = 3_600_000
# Bodies above this are stored apart from the timeline, so that a move or release never copies them.
INLINE_BODY_BYTES_MAX = 16 * 1024
# The largest body that a compressed one may unpack to.
DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
HEADERS_COUNT_MAX = 32
HEADERS_BYTES_MAX = 4096

BATCH_COUNT_MAX = 10_000
BATCH_BYTES_MAX = 8 * 1024 * 1024
# One frame on the wire: the largest batch, its columns and some room.
FRAME_BYTES_MAX = BATCH_BYTES_MAX + 4 * 1024 * 1024
# A transaction's rows and bytes are those of one batch.
TRANSACTION_STEPS_MAX = 1_000
TRANSACTIONS_PER_CALL_MAX = 100
BROWSE_PAGE_MAX = 5_000
HISTOGRAM_STEPS_MAX = 10_000

BUCKETS_MIN = 1
BUCKETS_MAX = 1024
BUCKETS_DEFAULT = 64
TOPICS_MAX = 10_000

LEASE_MS_MIN = 100
LEASE_MS_DEFAULT = 30_000
LEASE_MS_MAX = 12 * 3600 * 1000
FUTURE_MS_DEFAULT = 10 * 366 * 24 * 3600 * 1000

WORKER_CONCURRENCY_MAX = 10_000
BACKOFF_MS_MAX = 30 * 24 * 3600 * 1000
BACKOFF_FACTOR_MAX = 100

ATTEMPTS_MAX = 1_000_000
REASON_CHARS_MAX = 500

CONNECTIONS_MAX = 10_000
SESSIONS_MAX = 10_000
# Frames a session may have waiting for their answer before the broker stops reading from it.
SESSION_INFLIGHT_MAX = 64
SESSION_INFLIGHT_BYTES_MAX = 32 * 1024 * 1024
CREDIT_ROWS_MAX = 100_000
CREDIT_ROWS_DEFAULT = 10_000
CREDIT_BYTES_DEFAULT = 64 * 1024 * 1024
LEASE_ROWS_MAX = 2_000
# Leases that one frame may delete from.
DELETES_MAX = 64

AWAIT_MS_MAX = 30_000

SCHEDULE_NAME_CHARS_MAX = 40
SCHEDULE_EXPRESSION_CHARS_MAX = 200
SCHEDULE_TEMPLATE_BYTES_MAX = 64 * 1024
SCHEDULE_EVERY_MS_MIN = 1_000
SCHEDULE_JITTER_MS_MAX = 24 * 3600 * 1000
SCHEDULE_MISSED_MAX = 1_000
SCHEDULES_PER_CALL_MAX = 1_000
SCHEDULE_TIMES_MAX = 1_000

SNAPSHOTS_MAX = 64
SNAPSHOT_IDLE_MS_MAX = 600_000

# A consumer's share of a topic, beside those of the others.
WEIGHT_DEFAULT = 100
WEIGHT_MAX = 10_000
RACK_CHARS_MAX = 64
CONSUMER_RATE_MAX = 1_000_000
CLIENT_RATE_MAX = 10_000_000
BUSY_MS_MAX = 600_000

# How far ahead of its time a message may be leased to a consumer, whose SDK holds it until then.
PREFETCH_MS_MAX = 5_000
PREFETCH_MS_DEFAULT = 500

# What the loader may hold in memory for all buckets together.
WINDOW_BYTES_DEFAULT = 256 * 1024 * 1024
# Listed ids that the embedded store knows without an entry on disk: about 130 bytes of memory each.
YOUNG_IDS_MAX = 500_000
# How long a producer session's counters are remembered after its last batch.
PRODUCER_SESSION_MS_MAX = 24 * 3600 * 1000
PRODUCER_SESSION_GAPS_MAX = 1_000
