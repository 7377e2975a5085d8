-- Priority topics: of the due messages, the lowest priority is next, then the oldest.

-- name: browse_by_priority
SELECT found.*
FROM unnest($1::integer []) AS asked (place)
CROSS JOIN LATERAL (
    SELECT m.id, m.place, m.ts, m.priority, m.body, m.owner, m.consumer, m.version, m.attempts, m.headers
    FROM message AS m
    WHERE
        m.place = asked.place AND m.place < 0 AND m.ts >= $2 AND m.ts < $3 AND (m.priority, m.ts, m.id) > ($13, $10, $11)
        AND ($4::boolean IS NULL OR (m.consumer <> '') = $4)
        AND ($5::text IS NULL OR m.owner = $5) AND ($6::text IS NULL OR m.consumer = $6)
        AND m.priority BETWEEN $7 AND $8
        AND NOT EXISTS (SELECT 1 FROM unnest($9::bytea []) AS entry WHERE position(entry IN m.headers) = 0)
    ORDER BY m.priority, m.ts, m.id
    LIMIT $12
) AS found
ORDER BY found.priority, found.ts, found.id
LIMIT $12;

-- name: oldest
SELECT priority, min(ts) AS ts FROM message
WHERE place = any($1::integer []) AND ts <= $2
GROUP BY priority;

-- The lowest and the highest available priorities, one bucket at a time: from each priority the index finds the next one.
-- name: outermost
WITH RECURSIVE urgent AS (
    SELECT asked.place, first.priority, first.ts, 1 AS number
    FROM unnest($1::integer []) AS asked (place)
    CROSS JOIN LATERAL (
        SELECT m.priority, m.ts FROM message AS m
        WHERE m.place = asked.place AND m.place < 0 AND m.ts <= $2
        ORDER BY m.priority, m.ts LIMIT 1
    ) AS first
    UNION ALL
    SELECT urgent.place, following.priority, following.ts, urgent.number + 1
    FROM urgent
    CROSS JOIN LATERAL (
        SELECT m.priority, m.ts FROM message AS m
        WHERE m.place = urgent.place AND m.place < 0 AND m.priority > urgent.priority AND m.ts <= $2
        ORDER BY m.priority, m.ts LIMIT 1
    ) AS following
    WHERE urgent.number < $3
),
idle AS (
    SELECT asked.place, last.priority, 1 AS number
    FROM unnest($1::integer []) AS asked (place)
    CROSS JOIN LATERAL (
        SELECT m.priority FROM message AS m
        WHERE m.place = asked.place AND m.place < 0 AND m.ts <= $2
        ORDER BY m.priority DESC, m.ts DESC LIMIT 1
    ) AS last
    UNION ALL
    SELECT idle.place, previous.priority, idle.number + 1
    FROM idle
    CROSS JOIN LATERAL (
        SELECT m.priority FROM message AS m
        WHERE m.place = idle.place AND m.place < 0 AND m.priority < idle.priority AND m.ts <= $2
        ORDER BY m.priority DESC, m.ts DESC LIMIT 1
    ) AS previous
    WHERE idle.number < $3
),
either AS (
    SELECT priority, ts FROM urgent
    UNION ALL
    SELECT idle.priority, first.ts
    FROM idle
    CROSS JOIN LATERAL (
        SELECT m.ts FROM message AS m
        WHERE m.place = idle.place AND m.place < 0 AND m.priority = idle.priority AND m.ts <= $2
        ORDER BY m.priority, m.ts LIMIT 1
    ) AS first
)
SELECT priority, min(ts) AS ts FROM either GROUP BY priority;
