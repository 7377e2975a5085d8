-- Lease and settle.

-- The leases with an end that the journal has not recorded. In this order the index of the ends has them; in the order of
-- their ids all leases of the topic would be read.
-- name: ended_leases
SELECT id, consumer, keys FROM lease WHERE topic = $1 AND next_end <= $2 ORDER BY next_end, id FOR UPDATE;

-- The expired rows of a lease, locked, so that no change extends them any more. Rows that another change has locked are
-- skipped.
-- name: take_ended
SELECT asked.place - 1 AS row, m.ts, m.attempts, m.owner
FROM unnest($2::text []) WITH ORDINALITY AS asked (id, place)
JOIN message AS m ON m.topic + 0 = $1 AND m.id = any(ARRAY[asked.id])
WHERE m.version = $3 AND m.ts + 0 <= $4
FOR UPDATE OF m SKIP LOCKED;

-- name: rows_of_lease
SELECT asked.place - 1 AS row, m.ts
FROM unnest($2::text []) WITH ORDINALITY AS asked (id, place)
JOIN message AS m ON m.topic + 0 = $1 AND m.id = any(ARRAY[asked.id])
WHERE m.version = $3;

-- Rows of an expired lease wait after its end, as if their last holder had released them.
-- name: retry_later
WITH number AS MATERIALIZED (
    SELECT nextval('version') AS version
)
UPDATE message AS m SET
    ts = row.ts, asked_ts = row.ts, due_ts = 0, before = 0, version = number.version, consumer = ''
FROM number, unnest($2::text [], $3::bigint []) AS row (id, ts)
WHERE m.topic + 0 = $1 AND m.id = any(ARRAY[row.id]) AND m.version = $4;

-- name: put_lease
UPDATE lease SET keys = $3, open = $4, next_end = $5 WHERE topic = $1 AND id = $2;

-- name: drop_lease
DELETE FROM lease WHERE topic = $1 AND id = $2;

-- The due rows of one bucket, in order. The queries below merge one of these per bucket, and read each only as far as the
-- merge needs it.
-- name: due
SELECT m.id, m.version, m.ts, m.priority, m.size, m.attempts
FROM message AS m
WHERE m.place = ($2::integer [])[{number}] AND m.ts <= $3 AND (m.consumer = '' OR m.ts <= $4){ranked}
ORDER BY {order};

-- name: lease
WITH first AS MATERIALIZED (
    SELECT id, version, size, sum(size) OVER (ORDER BY {order} ROWS UNBOUNDED PRECEDING) AS upto
    FROM ({due}) AS due
    WHERE $9::integer IS NULL OR attempts < $9
    ORDER BY {order}
    LIMIT $5
)
UPDATE message AS m SET
    ts = $7, due_ts = m.ts, before = CASE WHEN m.consumer = '' THEN m.version ELSE 0 END,
    version = (SELECT coalesce($10, nextval('version'))), consumer = $8, attempts = m.attempts + 1,
    first_lease = coalesce(m.first_lease, $4), last_lease = $4, last_before = m.last_lease
FROM first
WHERE
    m.topic + 0 = $1 AND m.id = any(ARRAY[first.id]) AND m.version = first.version AND (first.upto <= $6 OR first.upto = first.size)
    -- An extension in between has not changed the version.
    AND (m.consumer = '' OR m.ts + 0 <= $4)
    -- Versions only grow, also when another shard has used more numbers since it was read.
    AND ($10::bigint IS NULL OR m.version < $10)
RETURNING
    {returned}, m.id, m.attempts, m.headers, m.body, m.before, m.version, m.owner, (SELECT count(*) FROM first) AS found;

