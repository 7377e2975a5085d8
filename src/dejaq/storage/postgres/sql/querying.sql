-- Looking, without changing.

-- name: get
SELECT id, bucket, ts, priority, body, owner, consumer, version, attempts, headers
FROM message WHERE topic = $1 AND id = any($2::text []);

-- name: holders
SELECT m.id, m.consumer, m.version, m.due_ts, array_position(lease.ids, m.id) - 1 AS row
FROM message AS m JOIN lease ON lease.topic = m.topic AND lease.id = m.version
WHERE m.topic = $1 AND m.id = any($2::text []) AND m.consumer <> '' AND m.ts > $3;

-- name: minutes
SELECT minute, held, sum(count)::bigint AS rows
FROM counter WHERE topic = $1 AND minute >= $2 AND minute <= $3
GROUP BY minute, held HAVING sum(count) <> 0;

-- name: rows_of_minutes
SELECT $3 + (m.ts - $3) / $4 * $4 AS start, count(*) AS rows
FROM unnest($7::bigint []) AS asked (minute)
CROSS JOIN unnest($2::integer []) AS part (bucket)
JOIN message AS m
    ON m.topic = $1 AND m.bucket = part.bucket AND m.ts >= asked.minute * 60000 AND m.ts < (asked.minute + 1) * 60000
WHERE m.ts >= $5 AND m.ts < $6 AND ($8::boolean IS NULL OR (m.consumer <> '') = $8)
GROUP BY 1;

-- name: rows_by_step
SELECT $3 + (m.ts - $3) / $4 * $4 AS start, count(*) AS rows
FROM message AS m
WHERE
    m.topic = $1 AND m.bucket = any($2::integer []) AND m.ts >= $5 AND m.ts < $6
    AND ($7::boolean IS NULL OR (m.consumer <> '') = $7)
    AND ($8::text IS NULL OR m.owner = $8) AND ($9::text IS NULL OR m.consumer = $9)
GROUP BY 1;

-- name: browse
SELECT found.*
FROM unnest($2::integer []) AS asked (bucket)
CROSS JOIN LATERAL (
    SELECT m.id, m.bucket, m.ts, m.priority, m.body, m.owner, m.consumer, m.version, m.attempts, m.headers
    FROM message AS m
    WHERE
        m.topic = $1 AND m.bucket = asked.bucket AND m.ts >= $3 AND m.ts < $4 AND (m.ts > $8 OR m.id > $9)
        AND ($5::boolean IS NULL OR (m.consumer <> '') = $5)
        AND ($6::text IS NULL OR m.owner = $6) AND ($7::text IS NULL OR m.consumer = $7)
    ORDER BY m.ts, m.id
    LIMIT $10
) AS found
ORDER BY found.ts, found.id
LIMIT $10;

-- name: scan
SELECT id, bucket, ts, priority, owner, consumer, version, attempts, headers, body
FROM message
WHERE
    topic = $1 AND bucket = any($2::integer []) AND ts >= $3 AND ts < $4
    AND ($5::boolean IS NULL OR (consumer <> '') = $5)
    AND ($6::text IS NULL OR owner = $6) AND ($7::text IS NULL OR consumer = $7);

-- name: scan_without_bodies
SELECT id, bucket, ts, priority, owner, consumer, version, attempts, headers, ''::bytea AS body
FROM message
WHERE
    topic = $1 AND bucket = any($2::integer []) AND ts >= $3 AND ts < $4
    AND ($5::boolean IS NULL OR (consumer <> '') = $5)
    AND ($6::text IS NULL OR owner = $6) AND ($7::text IS NULL OR consumer = $7);

-- name: get_keys
SELECT id FROM message WHERE topic = $1 AND id = any($2::text []);
