-- One row a message. `ts` is its place on the timeline: the time asked for, or the end of its lease. `asked_ts` is
-- the time last asked for, `due_ts` and `before` the place and the version it had before its lease; `before` is 0
-- where that was a lost lease. `first_lease` and `last_lease` say when it was leased; `last_before` is the last but one.
-- Bodies above about 2 kB are kept apart by the server itself (TOAST), uncompressed, so
-- that an update of the row never copies them. A generated id ends in '!', which no natural id can. `place` is the topic
-- and the bucket in one: 1024 * topic + bucket, negative in a topic by priority. No index begins with the topic, so that whoever looks for ids finds one
-- way to them only, whatever the planner believes of a table that it has never looked at.
CREATE TABLE message (
    ts bigint NOT NULL,
    asked_ts bigint NOT NULL,
    due_ts bigint NOT NULL DEFAULT 0,
    version bigint NOT NULL,
    before bigint NOT NULL DEFAULT 0,
    first_lease bigint,
    last_lease bigint,
    last_before bigint,
    topic integer NOT NULL,
    place integer NOT NULL,
    priority integer NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    size integer NOT NULL,
    id text COLLATE "C" NOT NULL,
    owner text COLLATE "C" NOT NULL,
    consumer text COLLATE "C" NOT NULL DEFAULT '',
    headers bytea NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (id, topic)
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.1
);
ALTER TABLE message ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX message_timeline ON message (place, ts, priority);
CREATE INDEX message_rank ON message (place, priority, ts) WHERE place < 0;

-- A lease set: `ids` by row number, an empty text where the row's end has been told; `open` rows are left at most,
-- and none of them ends before `next_end`.
CREATE TABLE lease (
    topic integer NOT NULL,
    id bigint NOT NULL,
    next_end bigint NOT NULL,
    open integer NOT NULL,
    consumer text COLLATE "C" NOT NULL,
    ids text [] NOT NULL,
    PRIMARY KEY (topic, id)
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE lease ALTER COLUMN ids SET STORAGE EXTERNAL;
CREATE INDEX lease_end ON lease (topic, next_end);
CREATE INDEX lease_consumer ON lease (topic, consumer);

-- Messages by minute of their place and by whether they have a consumer. The rows of the shards add up; a writer keeps
-- to one shard, so that no two wait for each other.
CREATE TABLE counter (
    minute bigint NOT NULL,
    count bigint NOT NULL,
    topic integer NOT NULL,
    shard integer NOT NULL,
    held boolean NOT NULL,
    PRIMARY KEY (topic, minute, held, shard)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000);

-- The counters that each producer session has used, as (first, end) pairs of big-endian 8 byte numbers.
CREATE TABLE session (
    used_ms bigint NOT NULL,
    topic integer NOT NULL,
    session bytea NOT NULL,
    seen bytea NOT NULL,
    PRIMARY KEY (topic, session)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000);

-- What happened, one record a change. Each origin (a broker with a journal) reads its own. A record has a ticket, in the
-- order of causes; its sequence, without gaps and in the order of reading, is given when it is first read.
CREATE TABLE origin (
    number integer PRIMARY KEY,
    sequence bigint NOT NULL DEFAULT 0,
    trimmed bigint NOT NULL DEFAULT 0,
    name text COLLATE "C" NOT NULL UNIQUE
);
CREATE TABLE journal (
    ticket bigint NOT NULL,
    sequence bigint,
    origin integer NOT NULL,
    record bytea NOT NULL,
    PRIMARY KEY (origin, ticket)
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX journal_sequence ON journal (origin, sequence);

CREATE TABLE topic (
    number integer PRIMARY KEY,
    created_ms bigint NOT NULL,
    name text NOT NULL UNIQUE,
    state text NOT NULL,
    settings text NOT NULL
);

-- What this store is called, once and for all.
CREATE TABLE identity (
    number integer PRIMARY KEY,
    name text NOT NULL
);

-- One row a connection: how many changes it made. After a commit that was cut, it tells whether that one stands.
CREATE TABLE writer (
    number bigint PRIMARY KEY,
    change bigint NOT NULL
) WITH (fillfactor = 25, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000);

CREATE SEQUENCE version;
CREATE SEQUENCE ticket;
CREATE SEQUENCE topic_number;
CREATE SEQUENCE origin_number;
CREATE SEQUENCE writer_number;