-- Leases for several consumers, each with its own end and its own buckets; $7 and $8 are the places and the numbers of
-- their requests. A message that was leased too often ends the statement with an error. Messages that another change has
-- locked are skipped: mostly another broker leases them at this moment.
-- name: lease_each
WITH asked AS MATERIALIZED (
    SELECT request.*, nextval('version') AS version
    FROM unnest($2::bigint [], $3::bigint [], $4::text [], $5::integer [], $6::bigint []) WITH ORDINALITY
    AS request (until, expires, consumer, rows_max, bytes_max, number)
),
due AS (
    SELECT asked.number, asked.version AS lease, asked.expires, asked.consumer, asked.rows_max, asked.bytes_max, m.*
    FROM unnest($7::integer [], $8::bigint []) AS bucket (place, number)
    JOIN asked ON asked.number = bucket.number
    CROSS JOIN LATERAL (
        SELECT m.id, m.version, m.size, m.ts, m.priority,
            CASE WHEN m.attempts < $10 OR $10::integer IS NULL THEN 0 ELSE cast(m.id || ' is exhausted' AS integer) END
                AS fits
        FROM message AS m
        WHERE m.place = bucket.place AND m.ts <= asked.until AND (m.consumer = '' OR m.ts <= $9)
        ORDER BY m.ts, m.priority LIMIT asked.rows_max
        FOR UPDATE OF m SKIP LOCKED
    ) AS m
),
ranked AS (
    SELECT
        due.*, row_number() OVER own AS rank, sum(due.size) OVER own AS upto,
        count(*) OVER (PARTITION BY due.number) AS found
    FROM due
    WINDOW own AS (PARTITION BY due.number ORDER BY due.ts, due.priority ROWS UNBOUNDED PRECEDING)
),
first AS MATERIALIZED (
    SELECT * FROM ranked WHERE rank <= rows_max AND fits = 0
)
UPDATE message AS m SET
    ts = first.expires, due_ts = m.ts, before = CASE WHEN m.consumer = '' THEN m.version ELSE 0 END,
    version = first.lease, consumer = first.consumer, attempts = m.attempts + 1,
    first_lease = coalesce(m.first_lease, $9), last_lease = $9, last_before = m.last_lease
FROM first
WHERE
    m.topic + 0 = $1 AND m.id = any(ARRAY[first.id]) AND m.version = first.version
    AND (first.upto <= first.bytes_max OR first.upto = first.size)
    AND (m.consumer = '' OR m.ts + 0 <= $9)
RETURNING
    first.number, m.due_ts, m.priority, m.id, m.attempts, m.headers, m.body, m.before, m.version, m.owner, first.found;

-- The next rows that may not be leased, because they were leased too often. Locked, with all columns.
-- name: take_exhausted
WITH first AS MATERIALIZED (
    SELECT id, attempts FROM ({due}) AS due ORDER BY {order} LIMIT $5
)
SELECT
    m.id, m.ts, m.ts AS due_ts, m.version, m.priority, m.attempts, m.owner, m.consumer, m.headers, m.body,
    m.first_lease, m.last_lease
FROM first JOIN message AS m ON m.topic + 0 = $1 AND m.id = any(ARRAY[first.id])
WHERE first.attempts >= $6 AND m.attempts >= $6 AND m.ts + 0 <= $3 AND (m.consumer = '' OR m.ts <= $4)
ORDER BY {final_order}
FOR UPDATE OF m;

-- The rows of a lease that their consumer still holds. Locked, with all columns.
-- name: take_held
SELECT
    asked.place - 1 AS place, m.id, m.ts, m.due_ts, m.version, m.priority, m.attempts, m.owner, m.consumer, m.headers,
    m.body, m.first_lease, m.last_lease
FROM unnest($2::text []) WITH ORDINALITY AS asked (id, place)
JOIN message AS m ON m.topic + 0 = $1 AND m.id = any(ARRAY[asked.id])
WHERE m.version = $3 AND m.consumer = $4 AND m.ts + 0 > $5
FOR UPDATE OF m;

-- name: lock_held
SELECT asked.place - 1 AS place, m.ts
FROM unnest($2::text []) WITH ORDINALITY AS asked (id, place)
JOIN message AS m ON m.topic + 0 = $1 AND m.id = any(ARRAY[asked.id])
WHERE m.version = $3 AND m.consumer = $4 AND m.ts + 0 > $5
FOR UPDATE OF m;

-- name: lease_keys
SELECT keys FROM lease WHERE topic = $1 AND id = $2;

-- name: delete
DELETE FROM message AS m USING unnest($2::text []) WITH ORDINALITY AS asked (id, place)
WHERE m.topic + 0 = $1 AND m.id = any(ARRAY[asked.id]) AND m.version = $3 AND m.consumer = $4 AND m.ts + 0 > $5
RETURNING asked.place - 1 AS place, m.ts, m.owner;

