-- Log topics: appends, reads, groups and retention.

-- The state of the topic is null where it was dropped.
-- name: lock_log_buckets
SELECT b.place, b.next, b.last_ts, (SELECT t.state FROM topic AS t WHERE t.number = $2) AS state
FROM log_bucket AS b WHERE b.place = any($1::integer []) ORDER BY b.place FOR UPDATE;

-- A topic that is being dropped waits for this transaction, and then removes the rows.
-- name: lock_log_topic
SELECT state FROM topic WHERE number = $1 FOR KEY SHARE;

-- name: make_log_buckets
INSERT INTO log_bucket (place) SELECT place FROM unnest($1::integer []) AS place ON CONFLICT (place) DO NOTHING;

-- name: known_log_names
SELECT a.place AS asked, n.place, n.base, n.count, n.ts, s.last
FROM unnest($2::bytea [], $3::bigint []) WITH ORDINALITY AS a (session, sequence, place)
LEFT JOIN log_name AS n
    ON n.topic = any(ARRAY[$1::integer]) AND n.session = any(ARRAY[a.session]) AND n.sequence = any(ARRAY[a.sequence])
LEFT JOIN log_session AS s ON s.topic = any(ARRAY[$1::integer]) AND s.session = any(ARRAY[a.session]);

-- name: append_log
WITH batches AS (
    INSERT INTO log_batch (place, base, count, ts, size, records)
    SELECT * FROM unnest($1::integer [], $2::bigint [], $3::integer [], $4::bigint [], $5::integer [], $6::bytea [])
),
windows AS (
    INSERT INTO log_window (place, base, until_ms, length_ms)
    SELECT * FROM unnest($7::integer [], $8::bigint [], $9::bigint [], $10::bigint [])
),
names AS (
    INSERT INTO log_name (topic, session, sequence, place, base, count, ts)
    SELECT $11::integer, n.* FROM unnest(
        $12::bytea [], $13::bigint [], $14::integer [], $15::bigint [], $16::integer [], $17::bigint []
    ) AS n
),
sessions AS (
    INSERT INTO log_session (topic, session, last, used_ms)
    SELECT $11::integer, s.session, s.last, $20 FROM unnest($18::bytea [], $19::bigint []) AS s (session, last)
    ON CONFLICT (topic, session) DO UPDATE
    SET last = greatest(log_session.last, excluded.last), used_ms = greatest(log_session.used_ms, excluded.used_ms)
),
forgotten AS (
    DELETE FROM log_name AS n USING unnest($18::bytea [], $19::bigint []) AS s (session, last)
    WHERE n.topic = any(ARRAY[$11::integer]) AND n.session = any(ARRAY[s.session]) AND n.sequence <= s.last - $21
),
noted AS (
    UPDATE writer SET change = $23 WHERE number = $22
)
UPDATE log_bucket AS b SET next = e.next, last_ts = e.last_ts, size = b.size + e.size
FROM unnest($24::integer [], $25::bigint [], $26::bigint [], $27::bigint []) AS e (place, next, last_ts, size)
WHERE b.place = any(ARRAY[e.place]);

-- name: note_change
UPDATE writer SET change = $2 WHERE number = $1;

-- The bounds of buckets, with the first batch at which committed readers stop.
-- name: log_bounds
SELECT
    t.state, b.place, b.next, b.start, b.size, b.last_ts, w.base AS stable, w.until_ms, w.length_ms
FROM topic AS t
LEFT JOIN log_bucket AS b ON b.place = any($2::integer [])
LEFT JOIN LATERAL (
    SELECT base, until_ms, length_ms FROM log_window AS o WHERE o.place = b.place ORDER BY o.base LIMIT 1
) AS w ON true
WHERE t.number = $1;

-- After the clock was set back, no window lasts longer than its length from now on.
-- name: shorten_log_windows
UPDATE log_window SET until_ms = $2 + length_ms
WHERE place = any($1::integer []) AND length_ms >= 0 AND until_ms > $2 + length_ms;

-- name: close_log_windows
DELETE FROM log_window AS w
WHERE
    w.place = any($1::integer []) AND w.length_ms >= 0 AND w.until_ms <= $2
    AND NOT EXISTS (
        SELECT 1 FROM log_window AS e
        WHERE e.place = w.place AND e.base < w.base AND (e.length_ms < 0 OR e.until_ms > $2)
    );

