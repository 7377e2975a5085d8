-- Large bodies.

-- name: next_large
SELECT nextval('large_number');

-- name: begin_large
INSERT INTO large_body (name, place, size, stored, digest, touched_ms) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (name) DO NOTHING;

-- name: put_part
INSERT INTO large_part (name, part, data) VALUES ($1, $2, $3) ON CONFLICT (name, part) DO NOTHING;

-- name: finish_large
UPDATE large_body SET whole = true, touched_ms = greatest(touched_ms, $2) WHERE name = $1 RETURNING name;

-- name: drop_large
WITH parts AS (
    DELETE FROM large_part WHERE name = any($1::bytea [])
)
DELETE FROM large_body WHERE name = any($1::bytea []);

-- name: find_large
UPDATE large_body SET touched_ms = greatest(touched_ms, $4)
WHERE name = (
    SELECT name FROM large_body WHERE digest = $1 AND whole AND size = $2 AND stored = $3 ORDER BY name LIMIT 1
)
RETURNING name;

-- Bodies that equal, byte for byte, the body that was just uploaded.
-- name: same_large
SELECT other.name FROM large_body AS own
JOIN large_body AS other ON other.digest = own.digest
WHERE own.name = $1 AND other.name <> $1 AND other.whole AND other.stored = own.stored AND NOT EXISTS (
    SELECT 1 FROM large_part AS a
    LEFT JOIN large_part AS b ON b.name = other.name AND b.part = a.part
    WHERE a.name = $1 AND a.data IS DISTINCT FROM b.data
)
ORDER BY other.name LIMIT 1;

-- The place of a body to which messages are about to refer.
-- name: place_large
UPDATE large_body SET touched_ms = greatest(touched_ms, $5)
WHERE name = $1 AND whole AND size = $2 AND stored = $3 AND digest = $4
RETURNING place;

-- name: begin_adopted
INSERT INTO large_body (name, place, size, stored, digest, touched_ms) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (name) DO UPDATE SET touched_ms = greatest(large_body.touched_ms, excluded.touched_ms);

-- The copy of a body from another store is complete when all of its bytes are here; octet_length does not read them.
-- name: finish_adopted
UPDATE large_body SET whole = true, touched_ms = greatest(touched_ms, $2)
WHERE name = $1 AND stored = (SELECT sum(octet_length(data)) FROM large_part WHERE name = $1)
RETURNING name;

-- name: part
SELECT data FROM large_part WHERE name = $1 AND part = $2;

-- Record that messages are about to refer to these bodies; returns the bodies that exist.
-- name: touch_large
UPDATE large_body SET touched_ms = greatest(touched_ms, $2)
WHERE name = any($1::bytea []) AND whole
RETURNING name, size, stored, digest;

-- Bodies that were not used for a long time: those without a reference, from a message here or in transit from here, are
-- removed; the others are checked again later.
-- name: reclaim_large
WITH old AS MATERIALIZED (
    SELECT name FROM large_body WHERE touched_ms <= $1 ORDER BY touched_ms LIMIT 1000 FOR UPDATE SKIP LOCKED
),
used AS MATERIALIZED (
    SELECT name FROM old WHERE EXISTS (SELECT 1 FROM message AS m WHERE m.large = old.name)
    UNION
    SELECT name FROM old WHERE name IN (
        SELECT substr(p.body, 57, 8) FROM parcel AS p
        WHERE octet_length(p.body) = 64 AND substr(p.body, 1, 8) = '\x9364656a61717a02'::bytea
    )
),
kept AS (
    UPDATE large_body SET touched_ms = $2 WHERE name IN (SELECT name FROM used)
),
parts AS (
    DELETE FROM large_part WHERE name IN (SELECT name FROM old EXCEPT SELECT name FROM used)
)
DELETE FROM large_body WHERE name IN (SELECT name FROM old EXCEPT SELECT name FROM used);
