-- Queries, which change nothing.

-- name: get
SELECT id, place, ts, priority, body, owner, consumer, version, attempts, headers
FROM message WHERE topic = $1 AND id = any($2::text []);

-- The same as one row of columns; a body is missing where it is larger than $3 or its message has or had a consumer.
-- Priorities and headers are NULL where a message has none.
-- name: get_columns
SELECT
    array_agg(id) AS ids, array_agg(place) AS places, array_agg(ts) AS ts, array_agg(version) AS versions,
    array_agg(owner) AS owners, array_agg(nullif(priority, 0)) AS priorities, array_agg(nullif(headers, '')) AS headers,
    array_agg(CASE WHEN consumer = '' AND attempts = 0 AND size <= $3 THEN body END) AS bodies, sum(size) AS bytes
FROM message WHERE topic = $1 AND id = any($2::text []);

-- name: holders
SELECT id, consumer, version, due_ts FROM message
WHERE topic = $1 AND id = any($2::text []) AND consumer <> '' AND ts + 0 > $3;

-- name: keys_of_leases
SELECT id, keys FROM lease WHERE topic = $1 AND id = any($2::bigint []);

-- The counts of minutes, as counters and in lists.
-- fragment: counts
SELECT minute, held, count
FROM counter WHERE topic = $1 AND minute >= $2 AND minute <= $3 AND ($4::text IS NULL OR owner = $4)
UNION ALL
SELECT minute, held, count
FROM (
    SELECT held, unnest(minutes) AS minute, unnest(counts) AS count
    FROM count_list WHERE topic = $1 AND ($4::text IS NULL OR owner = $4)
) AS entry
WHERE minute >= $2 AND minute <= $3

-- name: minutes
SELECT minute, held, sum(count)::bigint AS rows
FROM (
-- include: counts
) AS change
GROUP BY minute, held HAVING sum(count) <> 0;

-- name: counts_by_step
-- The counts of whole minutes of one step together, and each minute that a limit or a step divides by itself.
SELECT
    CASE WHEN NOT whole THEN minute END AS cut,
    CASE WHEN whole THEN $5::bigint + (begin_ms - $5) / $6::bigint * $6 END AS start,
    held,
    sum(rows)::bigint AS rows
FROM (
    SELECT
        minute, begin_ms, held, rows,
        begin_ms >= $7::bigint AND begin_ms + 59999 < $8::bigint
        AND (begin_ms - $5) / $6 = (begin_ms + 59999 - $5) / $6 AS whole
    FROM (
        SELECT minute, minute::bigint * 60000 AS begin_ms, held, sum(count)::bigint AS rows
        FROM (
-- include: counts
        ) AS change
        GROUP BY minute, held HAVING sum(count) <> 0
    ) AS counted
) AS placed
GROUP BY 1, 2, 3;

-- name: rows_between
SELECT $2 + (found.ts - $2) / $3 * $3 AS start, count(*) AS rows
FROM unnest($4::bigint [], $5::bigint []) AS asked (start, upto)
CROSS JOIN unnest($1::integer []) AS part (place)
CROSS JOIN LATERAL (
    SELECT m.ts
    FROM message AS m
    WHERE
        m.place = part.place AND m.ts >= asked.start AND m.ts < asked.upto
        AND ($6::boolean IS NULL OR (m.consumer <> '') = $6)
        AND ($7::text IS NULL OR m.owner = $7) AND ($8::text IS NULL OR m.consumer = $8)
    OFFSET 0
) AS found
GROUP BY 1;

-- name: rows_by_step
SELECT $2 + (m.ts - $2) / $3 * $3 AS start, count(*) AS rows
FROM message AS m
WHERE
    m.place = any($1::integer []) AND m.ts >= $4 AND m.ts < $5
    AND ($6::boolean IS NULL OR (m.consumer <> '') = $6)
    AND ($7::text IS NULL OR m.owner = $7) AND ($8::text IS NULL OR m.consumer = $8)
    AND m.priority BETWEEN $9 AND $10
    AND NOT EXISTS (SELECT 1 FROM unnest($11::bytea []) AS entry WHERE position(entry IN m.headers) = 0)
GROUP BY 1;

-- Only reading the headers shows whether a message has them; the search for their bytes reduces the number of rows.
-- name: rows_with_headers
SELECT m.ts, m.priority, m.headers
FROM message AS m
WHERE
    m.place = any($1::integer []) AND m.ts >= $2 AND m.ts < $3
    AND ($4::boolean IS NULL OR (m.consumer <> '') = $4)
    AND ($5::text IS NULL OR m.owner = $5) AND ($6::text IS NULL OR m.consumer = $6)
    AND m.priority BETWEEN $7 AND $8
    AND NOT EXISTS (SELECT 1 FROM unnest($9::bytea []) AS entry WHERE position(entry IN m.headers) = 0);

-- name: browse
SELECT found.*
FROM unnest($1::integer []) AS asked (place)
CROSS JOIN LATERAL (
    SELECT m.id, m.place, m.ts, m.priority, m.body, m.owner, m.consumer, m.version, m.attempts, m.headers
    FROM message AS m
    WHERE
        m.place = asked.place AND m.ts >= $2 AND m.ts < $3 AND (m.ts > $10 OR m.id > $11)
        AND ($4::boolean IS NULL OR (m.consumer <> '') = $4)
        AND ($5::text IS NULL OR m.owner = $5) AND ($6::text IS NULL OR m.consumer = $6)
        AND m.priority BETWEEN $7 AND $8
        AND NOT EXISTS (SELECT 1 FROM unnest($9::bytea []) AS entry WHERE position(entry IN m.headers) = 0)
    ORDER BY m.ts, m.id
    LIMIT $12
) AS found
ORDER BY found.ts, found.id
LIMIT $12;

-- name: scan
SELECT id, place, ts, priority, owner, consumer, version, attempts, headers, body
FROM message
WHERE
    place = any($1::integer []) AND ts >= $2 AND ts < $3
    AND ($4::boolean IS NULL OR (consumer <> '') = $4)
    AND ($5::text IS NULL OR owner = $5) AND ($6::text IS NULL OR consumer = $6)
    AND priority BETWEEN $7 AND $8
    AND NOT EXISTS (SELECT 1 FROM unnest($9::bytea []) AS entry WHERE position(entry IN headers) = 0);

-- name: scan_without_bodies
SELECT id, place, ts, priority, owner, consumer, version, attempts, headers, ''::bytea AS body
FROM message
WHERE
    place = any($1::integer []) AND ts >= $2 AND ts < $3
    AND ($4::boolean IS NULL OR (consumer <> '') = $4)
    AND ($5::text IS NULL OR owner = $5) AND ($6::text IS NULL OR consumer = $6)
    AND priority BETWEEN $7 AND $8
    AND NOT EXISTS (SELECT 1 FROM unnest($9::bytea []) AS entry WHERE position(entry IN headers) = 0);

-- name: get_keys
SELECT id FROM message WHERE topic = $1 AND id = any($2::text []);