-- The batches of a range: at most $4 bytes, at least one; without the rolled back ones for committed readers.
-- name: read_log
WITH found AS MATERIALIZED (
    SELECT base, count, ts, size, aborted, aborted AND $5 AS skipped FROM log_batch
    WHERE
        place = $1 AND base < $3
        AND base >= coalesce(
            (SELECT f.base FROM log_batch AS f WHERE f.place = $1 AND f.base <= $2 ORDER BY f.base DESC LIMIT 1), $2
        )
    ORDER BY base LIMIT $6
),
summed AS (
    SELECT found.*, CASE WHEN skipped THEN 0 ELSE size END AS own,
        sum(CASE WHEN skipped THEN 0 ELSE size END) OVER (ORDER BY base) AS total
    FROM found
)
SELECT
    s.base, s.count, s.ts, s.aborted, s.skipped,
    CASE WHEN s.skipped THEN ''::bytea
    ELSE (SELECT b.records FROM log_batch AS b WHERE b.place = $1 AND b.base = s.base) END AS records
FROM summed AS s WHERE s.total <= $4 OR s.total = s.own
ORDER BY s.base;

-- name: log_offset_for_time
SELECT base FROM log_batch WHERE place = $1 AND ts >= $2 ORDER BY ts, base LIMIT 1;

-- name: log_minutes
SELECT ts / 60000 AS minute, min(base) AS first, sum(count) AS count, sum(size) AS bytes
FROM log_batch WHERE place = $1 AND ts >= $2 AND ts < $3 GROUP BY ts / 60000 ORDER BY 1;

-- name: find_log_name
SELECT place, base, count FROM log_name WHERE topic = $1 AND session = $2 AND sequence = $3;

-- name: log_batch_state
SELECT b.aborted, w.length_ms FROM log_batch AS b
LEFT JOIN log_window AS w ON w.place = $1 AND w.base = $2
WHERE b.place = $1 AND b.base = $2;

-- Nothing where a read has closed the window meanwhile: its reader may have the batch.
-- name: abort_log_batch
WITH closed AS (
    DELETE FROM log_window WHERE place = $1 AND base = $2 RETURNING base
)
UPDATE log_batch SET aborted = true WHERE place = $1 AND base IN (SELECT base FROM closed) RETURNING base;

-- name: close_log_window
DELETE FROM log_window WHERE place = $1 AND base = $2;

-- name: lock_log_offsets
SELECT bucket, next, claim, held_by FROM log_offset
WHERE topic = $1 AND name = $2 AND bucket = any($3::integer []) ORDER BY bucket FOR UPDATE;

-- A new group is counted by one transaction at a time.
-- name: log_group_exists
SELECT 1 FROM log_offset WHERE topic = $1 AND name = $2 LIMIT 1;

-- name: lock_log_groups
SELECT pg_advisory_xact_lock($1);

-- name: count_log_groups
SELECT count(DISTINCT name) FROM log_offset WHERE topic = $1;

-- name: put_log_offsets
INSERT INTO log_offset (topic, name, bucket, next, claim, at_ms)
SELECT $1, $2, o.bucket, o.next, o.claim, $6
FROM unnest($3::integer [], $4::bigint [], $5::bigint []) AS o (bucket, next, claim)
ON CONFLICT (topic, name, bucket) DO UPDATE SET next = excluded.next, claim = excluded.claim, at_ms = excluded.at_ms
WHERE log_offset.claim <= excluded.claim
RETURNING bucket;

-- name: next_claim
SELECT nextval('version');

-- name: log_groups
SELECT name, bucket, next, claim, at_ms FROM log_offset WHERE topic = $1 ORDER BY name, bucket;

-- name: remove_log_group
WITH members AS (
    DELETE FROM log_member WHERE topic = $1 AND name = $2
),
holders AS (
    DELETE FROM log_holder WHERE topic = $1 AND name = $2
)
DELETE FROM log_offset WHERE topic = $1 AND name = $2 RETURNING bucket;

-- What retention looks at: each bucket, and the time of its oldest batch.
-- name: log_ages
SELECT b.place, b.start, b.size, f.ts, f.base, f.count
FROM log_bucket AS b
INNER JOIN LATERAL (
    SELECT ts, base, count FROM log_batch AS o WHERE o.place = b.place ORDER BY o.base LIMIT 1
) AS f ON true
WHERE b.place = any($1::integer []);

-- name: oldest_log_batches
SELECT base, count, ts, size FROM log_batch WHERE place = $1 AND base < $2 ORDER BY base LIMIT $3;

-- name: remove_log_batches
WITH removed AS (
    DELETE FROM log_batch WHERE place = $1 AND base < $2
)
UPDATE log_bucket SET start = $2, size = size - $3 WHERE place = $1;

-- name: forget_log_sessions
WITH old AS MATERIALIZED (
    SELECT session FROM log_session WHERE topic = $1 AND used_ms < $2 LIMIT 100
),
names AS (
    DELETE FROM log_name WHERE topic = $1 AND session IN (SELECT session FROM old)
)
DELETE FROM log_session WHERE topic = $1 AND session IN (SELECT session FROM old);

