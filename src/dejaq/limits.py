"""Every limit of DejaQ, with its unit last in the name; each is tested at and beyond its edge."""

from __future__ import annotations

ID_CHARS_MAX = 64
TOPIC_NAME_CHARS_MAX = 128
# Of a principal in a rule, with its kind.
PRINCIPAL_CHARS_MAX = 320
GROUP_CHARS_MAX = 64
CONSUMER_NAME_CHARS_MAX = 64

# The end of the year 9999, the last time that a Python datetime can represent.
TS_MS_MAX = 253_402_300_799_999
# The start of the year 2001. A smaller number where milliseconds are expected is most likely a time in seconds.
PLAIN_TIME_MS_MIN = 978_307_200_000
PRIORITY_MIN = -(2**31)
PRIORITY_MAX = 2**31 - 1

# The largest body in a batch; a larger body is uploaded in parts.
BODY_BYTES_MAX = 1024 * 1024
LARGE_BODY_BYTES_MAX = 64 * 1024 * 1024
PART_BYTES_MAX = 1024 * 1024
# The number of uploads, and of downloads, that a broker serves at one time; each holds a few parts in memory.
UPLOADS_MAX = 16
DOWNLOADS_MAX = 32
# How many of them one connection may have.
UPLOADS_PER_CLIENT_MAX = 8
DOWNLOADS_PER_CLIENT_MAX = 16
# How long an upload or a download may take between two of its parts.
PART_MS_MAX = 30_000
# How long a large body is kept when no message refers to it.
UPLOAD_KEEP_MS = 3_600_000
# Larger bodies are stored separately from the timeline, so that a move or release never copies them.
INLINE_BODY_BYTES_MAX = 16 * 1024
# The largest size to which a compressed body may be decompressed.
DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
HEADERS_COUNT_MAX = 32
HEADERS_BYTES_MAX = 4096

BATCH_COUNT_MAX = 10_000
BATCH_BYTES_MAX = 8 * 1024 * 1024
# The size of a frame: the largest batch, its columns and a reserve.
FRAME_BYTES_MAX = BATCH_BYTES_MAX + 4 * 1024 * 1024
# The rows and bytes of a transaction have the same limits as one batch.
TRANSACTION_STEPS_MAX = 1_000
TRANSACTIONS_PER_CALL_MAX = 100
BROWSE_PAGE_MAX = 5_000
HISTOGRAM_STEPS_MAX = 10_000
HISTORY_EVENTS_MAX = 1_000
# Searches of the journal that a broker runs at one time; others wait.
HISTORIES_MAX = 2
# Counts, histograms and pages: how long one may take, how many of one client run and how many wait at one time, and how
# much time those of one client may take per second, together.
QUERY_MS_MAX = 25_000
QUERIES_PER_CLIENT_MAX = 4
QUERIES_WAITING_PER_CLIENT_MAX = 256
QUERY_MS_PER_SECOND_MAX = 2_000

BUCKETS_MIN = 1
BUCKETS_MAX = 1024
BUCKETS_DEFAULT = 64
TOPICS_MAX = 10_000
# API keys that a cluster keeps, and sessions of users that it remembers as ended.
API_KEYS_MAX = 10_000
ENDED_SESSIONS_MAX = 10_000
# The parts of these that one caller without administrator's rights may use up.
API_KEYS_PER_USER_MAX = 100
ENDED_SESSIONS_PER_USER_MAX = 500
RULES_PER_USER_MAX = 500
# Rules and quotas that a cluster keeps.
RULES_MAX = 10_000
# Decisions about rights that a broker remembers; beyond, it forgets all of them.
DECISIONS_KEPT_MAX = 100_000
# Callers whose rate is counted at one time; those that are idle are forgotten first.
RATES_KEPT_MAX = 10_000
# Different events of the security log that wait to be written.
SECURITY_EVENTS_WAITING_MAX = 10_000
# Producer groups that a topic of the embedded store knows at one time; those of an empty topic are forgotten.
PRODUCER_GROUPS_MAX = 100_000

LEASE_MS_MIN = 100
LEASE_MS_DEFAULT = 30_000
LEASE_MS_MAX = 12 * 3600 * 1000
FUTURE_MS_DEFAULT = 10 * 366 * 24 * 3600 * 1000

WORKER_CONCURRENCY_MAX = 10_000
BACKOFF_MS_MAX = 30 * 24 * 3600 * 1000
BACKOFF_FACTOR_MAX = 100