-- The usual delete, in one statement that commits by itself: every row is held. Otherwise it ends with an error and
-- removes nothing. A run of generated ids is found by its first and last key; other keys between them have no mark.
-- name: delete_all
WITH gone AS (
    DELETE FROM message AS m
    USING unnest($2::text [], $3::text [], $4::bigint [], $5::text []) AS asked (first, last, lease, consumer)
    WHERE
        m.topic + 0 = $1 AND m.id >= asked.first AND m.id <= asked.last AND (m.id = asked.first OR right(m.id, 1) = '!')
        AND m.version = asked.lease AND m.consumer = asked.consumer AND m.ts + 0 > $6
    RETURNING m.ts, m.owner
),
recorded AS (
    INSERT INTO journal (origin, ticket, record)
    SELECT $7, nextval('ticket'), record FROM unnest($8::bytea []) AS record
),
shrunk AS (
    UPDATE lease SET open = lease.open - settled.rows
    FROM unnest($10::bigint [], $11::integer []) AS settled (id, rows)
    WHERE lease.topic = $1 AND lease.id = any(ARRAY[settled.id]) AND lease.open > settled.rows
),
closed AS (
    DELETE FROM lease
    USING unnest($10::bigint [], $11::integer []) AS settled (id, rows)
    WHERE lease.topic = $1 AND lease.id = any(ARRAY[settled.id]) AND lease.open <= settled.rows
),
noted AS (
    UPDATE writer SET change = $13 WHERE number = $12
),
counted AS (
    INSERT INTO counter (topic, minute, held, shard, owner, count)
    SELECT $1, gone.ts / 60000, true, $9, gone.owner, -count(*) FROM gone GROUP BY 2, 5 ORDER BY 2, 5
    ON CONFLICT (topic, minute, held, shard, owner) DO UPDATE SET count = counter.count + excluded.count
)
SELECT CASE WHEN count(*) = $14 THEN 0 ELSE cast(count(*) || ' of the rows are held' AS integer) END FROM gone;

-- name: extend
WITH held AS MATERIALIZED (
    SELECT m.id, m.ts, m.owner, asked.place
    FROM unnest($2::text []) WITH ORDINALITY AS asked (id, place)
    JOIN message AS m ON m.topic + 0 = $1 AND m.id = any(ARRAY[asked.id])
    WHERE m.version = $3 AND m.consumer = $4 AND m.ts + 0 > $5
    FOR UPDATE OF m
),
moved AS (
    UPDATE message AS m SET ts = $6 FROM held
    WHERE m.topic + 0 = $1 AND m.id = any(ARRAY[held.id]) AND m.version = $3 AND held.ts < $6
)
SELECT place - 1 AS place, ts, owner FROM held;

-- name: release
WITH number AS MATERIALIZED (
    SELECT nextval('version') AS version
),
held AS MATERIALIZED (
    SELECT m.id, m.ts, asked.place, asked.ts AS new_ts
    FROM unnest($2::text [], $6::bigint []) WITH ORDINALITY AS asked (id, ts, place)
    JOIN message AS m ON m.topic + 0 = $1 AND m.id = any(ARRAY[asked.id])
    WHERE m.version = $3 AND m.consumer = $4 AND m.ts + 0 > $5
    FOR UPDATE OF m
)
UPDATE message AS m SET
    ts = held.new_ts, asked_ts = held.new_ts, due_ts = 0, before = 0, version = number.version, consumer = ''
FROM held, number
WHERE m.topic + 0 = $1 AND m.id = any(ARRAY[held.id]) AND m.version = $3
RETURNING held.place - 1 AS place, held.ts, m.ts AS new_ts, m.version, m.owner;

