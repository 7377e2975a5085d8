-- The counts of changes that concern many minutes: one row per change, which is added to the counts of `counter`. The
-- rows of a topic, owner and `held` are joined into one from time to time. `size` is the number of its minutes.
CREATE TABLE count_list (
    number bigint NOT NULL,
    topic integer NOT NULL,
    size integer NOT NULL,
    held boolean NOT NULL,
    owner text COLLATE "C" NOT NULL,
    minutes bigint [] NOT NULL,
    counts bigint [] NOT NULL,
    PRIMARY KEY (topic, number)
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE count_list ALTER COLUMN minutes SET STORAGE EXTERNAL;
ALTER TABLE count_list ALTER COLUMN counts SET STORAGE EXTERNAL;
CREATE SEQUENCE count_list_number;