-- name: drop_log_batches
DELETE FROM log_batch AS b
USING (SELECT place, base FROM log_batch WHERE place = any($1::integer []) LIMIT 2000) AS part
WHERE b.place = any(ARRAY[part.place]) AND b.base = any(ARRAY[part.base]);

-- name: drop_log
WITH windows AS (
    DELETE FROM log_window WHERE place = any($2::integer [])
),
names AS (
    DELETE FROM log_name WHERE topic = $1
),
sessions AS (
    DELETE FROM log_session WHERE topic = $1
),
offsets AS (
    DELETE FROM log_offset WHERE topic = $1
),
prepared AS (
    DELETE FROM log_prepared WHERE topic = $1
),
members AS (
    DELETE FROM log_member WHERE topic = $1
),
holders AS (
    DELETE FROM log_holder WHERE topic = $1
)
DELETE FROM log_bucket WHERE place = any($2::integer []);

-- The members of groups at all brokers. Ages are counted by the clock of the server.
-- name: remove_log_members
DELETE FROM log_member
WHERE
    topic = $1 AND name = $2
    AND (seen < clock_timestamp() - $5 * interval '1 millisecond' OR (broker = $3 AND NOT member = any($4::text [])));

-- name: free_log_buckets
DELETE FROM log_holder WHERE topic = $1 AND name = $2 AND member = any($3::text []);

-- name: join_log_group
INSERT INTO log_member (topic, name, member, broker, number, seen)
SELECT $1, $2, member, $4, nextval('version'), clock_timestamp() FROM unnest($3::text []) AS member
ON CONFLICT (topic, name, member) DO UPDATE
SET broker = excluded.broker, number = excluded.number, seen = excluded.seen;

-- name: renew_log_members
UPDATE log_member SET seen = clock_timestamp()
WHERE topic = $1 AND name = $2 AND member = any($3::text []) AND broker = $4;

-- name: free_orphaned_log_buckets
DELETE FROM log_holder AS h
WHERE h.topic = $1 AND h.name = $2 AND NOT EXISTS (
    SELECT 1 FROM log_member AS m WHERE m.topic = $1 AND m.name = $2 AND m.member = h.member
);

-- name: log_seats
SELECT member, broker FROM log_member WHERE topic = $1 AND name = $2 ORDER BY number;

-- name: log_holders
SELECT bucket, member FROM log_holder WHERE topic = $1 AND name = $2;

-- name: log_claims
SELECT bucket, claim FROM log_offset WHERE topic = $1 AND name = $2;

-- A member that is being removed waits for this transaction.
-- name: hold_log_buckets
WITH seat AS MATERIALIZED (
    SELECT member FROM log_member WHERE topic = $1 AND name = $2 AND member = $3 AND broker = $4 FOR KEY SHARE
)
INSERT INTO log_holder (topic, name, member, bucket)
SELECT $1, $2, seat.member, bucket FROM seat, unnest($5::integer []) AS bucket
ON CONFLICT (topic, name, bucket) DO NOTHING
RETURNING bucket;

-- name: let_go_log_buckets
DELETE FROM log_holder WHERE topic = $1 AND name = $2 AND member = $3 AND bucket = any($4::integer []);

-- name: log_members
SELECT name, member, broker FROM log_member
WHERE topic = $1 AND seen >= clock_timestamp() - $2 * interval '1 millisecond' ORDER BY name, number;

-- Prepared transactions.
-- name: lock_log_prepared
SELECT record FROM log_prepared WHERE topic = $1 AND name = $2 FOR UPDATE;

-- name: logs_in_doubt
SELECT record FROM log_prepared WHERE topic = $1 AND state = 'in doubt' ORDER BY name;

-- name: count_logs_in_doubt
SELECT count(*) FROM log_prepared WHERE topic = $1 AND state = 'in doubt';

-- name: add_log_prepared
INSERT INTO log_prepared (topic, name, deadline_ms, state, record) VALUES ($1, $2, $3, $4, $5);

-- name: put_log_prepared
UPDATE log_prepared SET state = $3, record = $4 WHERE topic = $1 AND name = $2;

-- name: forget_log_prepared
DELETE FROM log_prepared WHERE topic = $1 AND state <> 'in doubt' AND deadline_ms < $2;

-- name: hold_log_offset
INSERT INTO log_offset (topic, name, bucket, next, claim, at_ms, held_by) VALUES ($1, $2, $3, -1, $4, $5, $6)
ON CONFLICT (topic, name, bucket) DO UPDATE SET held_by = excluded.held_by;

-- A transaction that was aborted changes no offset.
-- name: free_log_offset
UPDATE log_offset
SET next = coalesce($4, next), at_ms = CASE WHEN $4::bigint IS NULL THEN at_ms ELSE $5 END, held_by = NULL
WHERE topic = $1 AND name = $2 AND bucket = $3;
