-- Messages on their way to a topic's bucket on another shard: they have left here and are not there yet.
CREATE TABLE parcel (
    number bigint PRIMARY KEY,
    name bytea NOT NULL,
    topic integer NOT NULL,
    bucket integer NOT NULL,
    priority integer NOT NULL,
    sent_ms bigint NOT NULL,
    id text COLLATE "C" NOT NULL,
    owner text COLLATE "C" NOT NULL,
    headers bytea NOT NULL,
    body bytea NOT NULL
);
ALTER TABLE parcel ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE SEQUENCE parcel_number;

-- How the records of all shards are one journal: `count` records of a shard, from its `start` on, are those from `first` on.
CREATE TABLE merge (
    origin integer NOT NULL,
    first bigint NOT NULL,
    start bigint NOT NULL,
    count bigint NOT NULL,
    shard integer NOT NULL,
    PRIMARY KEY (origin, first)
);