-- Rows of any number of leases.
-- name: recall
WITH number AS MATERIALIZED (
    SELECT nextval('version') AS version
),
held AS MATERIALIZED (
    SELECT m.id, m.ts, m.owner, asked.place, asked.lease
    FROM
        unnest($2::text [], $3::bigint [], $4::text [], $6::bigint [])
        WITH ORDINALITY AS asked (id, lease, consumer, expires, place)
    JOIN message AS m ON m.topic + 0 = $1 AND m.id = any(ARRAY[asked.id])
    WHERE
        m.version = asked.lease AND m.consumer = asked.consumer AND m.ts + 0 > $5
        AND (asked.expires IS NULL OR m.ts + 0 = asked.expires)
    FOR UPDATE OF m
)
UPDATE message AS m SET
    ts = m.due_ts, asked_ts = m.due_ts, due_ts = 0, before = 0, attempts = m.attempts - 1, consumer = '',
    first_lease = CASE WHEN m.attempts = 1 THEN NULL ELSE m.first_lease END,
    last_lease = CASE WHEN m.before = 0 THEN NULL ELSE m.last_before END,
    version = CASE WHEN m.before = 0 THEN number.version ELSE m.before END
FROM held, number
WHERE m.topic + 0 = $1 AND m.id = any(ARRAY[held.id]) AND m.version = held.lease
RETURNING held.place - 1 AS place, held.ts, m.ts AS new_ts, m.version, m.owner;

-- name: next_ts
SELECT min(first.ts)
FROM unnest($1::integer []) AS asked (place)
CROSS JOIN LATERAL (
    SELECT m.ts FROM message AS m WHERE m.place = asked.place ORDER BY m.ts LIMIT 1
) AS first;

-- name: next_each
SELECT asked.number, min(first.ts)
FROM unnest($1::integer [], $2::integer []) AS asked (place, number)
CROSS JOIN LATERAL (
    SELECT m.ts FROM message AS m WHERE m.place = asked.place ORDER BY m.ts LIMIT 1
) AS first
GROUP BY asked.number;

-- name: leases_of
SELECT id, keys FROM lease WHERE topic = $1 AND consumer = $2 ORDER BY id;

-- name: live_rows
SELECT asked.place - 1 AS row, m.id, m.ts, m.due_ts, m.priority, m.attempts, m.headers, m.body
FROM unnest($2::text []) WITH ORDINALITY AS asked (id, place)
JOIN message AS m ON m.topic + 0 = $1 AND m.id = any(ARRAY[asked.id])
WHERE m.version = $3 AND m.ts + 0 > $4
ORDER BY m.ts, asked.place;

-- The end of every change: its record, its counts, the changes of leases, and its mark.
-- name: finish
WITH recorded AS (
    INSERT INTO journal (origin, ticket, record)
    SELECT $1, nextval('ticket'), record FROM unnest($2::bytea []) AS record
),
entered AS (
    INSERT INTO lease (topic, id, next_end, consumer, keys, open)
    SELECT * FROM unnest($8::integer [], $9::bigint [], $10::bigint [], $11::text [], $12::text [], $18::integer [])
),
shrunk AS (
    UPDATE lease SET open = lease.open - settled.rows
    FROM unnest($13::integer [], $14::bigint [], $15::integer []) AS settled (topic, id, rows)
    WHERE lease.topic = any(ARRAY[settled.topic]) AND lease.id = any(ARRAY[settled.id]) AND lease.open > settled.rows
),
closed AS (
    DELETE FROM lease
    USING unnest($13::integer [], $14::bigint [], $15::integer []) AS settled (topic, id, rows)
    WHERE lease.topic = any(ARRAY[settled.topic]) AND lease.id = any(ARRAY[settled.id]) AND lease.open <= settled.rows
),
noted AS (
    UPDATE writer SET change = $17 WHERE number = $16
),
listed AS (
    INSERT INTO count_list (topic, number, size, held, owner, minutes, counts)
    SELECT $20, nextval('count_list_number'), cardinality(listed.minutes), $21, $22, listed.minutes, listed.counts
    FROM (SELECT $23::bigint [] AS minutes, $24::bigint [] AS counts) AS listed
    WHERE cardinality(listed.minutes) > 0
)
INSERT INTO counter (topic, minute, held, shard, owner, count)
SELECT change.topic, change.minute, change.held, $3, change.owner, change.rows
FROM unnest($4::integer [], $5::bigint [], $6::boolean [], $7::bigint [], $19::text [])
AS change (topic, minute, held, rows, owner)
ON CONFLICT (topic, minute, held, shard, owner) DO UPDATE SET count = counter.count + excluded.count;
