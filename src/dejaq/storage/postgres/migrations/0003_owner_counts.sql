-- Messages are also counted by their owner. What is there is counted anew.
DELETE FROM counter;
ALTER TABLE counter ADD COLUMN owner text COLLATE "C" NOT NULL;
ALTER TABLE counter DROP CONSTRAINT counter_pkey;
ALTER TABLE counter ADD PRIMARY KEY (topic, minute, held, shard, owner);
INSERT INTO counter (topic, minute, held, shard, owner, count)
SELECT topic, ts / 60000, consumer <> '', -1, owner, count(*) FROM message GROUP BY 1, 2, 3, 5;
