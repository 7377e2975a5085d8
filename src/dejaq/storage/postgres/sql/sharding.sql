-- A store that is one of several shards.

-- The due rows of some buckets, in the order in which they would be leased.
-- name: peek
SELECT ts, priority, size FROM ({due}) AS due WHERE $1::integer IS NOT NULL ORDER BY {order} LIMIT $5;

-- Numbers of another shard are in use here: use only greater numbers from now on. The step is so large that changes that
-- take numbers meanwhile stay below it.
-- name: keep_up
SELECT setval('version', $1::bigint - $1 % $2::bigint + $3::bigint + $2::bigint * 1048576::bigint) FROM version WHERE last_value < $1;

-- The same for tickets, so that later records are ordered after the records of the other shard.
-- name: keep_up_ticket
SELECT setval('ticket', $1::bigint + 1048576::bigint) FROM ticket WHERE last_value < $1;

-- name: last_ticket
SELECT last_value FROM ticket;

-- name: lock_identity
SELECT number FROM identity WHERE number = 0 FOR UPDATE;

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

-- name: transfers
SELECT number, name, topic, bucket, priority, sent_ms, id, owner, headers, body FROM parcel ORDER BY number LIMIT $1;

-- name: drop_transfers
DELETE FROM parcel WHERE number = any($1::bigint []);

-- name: drop_transfers_to
DELETE FROM parcel WHERE topic = $1;

-- The transfers that arrive for the first time; topic -1 is not a topic.
-- name: take_transfers
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

-- Moving buckets.

-- name: refuse_moving
CREATE OR REPLACE FUNCTION refuse_moving() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('dejaq.moving', true) = 'on' THEN
        RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
    END IF;
    RAISE EXCEPTION 'the bucket of a message is on another shard, or on its way there' USING ERRCODE = 'DQ001';
END
$$;

-- The lock waits for writes in progress; later writes find the frozen bucket.
-- name: freeze
CREATE OR REPLACE TRIGGER message_moving_to BEFORE INSERT OR UPDATE ON message
FOR EACH ROW WHEN (new.place = any('{{{places}}}'::integer [])) EXECUTE FUNCTION refuse_moving();
CREATE OR REPLACE TRIGGER message_moving_from BEFORE DELETE ON message
FOR EACH ROW WHEN (old.place = any('{{{places}}}'::integer [])) EXECUTE FUNCTION refuse_moving();

-- name: rows_at
SELECT place, count(*) AS rows FROM message WHERE place = any($1::integer []) GROUP BY place;

-- name: moved_rows
SELECT
    ts, asked_ts, due_ts, version, before, first_lease, last_lease, last_before, topic, place, priority, attempts, size,
    id, owner, consumer, headers, body
FROM message WHERE place = any($1::integer []);

-- name: moved_references
SELECT DISTINCT body FROM message
WHERE
    place = any($1::integer [])
    AND octet_length(body) + 0 = 64 AND substr(body, 1, 8) = '\x9364656a61717a02'::bytea;

-- name: moved_leases
SELECT DISTINCT lease.topic, lease.id, lease.next_end, lease.consumer, lease.keys
FROM message AS m JOIN lease ON lease.topic = any(ARRAY[m.topic]) AND lease.id = any(ARRAY[m.version])
WHERE m.place = any($1::integer []) AND m.consumer <> '';

-- name: moved_ids
SELECT id FROM message WHERE place = any($1::integer []) AND topic + 0 = $2 AND version = $3;

-- name: lock_lease
SELECT keys, next_end FROM lease WHERE topic = $1 AND id = $2 FOR UPDATE;

-- name: adopt_lease
INSERT INTO lease (topic, id, next_end, consumer, keys, open) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (topic, id) DO UPDATE
SET next_end = least(lease.next_end, excluded.next_end), keys = excluded.keys, open = excluded.open;

-- name: count_places
INSERT INTO counter (topic, minute, held, shard, owner, count)
SELECT topic, ts / 60000, consumer <> '', -1, owner, $2 * count(*)
FROM message WHERE place = any($1::integer []) GROUP BY 1, 2, 3, 5 ORDER BY 1, 2, 3, 5
ON CONFLICT (topic, minute, held, shard, owner) DO UPDATE SET count = counter.count + excluded.count;

-- name: remove_places
DELETE FROM message WHERE place = any($1::integer []);

-- name: moved_version
SELECT coalesce(max(greatest(version, before)), 0) FROM message WHERE place = any($1::integer []);

-- name: sessions_of
SELECT topic, session, used_ms, seen FROM session WHERE topic = any($1::integer []);

-- name: join_session
INSERT INTO session (topic, session, used_ms, seen) VALUES ($1, $2, $3, $4)
ON CONFLICT (topic, session) DO UPDATE
SET used_ms = greatest(session.used_ms, excluded.used_ms), seen = excluded.seen WHERE session.seen = $5
RETURNING 1;

-- name: sizes
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind = 'r';
