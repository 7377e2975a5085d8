-- Create and the owner's changes.

-- Continues the sessions that are as we know them, and begins the new ones, if the topic exists.
-- fragment: sessions
WITH live AS MATERIALIZED (
    SELECT number FROM topic WHERE number = $1 AND state <> 'deleting'
),
continued AS (
    UPDATE session SET used_ms = greatest(session.used_ms, $2), seen = row.seen
    FROM live, unnest($3::bytea [], $4::bytea [], $5::bytea []) AS row (session, seen, known)
    WHERE
        session.topic = any(ARRAY[live.number]) AND session.session = any(ARRAY[row.session])
        AND row.known <> '' AND session.seen = row.known
    RETURNING 1
),
begun AS (
    INSERT INTO session (topic, session, used_ms, seen)
    SELECT $1, row.session, $2, row.seen
    FROM live, unnest($3::bytea [], $4::bytea [], $5::bytea []) AS row (session, seen, known) WHERE row.known = ''
    ON CONFLICT (topic, session) DO UPDATE
    SET used_ms = greatest(session.used_ms, excluded.used_ms), seen = excluded.seen
    WHERE session.seen = ''
    RETURNING 1
)

-- The usual create, of one or several batches in one statement that commits by itself: every session is as we know it, and
-- every row is new. A taken id, another state of a session, or a topic that does not exist ends it with an error. A column
-- with the same value in every row is empty; so are the columns of sessions when `continue_sessions` follows.
-- name: create_all
-- include: sessions
,
number AS MATERIALIZED (
    SELECT nextval('version') AS version
    FROM live
    WHERE (SELECT count(*) FROM continued) + (SELECT count(*) FROM begun) = cardinality($3)
),
made AS (
    INSERT INTO message (topic, id, place, ts, asked_ts, version, priority, size, owner, headers, body)
    SELECT
        $1, row.id, coalesce(row.place, $7), row.ts, row.ts, number.version, coalesce(row.priority, 0),
        coalesce(octet_length(row.headers), 0) + octet_length(row.body), coalesce(row.owner, $6),
        coalesce(row.headers, ''), row.body
    FROM number, unnest(
        $8::text [], $9::integer [], $10::bigint [], $11::integer [], $12::bytea [], $13::bytea [], $14::text []
    )
    AS row (id, place, ts, priority, headers, body, owner)
    RETURNING 1
),
recorded AS (
    INSERT INTO journal (origin, ticket, record)
    SELECT $15, nextval('ticket'), record
    FROM unnest($16::bytea []) AS record, (SELECT count(*) AS rows FROM made) AS done
    WHERE done.rows > 0
),
counted AS (
    INSERT INTO counter (topic, minute, held, shard, owner, count)
    SELECT $1, change.minute, false, $17, change.owner, change.rows
    FROM number, unnest($18::bigint [], $19::text [], $20::bigint []) AS change (minute, owner, rows)
    ON CONFLICT (topic, minute, held, shard, owner) DO UPDATE SET count = counter.count + excluded.count
),
listed AS (
    INSERT INTO count_list (topic, number, size, held, owner, minutes, counts)
    SELECT $1, nextval('count_list_number'), cardinality(listed.minutes), false, $21, listed.minutes, listed.counts
    FROM number, (SELECT $22::bigint [] AS minutes, $23::bigint [] AS counts) AS listed
    WHERE cardinality(listed.minutes) > 0
)
SELECT CASE WHEN count(*) = 1 THEN 1 ELSE cast('another state, ' || count(*) AS integer) END FROM number;

-- The end of a create that began without its sessions, while an earlier batch of one of them was created: the topic still
-- exists, and every session is as we know it. Otherwise it ends with an error, and the transaction is undone.
-- name: continue_sessions
-- include: sessions
SELECT
    CASE
        WHEN (SELECT count(*) FROM continued) + (SELECT count(*) FROM begun) = cardinality($3) THEN 1
        ELSE cast('another state, ' || (SELECT count(*) FROM continued) AS integer)
    END;

-- Lock the session for the rest of the transaction.
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

-- Messages that arrive from another topic.
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

-- Record the name of a transaction; topic 0 is not a topic.
-- name: take_name
INSERT INTO session (topic, session, used_ms, seen) VALUES (0, $1, $2, '')
ON CONFLICT (topic, session) DO UPDATE SET used_ms = greatest(session.used_ms, excluded.used_ms)
RETURNING seen;

-- name: take_owned
SELECT id, ts, owner, consumer, version, priority, headers, body
FROM message WHERE topic = $1 AND id = any($2::text []) ORDER BY id FOR UPDATE;

-- name: take_owned_without_bodies
SELECT id, ts, owner, consumer, version, priority, headers, ''::bytea AS body
FROM message WHERE topic = $1 AND id = any($2::text []) ORDER BY id FOR UPDATE;

