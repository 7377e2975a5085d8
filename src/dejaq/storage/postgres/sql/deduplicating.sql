-- The deduplication window of topics that have one.

-- The ids that were created within the window.
-- name: created_before
SELECT c.id
FROM unnest($1::integer [], $2::text []) AS asked (place, id), created_id AS c
WHERE c.place = any(ARRAY[asked.place]) AND c.id = any(ARRAY[asked.id]) AND c.until_ms + 0 > $3;

-- Record ids that are created, always in the same order; returns how many of them were free.
-- name: note_created
WITH noted AS (
    INSERT INTO created_id AS c (place, id, until_ms, ends_ms)
    SELECT row.place, row.id, $3, $4 FROM unnest($1::integer [], $2::text []) AS row (place, id)
    ORDER BY row.place, row.id
    ON CONFLICT (place, id) DO UPDATE SET until_ms = excluded.until_ms, ends_ms = excluded.ends_ms
    WHERE c.until_ms <= $5
    RETURNING 1
),
counted AS (
    INSERT INTO created_count (topic, ends_ms, shard, count)
    SELECT $6, $4, $7, count(*) FROM noted HAVING count(*) > 0
    ON CONFLICT (topic, ends_ms, shard) DO UPDATE SET count = created_count.count + excluded.count
)
SELECT count(*) FROM noted;

-- name: created_count
SELECT coalesce(sum(count), 0)::bigint FROM created_count WHERE topic = $1 AND ends_ms > $2;

-- An id that is recorded again meanwhile stays.
-- name: forget_created
DELETE FROM created_id AS c
USING (SELECT place, id FROM created_id WHERE ends_ms <= $1 ORDER BY ends_ms LIMIT $2) AS part
WHERE c.place = any(ARRAY[part.place]) AND c.id = any(ARRAY[part.id]) AND c.ends_ms + 0 <= $1;

-- name: forget_created_counts
DELETE FROM created_count WHERE ends_ms <= $1;

-- name: drop_created
DELETE FROM created_id AS c
USING (SELECT place, id FROM created_id WHERE place = any($1::integer []) LIMIT 20000) AS part
WHERE c.place = any(ARRAY[part.place]) AND c.id = any(ARRAY[part.id]);

-- Moving buckets.

-- name: moved_created
SELECT * FROM created_id WHERE place = any($1::integer []);

-- name: count_created
INSERT INTO created_count (topic, ends_ms, shard, count)
SELECT abs(place) / 1024, ends_ms, -1, $2 * count(*)
FROM created_id WHERE place = any($1::integer []) GROUP BY 1, 2 ORDER BY 1, 2
ON CONFLICT (topic, ends_ms, shard) DO UPDATE SET count = created_count.count + excluded.count;

-- name: remove_created
DELETE FROM created_id WHERE place = any($1::integer []);
