-- Topics, the journal and maintenance.

-- name: topics
SELECT number, name, state, created_ms, settings FROM topic ORDER BY number;

-- name: put_topic
INSERT INTO topic (number, name, state, created_ms, settings) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (number) DO UPDATE
SET name = excluded.name, state = excluded.state, created_ms = excluded.created_ms, settings = excluded.settings;

-- name: next_topic_number
SELECT nextval('topic_number');

-- name: topic_state
SELECT state FROM topic WHERE number = $1;

-- name: drop_messages
DELETE FROM message AS m
USING (SELECT id, topic FROM message WHERE place = any($1::integer []) LIMIT 20000) AS part
WHERE m.id = any(ARRAY[part.id]) AND m.topic = any(ARRAY[part.topic]);

-- name: drop_topic
WITH leases AS (
    DELETE FROM lease WHERE topic = $1
),
sessions AS (
    DELETE FROM session WHERE topic = $1
),
counters AS (
    DELETE FROM counter WHERE topic = $1
),
lists AS (
    DELETE FROM count_list WHERE topic = $1
),
created AS (
    DELETE FROM created_count WHERE topic = $1
)
DELETE FROM topic WHERE number = $1 RETURNING number;

-- name: make_identity
INSERT INTO identity (number, name) VALUES (0, $1) ON CONFLICT (number) DO NOTHING;

-- name: identity
SELECT name FROM identity WHERE number = 0;

-- name: find_origin
SELECT number, sequence FROM origin WHERE name = $1;

-- name: outboxes
SELECT o.name, count(j.origin) AS waiting
FROM origin AS o LEFT JOIN journal AS j ON j.origin = o.number
GROUP BY o.name ORDER BY o.name;

-- name: make_origin
INSERT INTO origin (number, name) VALUES (nextval('origin_number'), $1) ON CONFLICT (name) DO NOTHING;

-- Give the records that were not read yet their positions after the records that were read.
-- name: stamp
WITH fresh AS MATERIALIZED (
    SELECT ticket FROM journal WHERE origin = $1 AND sequence IS NULL ORDER BY ticket LIMIT $2
),
placed AS MATERIALIZED (
    SELECT ticket, row_number() OVER (ORDER BY ticket) AS place FROM fresh
),
before AS MATERIALIZED (
    SELECT sequence FROM origin WHERE number = $1 FOR UPDATE
),
after AS (
    UPDATE origin SET sequence = before.sequence + (SELECT count(*) FROM fresh) FROM before WHERE number = $1
)
UPDATE journal SET sequence = before.sequence + placed.place
FROM placed, before
WHERE journal.origin = $1 AND journal.ticket = placed.ticket AND journal.sequence IS NULL;

-- name: unstamped
SELECT 1 FROM journal WHERE origin = $1 AND sequence IS NULL LIMIT 1;

-- name: journal
SELECT sequence, ticket, record FROM journal WHERE origin = $1 AND sequence > $2 ORDER BY sequence LIMIT $3;

-- name: origin
SELECT sequence, trimmed FROM origin WHERE number = $1;

-- name: trim
WITH trimmed AS (
    UPDATE origin SET trimmed = greatest(trimmed, $2) WHERE number = $1
)
DELETE FROM journal WHERE origin = $1 AND sequence <= $2;

-- name: new_writer
INSERT INTO writer (number, change) VALUES (nextval('writer_number'), 0) RETURNING number;

-- Written, so that its commit proves that everything before it is durable.
-- name: change_of_writer
UPDATE writer SET change = change WHERE number = $1 RETURNING change;

-- name: skip_numbers
SELECT
    setval('version', nextval('version') + 4294967296),
    setval('ticket', nextval('ticket') + 4294967296),
    setval('writer_number', nextval('writer_number') + 4294967296),
    setval('topic_number', nextval('topic_number') + 1024);

-- name: drop_writers
DELETE FROM writer WHERE number = any($1::bigint []);

-- Counts of minutes far from now become lists; no change waits for these rows.
-- name: list_counters
WITH old AS (
    DELETE FROM counter WHERE minute < $1 OR minute > $2 RETURNING topic, minute, held, owner, count
),
summed AS (
    SELECT topic, held, owner, minute, sum(count)::bigint AS count
    FROM old GROUP BY topic, held, owner, minute HAVING sum(count) <> 0
)
INSERT INTO count_list (topic, number, size, held, owner, minutes, counts)
SELECT
    topic, nextval('count_list_number'), count(*), held, owner, array_agg(minute), array_agg(count)
FROM summed GROUP BY topic, held, owner;

-- Join the lists of every topic and owner that has at least so many minutes outside its longest list, and at least half as
-- many as in it: so a minute is written about three times. With 0, join all lists. The minutes of a list are in no order,
-- so that the server adds them up by hashes and sorts nothing.
-- name: join_lists
WITH wanted AS MATERIALIZED (
    SELECT topic, held, owner FROM count_list GROUP BY topic, held, owner
    HAVING count(*) > 1 AND sum(size) - max(size) >= CASE WHEN $1::bigint = 0 THEN 0 ELSE greatest($1, max(size) / 2) END
),
taken AS MATERIALIZED (
    SELECT list.topic, list.number
    FROM wanted JOIN count_list AS list ON list.topic = any(ARRAY[wanted.topic])
    WHERE list.held = wanted.held AND list.owner = wanted.owner
    FOR UPDATE OF list SKIP LOCKED
),
old AS (
    DELETE FROM count_list AS list USING taken
    WHERE list.topic = any(ARRAY[taken.topic]) AND list.number = any(ARRAY[taken.number])
    RETURNING list.topic, list.held, list.owner, list.minutes, list.counts
),
summed AS (
    SELECT topic, held, owner, minute, sum(count)::bigint AS count
    FROM (SELECT topic, held, owner, unnest(minutes) AS minute, unnest(counts) AS count FROM old) AS entry
    GROUP BY topic, held, owner, minute HAVING sum(count) <> 0
)
INSERT INTO count_list (topic, number, size, held, owner, minutes, counts)
SELECT
    topic, nextval('count_list_number'), count(*), held, owner, array_agg(minute), array_agg(count)
FROM summed GROUP BY topic, held, owner;

-- name: unstamped_count
SELECT count(*) FROM journal WHERE origin = $1 AND sequence IS NULL;

-- The connections to this database, by their names.
-- name: users
SELECT DISTINCT application_name AS name, coalesce(host(client_addr), 'this machine') AS place
FROM pg_stat_activity
WHERE datname = current_database() AND starts_with(application_name, $1);

-- The standbys that follow the server now, and for whom a commit waits. A user without the role pg_monitor sees only the
-- names of other users' standbys. There is always a row.
-- name: standbys
SELECT
    current_setting('synchronous_standby_names') AS names, current_setting('synchronous_commit') AS waits,
    follower.application_name AS name, coalesce(follower.sync_state, 'unknown') AS state,
    cast(pg_wal_lsn_diff(pg_current_wal_lsn(), follower.flush_lsn) AS bigint) AS lag
FROM (SELECT 1) AS always LEFT JOIN pg_stat_replication AS follower ON true
ORDER BY follower.sync_priority, follower.application_name;

-- How many messages there are, according to the last cleaning; negative when there was none.
-- name: message_estimate
SELECT reltuples FROM pg_class WHERE oid = 'message'::regclass;
