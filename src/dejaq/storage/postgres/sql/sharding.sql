-- One store among several.

-- What is due in some buckets, in the order in which it would be leased.
-- name: peek
SELECT ts, priority, size FROM ({due}) AS due WHERE $1::integer IS NOT NULL ORDER BY {order} LIMIT $5;

-- Numbers of another shard are in use here: let ours be greater from now on. The leap is so wide that whoever counts
-- meanwhile stays below it.
-- name: keep_up
SELECT setval('version', $1::bigint - $1 % $2::bigint + $3::bigint + $2::bigint * 1048576::bigint) FROM version WHERE last_value < $1;

-- name: shard
SELECT name FROM identity WHERE number = 1;

-- name: put_shard
INSERT INTO identity (number, name) VALUES (1, $1) ON CONFLICT (number) DO UPDATE SET name = excluded.name;

-- name: has_topics
SELECT 1 FROM topic LIMIT 1;

-- name: last_version
SELECT last_value FROM version;

-- name: send
INSERT INTO parcel (number, name, topic, bucket, priority, sent_ms, id, owner, headers, body)
SELECT
    nextval('parcel_number'), row.name, $1, row.bucket, row.priority, row.sent_ms, row.id, row.owner, row.headers, row.body
FROM unnest($2::bigint [], $3::bytea [], $4::integer [], $5::integer [], $6::text [], $7::text [], $8::bytea [], $9::bytea [])
AS row (sent_ms, name, bucket, priority, id, owner, headers, body);

-- name: parcels
SELECT number, name, topic, bucket, priority, sent_ms, id, owner, headers, body FROM parcel ORDER BY number LIMIT $1;

-- name: drop_parcels
DELETE FROM parcel WHERE number = any($1::bigint []);

-- name: drop_parcels_to
DELETE FROM parcel WHERE topic = $1;

-- Which parcels come for the first time; topic -1 is no topic.
-- name: take_parcels
INSERT INTO session (topic, session, used_ms, seen)
SELECT -1, name, $2, '' FROM unnest($1::bytea []) AS name
ON CONFLICT (topic, session) DO NOTHING
RETURNING session;

-- name: merges
SELECT first, start, count, shard FROM merge WHERE origin = $1 ORDER BY first;

-- name: lock_origin
SELECT number FROM origin WHERE number = $1 FOR UPDATE;

-- name: put_merge
INSERT INTO merge (origin, first, start, count, shard) VALUES ($1, $2, $3, $4, $5);

-- name: drop_merges
DELETE FROM merge WHERE origin = $1 AND first = any($2::bigint []);

-- name: seen
SELECT seen FROM session WHERE topic = $1 AND session = $2;