ATTEMPTS_MAX = 1_000_000
REASON_CHARS_MAX = 500
ERROR_CHARS_MAX = 500
TRACEBACK_CHARS_MAX = 2_000
PROGRESS_CHARS_MAX = 500
# Reports that a broker keeps.
PROGRESS_COUNT_MAX = 10_000

CONNECTIONS_MAX = 10_000
SESSIONS_MAX = 10_000
# The number of frames of a session that may wait for an answer before the broker stops reading from it.
SESSION_INFLIGHT_MAX = 64
SESSION_INFLIGHT_BYTES_MAX = 32 * 1024 * 1024
CREDIT_ROWS_MAX = 100_000
CREDIT_ROWS_DEFAULT = 10_000
CREDIT_BYTES_DEFAULT = 64 * 1024 * 1024
LEASE_ROWS_MAX = 2_000
# The number of leases whose rows one frame may delete or extend.
SETTLES_MAX = 64

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
# One that was read whole is kept for a task that is tried again.
SNAPSHOT_READ_MS_MAX = 60_000
# When all places are taken, the one that was not read for the longest time gives way after so long.
SNAPSHOT_IDLE_MS_MIN = 2_000
# Names of snapshots that have ended, which are not opened again.
SNAPSHOT_NAMES_MAX = 10_000
SNAPSHOT_NAME_CHARS_MAX = 100
# How long a snapshot may be read; on PostgreSQL it keeps VACUUM from all that changed since.
SNAPSHOT_AGE_MS_MAX = 6 * 3600 * 1000

# A consumer's share of a topic, relative to the other consumers.
WEIGHT_DEFAULT = 100
WEIGHT_MAX = 10_000
RACK_CHARS_MAX = 64
CONSUMER_RATE_MAX = 1_000_000
CLIENT_RATE_MAX = 10_000_000
BUSY_MS_MAX = 600_000

# How long before its time a message may be leased to a consumer; the SDK holds it until then.
PREFETCH_MS_MAX = 5_000
PREFETCH_MS_DEFAULT = 500

# The memory of the loader for all buckets together.
WINDOW_BYTES_DEFAULT = 256 * 1024 * 1024
# The commit log of the embedded store: the size of a file, the bytes of log after which the database is flushed, and
# the bytes above which runs are moved into the database so that files can be removed; and the bytes behind the oldest
# record of the journal above which such records are moved.
COMMIT_LOG_FILE_BYTES = 256 * 1024 * 1024
COMMIT_LOG_FLUSH_BYTES = 128 * 1024 * 1024
COMMIT_LOG_BYTES_MAX = 16 * 1024 * 1024 * 1024
COMMIT_LOG_JOURNAL_BYTES_MAX = 2 * 1024 * 1024 * 1024
# Every start begins a file. A store that was killed so often must not run out of file descriptors.
COMMIT_LOG_FILES_MAX = 64
# Changes that are not durable yet are in memory. Above so many bytes of them, changes and merges wait for the disk.
COMMIT_LOG_PENDING_BYTES = 64 * 1024 * 1024
# The number of listed ids that the embedded store keeps in memory only: about 130 bytes each.
YOUNG_IDS_MAX = 500_000
# The embedded store counts messages by producer group in memory when somebody asks for a group. So many minutes of all
# groups of a topic together are kept, about 150 bytes each; of a topic with more, the rows are counted for each answer.
OWNER_MINUTES_MAX = 300_000
# How long a producer session's counters are remembered after its last batch.
PRODUCER_SESSION_MS_MAX = 24 * 3600 * 1000
PRODUCER_SESSION_GAPS_MAX = 1_000
# How long after its creation an id can be remembered, and how many ids of a topic.
DEDUP_MS_MAX = 30 * 24 * 3600 * 1000
DEDUP_IDS_DEFAULT = 10_000_000
DEDUP_IDS_MAX = 1_000_000_000
# Cancels that share a name; every other one may leave a gap in what the store notes of the name.
NAMED_CHANGES_MAX = 1_000
# Log topics: the groups of a topic, the longest rollback window, and the memory for the newest batches of all topics.
LOG_GROUPS_MAX = 1_000
LOG_KEEP_BYTES_MAX = 2**50
LOG_ROLLBACK_MS_MAX = 3_600_000
LOG_IN_DOUBT_MS_MAX = 24 * 3_600_000
TRANSACTION_NAME_CHARS_MAX = 200
# What a reader may ask the broker to send ahead.
LOG_CREDIT_BYTES_MAX = 64 * 1024 * 1024
LOG_TAIL_BYTES = 32 * 1024 * 1024
