-- Topics by priority: of what is due, the lowest priority is next, then the oldest.

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
