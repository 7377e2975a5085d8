-- Topics by priority: of what is due, the lowest priority is next, then the oldest.

-- name: lease_by_priority
WITH number AS MATERIALIZED (
    SELECT coalesce($9::bigint, nextval('version')) AS version
),
near AS MATERIALIZED (
    SELECT c.*
    FROM unnest($2::integer []) AS asked (place)
    CROSS JOIN LATERAL (
        SELECT
            m.id, m.version, m.ts, m.priority, m.size,
            row_number() OVER (ORDER BY m.priority, m.ts ROWS UNBOUNDED PRECEDING) AS number
        FROM message AS m
        WHERE m.place = asked.place AND m.ts <= $3 AND (m.consumer = '' OR m.ts <= $4)
            AND ($11::integer IS NULL OR m.attempts < $11)
        ORDER BY m.priority, m.ts
        LIMIT $5
    ) AS c
),
horizon AS MATERIALIZED (
    SELECT ts, priority FROM near WHERE number = $5 ORDER BY priority, ts LIMIT 1
),
first AS MATERIALIZED (
    SELECT near.*
    FROM near LEFT JOIN horizon ON true
    WHERE horizon.ts IS NULL OR (near.priority, near.ts) <= (horizon.priority, horizon.ts)
    ORDER BY near.priority, near.ts
    LIMIT $6
),
chosen AS MATERIALIZED (
    SELECT id, version
    FROM (SELECT id, version, sum(size) OVER (ORDER BY priority, ts ROWS UNBOUNDED PRECEDING) AS upto, size FROM first)
    AS summed
    WHERE upto <= $7 OR upto = size
)
UPDATE message AS m SET
    ts = $8, due_ts = m.ts, before = CASE WHEN m.consumer = '' THEN m.version ELSE 0 END,
    version = number.version, consumer = $10, attempts = m.attempts + 1,
    first_lease = coalesce(m.first_lease, $4), last_lease = $4, last_before = m.last_lease
FROM chosen, number
WHERE m.topic = $1 AND m.id = chosen.id AND m.version = chosen.version
RETURNING
    m.id, m.due_ts, m.priority, m.attempts, m.headers, m.body, m.size, m.before, m.version,
    exists(SELECT 1 FROM horizon) AS cut, (SELECT count(*) FROM first) AS near;

-- name: take_exhausted_by_priority
WITH near AS MATERIALIZED (
    SELECT c.*
    FROM unnest($2::integer []) AS asked (place)
    CROSS JOIN LATERAL (
        SELECT
            m.id, m.ts, m.priority, m.attempts,
            row_number() OVER (ORDER BY m.priority, m.ts ROWS UNBOUNDED PRECEDING) AS number
        FROM message AS m
        WHERE m.place = asked.place AND m.ts <= $3 AND (m.consumer = '' OR m.ts <= $4)
        ORDER BY m.priority, m.ts
        LIMIT $5
    ) AS c
),
horizon AS MATERIALIZED (
    SELECT ts, priority FROM near WHERE number = $5 ORDER BY priority, ts LIMIT 1
),
first AS MATERIALIZED (
    SELECT near.*
    FROM near LEFT JOIN horizon ON true
    WHERE horizon.ts IS NULL OR (near.priority, near.ts) <= (horizon.priority, horizon.ts)
    ORDER BY near.priority, near.ts
    LIMIT $6
)
SELECT
    m.id, m.ts, m.ts AS due_ts, m.version, m.priority, m.attempts, m.owner, m.consumer, m.headers, m.body,
    m.first_lease, m.last_lease
FROM first JOIN message AS m ON m.topic = $1 AND m.id = first.id
WHERE first.attempts >= $7 AND m.attempts >= $7 AND m.ts <= $3 AND (m.consumer = '' OR m.ts <= $4)
ORDER BY m.priority, m.ts
FOR UPDATE OF m;

-- name: browse_by_priority
SELECT found.*
FROM unnest($1::integer []) AS asked (place)
CROSS JOIN LATERAL (
    SELECT m.id, m.place, m.ts, m.priority, m.body, m.owner, m.consumer, m.version, m.attempts, m.headers
    FROM message AS m
    WHERE
        m.place = asked.place AND m.ts >= $2 AND m.ts < $3 AND (m.priority, m.ts, m.id) > ($13, $10, $11)
        AND ($4::boolean IS NULL OR (m.consumer <> '') = $4)
        AND ($5::text IS NULL OR m.owner = $5) AND ($6::text IS NULL OR m.consumer = $6)
        AND m.priority BETWEEN $7 AND $8
        AND NOT EXISTS (SELECT 1 FROM unnest($9::bytea []) AS entry WHERE position(entry IN m.headers) = 0)
    ORDER BY m.priority, m.ts, m.id
    LIMIT $12
) AS found
ORDER BY found.priority, found.ts, found.id
LIMIT $12;
