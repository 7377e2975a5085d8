-- Log topics. `place` is that of the messages: 1024 * topic + bucket. The row of a bucket is locked by each append to it,
-- so its offsets are dense and in the order of the commits.
CREATE TABLE log_bucket (
    next bigint NOT NULL DEFAULT 0,
    start bigint NOT NULL DEFAULT 0,
    last_ts bigint NOT NULL DEFAULT 0,
    size bigint NOT NULL DEFAULT 0,
    place integer PRIMARY KEY
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000);

-- One row per batch. Retention removes the oldest rows of a bucket.
CREATE TABLE log_batch (
    base bigint NOT NULL,
    ts bigint NOT NULL,
    place integer NOT NULL,
    count integer NOT NULL,
    size integer NOT NULL,
    aborted boolean NOT NULL DEFAULT false,
    records bytea NOT NULL,
    PRIMARY KEY (place, base)
) WITH (
    autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_insert_scale_factor = 0.2,
    toast.autovacuum_vacuum_scale_factor = 0.1, toast.autovacuum_vacuum_threshold = 5000
);
ALTER TABLE log_batch ALTER COLUMN records SET STORAGE EXTERNAL;
CREATE INDEX log_batch_time ON log_batch (place, ts, base) INCLUDE (count, size);

-- Batches at which committed readers stop: those that can be rolled back until `until_ms`, which is `length_ms` after the
-- append; and those of a prepared transaction, whose `length_ms` is -1.
CREATE TABLE log_window (
    base bigint NOT NULL,
    until_ms bigint NOT NULL,
    length_ms bigint NOT NULL,
    place integer NOT NULL,
    PRIMARY KEY (place, base)
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000);

-- The batches that each session has named last, and the last name of each session.
CREATE TABLE log_name (
    sequence bigint NOT NULL,
    base bigint NOT NULL,
    ts bigint NOT NULL,
    topic integer NOT NULL,
    place integer NOT NULL,
    count integer NOT NULL,
    session bytea NOT NULL,
    PRIMARY KEY (topic, session, sequence)
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 5000);
CREATE TABLE log_session (
    last bigint NOT NULL,
    used_ms bigint NOT NULL,
    topic integer NOT NULL,
    session bytea NOT NULL,
    PRIMARY KEY (topic, session)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000);

-- What each group reads next of a bucket, and under which claim; -1 for a bucket that is only claimed. `held_by` is the
-- prepared transaction that commits the bucket.
CREATE TABLE log_offset (
    next bigint NOT NULL,
    claim bigint NOT NULL,
    at_ms bigint NOT NULL,
    topic integer NOT NULL,
    bucket integer NOT NULL,
    name text COLLATE "C" NOT NULL,
    held_by text COLLATE "C",
    PRIMARY KEY (topic, name, bucket)
) WITH (fillfactor = 25, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000);

-- The members of groups at all brokers, and the bucket that each has. A member whose broker did not renew it is gone.
CREATE TABLE log_member (
    number bigint NOT NULL,
    seen timestamptz NOT NULL,
    topic integer NOT NULL,
    broker text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    member text COLLATE "C" NOT NULL,
    PRIMARY KEY (topic, name, member)
) WITH (fillfactor = 25, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 1000);
CREATE TABLE log_holder (
    topic integer NOT NULL,
    bucket integer NOT NULL,
    name text COLLATE "C" NOT NULL,
    member text COLLATE "C" NOT NULL,
    PRIMARY KEY (topic, name, bucket)
) WITH (fillfactor = 25, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 1000);

-- Prepared transactions, each under a name that belongs to a log.
CREATE TABLE log_prepared (
    deadline_ms bigint NOT NULL,
    topic integer NOT NULL,
    name text COLLATE "C" NOT NULL,
    state text NOT NULL,
    record bytea NOT NULL,
    PRIMARY KEY (topic, name)
);