-- The usual edit: a message of the owner that nobody holds. A column without values leaves that field. While nobody holds a
-- message, `due_ts` and `before` have no other use: here they return the time that the message had, and whether a lease of
-- it has expired.
-- name: edit_all
WITH number AS MATERIALIZED (
    SELECT nextval('version') AS version
)
UPDATE message AS m SET
    ts = coalesce(row.ts, m.ts), asked_ts = coalesce(row.ts, m.ts), due_ts = m.ts,
    before = CASE WHEN m.consumer = '' THEN 0 ELSE 1 END, version = number.version, consumer = '',
    priority = coalesce(row.priority, m.priority), body = coalesce(row.body, m.body),
    size = octet_length(m.headers) + octet_length(coalesce(row.body, m.body))
FROM number, unnest($2::text [], $3::bigint [], $4::integer [], $5::bytea [], $6::bigint [])
WITH ORDINALITY AS row (id, ts, priority, body, version, place)
WHERE
    m.topic + 0 = $1 AND m.id = any(ARRAY[row.id]) AND m.owner = $7 AND (m.consumer = '' OR m.ts + 0 <= $8)
    AND (row.version IS NULL OR m.version = row.version)
RETURNING row.place, m.ts, m.due_ts, m.before <> 0 AS held, m.priority;

-- The usual move or cancellation, in one statement that commits by itself: all are messages of the owner that nobody
-- holds. Otherwise it ends with an error and changes nothing. Changes at few minutes ($9 at most) are added to the counters
-- of these minutes, and others are a list, whose length is returned. `due_ts` returns the time that a message had. The
-- record gets its ticket when all rows are locked, so its causes have smaller ones.
-- name: move_all
WITH number AS MATERIALIZED (
    SELECT nextval('version') AS version
),
moved AS (
    UPDATE message AS m SET ts = row.ts, asked_ts = row.ts, due_ts = m.ts, before = 0, version = number.version
    FROM number, unnest($2::text [], $3::bigint [], $4::bigint []) AS row (id, version, ts)
    WHERE
        m.topic + 0 = $1 AND m.id = any(ARRAY[row.id]) AND m.owner = $5 AND m.consumer = ''
        AND (row.version IS NULL OR m.version = row.version)
    RETURNING m.ts, m.due_ts
),
recorded AS (
    INSERT INTO journal (origin, ticket, record)
    SELECT $6, nextval('ticket'), record FROM unnest($7::bytea []) AS record
    WHERE (SELECT count(*) FROM moved) = cardinality($2)
),
noted AS (
    UPDATE writer SET change = $11 WHERE number = $10
),
changed AS MATERIALIZED (
    SELECT minute, sum(rows)::bigint AS rows
    FROM (
        SELECT ts / 60000 AS minute, 1 AS rows FROM moved
        UNION ALL
        SELECT due_ts / 60000 AS minute, -1 AS rows FROM moved
    ) AS change
    GROUP BY minute HAVING sum(rows) <> 0
),
counted AS (
    INSERT INTO counter (topic, minute, held, shard, owner, count)
    SELECT $1, minute, false, $8, $5, rows FROM changed WHERE (SELECT count(*) FROM changed) <= $9 ORDER BY minute
    ON CONFLICT (topic, minute, held, shard, owner) DO UPDATE SET count = counter.count + excluded.count
),
listed AS (
    INSERT INTO count_list (topic, number, size, held, owner, minutes, counts)
    SELECT $1, nextval('count_list_number'), count(*), false, $5, array_agg(minute), array_agg(rows)
    FROM changed HAVING count(*) > $9
    RETURNING size
)
SELECT
    CASE
        WHEN count(*) = cardinality($2) THEN coalesce((SELECT size FROM listed), 0)
        ELSE cast(count(*) || ' of the rows may be moved' AS integer)
    END
FROM moved;

-- name: cancel_all
WITH gone AS (
    DELETE FROM message AS m USING unnest($2::text [], $3::bigint []) AS row (id, version)
    WHERE
        m.topic + 0 = $1 AND m.id = any(ARRAY[row.id]) AND m.owner = $4 AND m.consumer = ''
        AND (row.version IS NULL OR m.version = row.version)
    RETURNING m.ts
),
recorded AS (
    INSERT INTO journal (origin, ticket, record)
    SELECT $5, nextval('ticket'), record FROM unnest($6::bytea []) AS record
    WHERE (SELECT count(*) FROM gone) = cardinality($2)
),
noted AS (
    UPDATE writer SET change = $10 WHERE number = $9
),
changed AS MATERIALIZED (
    SELECT ts / 60000 AS minute, -count(*) AS rows FROM gone GROUP BY 1
),
counted AS (
    INSERT INTO counter (topic, minute, held, shard, owner, count)
    SELECT $1, minute, false, $7, $4, rows FROM changed WHERE (SELECT count(*) FROM changed) <= $8 ORDER BY minute
    ON CONFLICT (topic, minute, held, shard, owner) DO UPDATE SET count = counter.count + excluded.count
),
listed AS (
    INSERT INTO count_list (topic, number, size, held, owner, minutes, counts)
    SELECT $1, nextval('count_list_number'), count(*), false, $4, array_agg(minute), array_agg(rows)
    FROM changed HAVING count(*) > $8
    RETURNING size
)
SELECT
    CASE
        WHEN count(*) = cardinality($2) THEN coalesce((SELECT size FROM listed), 0)
        ELSE cast(count(*) || ' of the rows may be removed' AS integer)
    END
FROM gone;

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
