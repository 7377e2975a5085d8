-- The own ids that were created within the deduplication window of their topic: taken until `until_ms`, and removed once
-- `ends_ms` has come, which many of them share.
CREATE TABLE created_id (
    until_ms bigint NOT NULL,
    ends_ms bigint NOT NULL,
    place integer NOT NULL,
    id text COLLATE "C" NOT NULL,
    PRIMARY KEY (place, id)
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX created_id_ends ON created_id (ends_ms);

-- How many there are of each end. The rows of the shards add up; a writer keeps to one shard.
CREATE TABLE created_count (
    ends_ms bigint NOT NULL,
    count bigint NOT NULL,
    topic integer NOT NULL,
    shard integer NOT NULL,
    PRIMARY KEY (topic, ends_ms, shard)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000);
