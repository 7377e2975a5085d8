-- Create and the owner's changes.

-- The usual create, in one statement: the session stands as we know it, every row is new. A taken id ends it with an
-- error; a session that stands otherwise, or a topic that is not there, makes nothing. A column that says the same of every
-- row is empty.
-- name: create_all
WITH named AS (
    INSERT INTO session (topic, session, used_ms, seen)
    SELECT $1, $2, $3, $4 FROM topic WHERE number = $1 AND state <> 'deleting'
    ON CONFLICT (topic, session) DO UPDATE
    SET used_ms = greatest(session.used_ms, excluded.used_ms), seen = excluded.seen
    WHERE session.seen = $5
    RETURNING 1
),
number AS MATERIALIZED (
    SELECT nextval('version') AS version FROM named
),
made AS (
    INSERT INTO message (topic, id, place, ts, asked_ts, version, priority, size, owner, headers, body)
    SELECT
        $1, row.id, coalesce(row.place, $18), row.ts, row.ts, number.version, coalesce(row.priority, 0),
        coalesce(octet_length(row.headers), 0) + octet_length(row.body), $6, coalesce(row.headers, ''), row.body
    FROM number, unnest($7::text [], $8::integer [], $9::bigint [], $10::integer [], $11::bytea [], $12::bytea [])
    AS row (id, place, ts, priority, headers, body)
    RETURNING 1
),
told AS (
    INSERT INTO journal (origin, ticket, record)
    SELECT $13, nextval('ticket'), record
    FROM unnest($14::bytea []) AS record, (SELECT count(*) AS rows FROM made) AS done
    WHERE done.rows > 0
),
counted AS (
    INSERT INTO counter (topic, minute, held, shard, owner, count)
    SELECT $1, change.minute, false, $15, $6, change.rows
    FROM named, unnest($16::bigint [], $17::bigint []) AS change (minute, rows)
    ORDER BY change.minute
    ON CONFLICT (topic, minute, held, shard, owner) DO UPDATE SET count = counter.count + excluded.count
)
SELECT count(*) FROM named;

-- Take the session for the rest of the transaction.
-- name: take_session
INSERT INTO session (topic, session, used_ms, seen)
SELECT $1, $2, $3, '' FROM topic WHERE number = $1 AND state <> 'deleting'
ON CONFLICT (topic, session) DO UPDATE SET used_ms = greatest(session.used_ms, excluded.used_ms)
RETURNING seen;

-- name: put_seen
UPDATE session SET seen = $3 WHERE topic = $1 AND session = $2;

-- name: forget_sessions
DELETE FROM session WHERE used_ms < $1;

-- name: create_free
WITH number AS MATERIALIZED (
    SELECT nextval('version') AS version
)
INSERT INTO message (topic, id, place, ts, asked_ts, version, priority, size, owner, headers, body)
SELECT
    $1, row.id, coalesce(row.place, $9), row.ts, row.ts, number.version, coalesce(row.priority, 0),
    coalesce(octet_length(row.headers), 0) + octet_length(row.body), $2, coalesce(row.headers, ''), row.body
FROM number, unnest($3::text [], $4::integer [], $5::bigint [], $6::integer [], $7::bytea [], $8::bytea [])
AS row (id, place, ts, priority, headers, body)
ON CONFLICT (id, topic) DO NOTHING
RETURNING id;

-- name: contents
SELECT id, asked_ts, owner, priority, headers, body FROM message WHERE topic = $1 AND id = any($2::text []);

-- Messages that come from another topic.
-- name: enter
WITH number AS MATERIALIZED (
    SELECT nextval('version') AS version
)
INSERT INTO message (topic, id, place, ts, asked_ts, version, priority, size, owner, headers, body)
SELECT
    $1, row.id, row.place, $2, $2, number.version, row.priority,
    octet_length(row.headers) + octet_length(row.body), row.owner, row.headers, row.body
FROM number, unnest($3::text [], $4::integer [], $5::integer [], $6::text [], $7::bytea [], $8::bytea [])
AS row (id, place, priority, owner, headers, body)
ON CONFLICT (id, topic) DO NOTHING
RETURNING id;

-- Take the name of a transaction; topic 0 is no topic.
-- name: take_name
INSERT INTO session (topic, session, used_ms, seen) VALUES (0, $1, $2, '')
ON CONFLICT (topic, session) DO UPDATE SET used_ms = greatest(session.used_ms, excluded.used_ms)
RETURNING seen;

-- name: take_owned
SELECT id, ts, owner, consumer, version, priority, headers, body
FROM message WHERE topic = $1 AND id = any($2::text []) ORDER BY id FOR UPDATE;

-- name: take_owned_without_bodies
SELECT id, ts, owner, consumer, version, priority, ''::bytea AS headers, ''::bytea AS body
FROM message WHERE topic = $1 AND id = any($2::text []) ORDER BY id FOR UPDATE;

-- name: edit
WITH number AS MATERIALIZED (
    SELECT nextval('version') AS version
)
UPDATE message AS m SET
    ts = row.ts, asked_ts = row.ts, due_ts = 0, before = 0, version = number.version, consumer = '',
    priority = row.priority,
    headers = coalesce(row.headers, m.headers),
    body = coalesce(row.body, m.body),
    size = octet_length(coalesce(row.headers, m.headers)) + octet_length(coalesce(row.body, m.body))
FROM number, unnest($2::text [], $3::bigint [], $4::bigint [], $5::integer [], $6::bytea [], $7::bytea [])
AS row (id, version, ts, priority, headers, body)
WHERE m.topic + 0 = $1 AND m.id = any(ARRAY[row.id]) AND m.version = row.version
RETURNING m.version;

-- name: remove
DELETE FROM message AS m USING unnest($2::text [], $3::bigint []) AS row (id, version)
WHERE m.topic + 0 = $1 AND m.id = any(ARRAY[row.id]) AND m.version = row.version
RETURNING m.id;
