-- Large bodies, in parts. A message refers to one by its own body, of 64 bytes, which ends in the name of the large one.
-- One that no message refers to goes some time after it was last touched; whoever comes to refer to it touches it in the
-- same transaction, so that it is never taken away in between.
CREATE TABLE large_body (
    touched_ms bigint NOT NULL,
    size bigint NOT NULL,
    stored bigint NOT NULL,
    place integer NOT NULL,
    whole boolean NOT NULL DEFAULT false,
    name bytea PRIMARY KEY,
    digest bytea NOT NULL
);
CREATE INDEX large_body_digest ON large_body (digest);
CREATE INDEX large_body_touched ON large_body (touched_ms);
CREATE TABLE large_part (
    part integer NOT NULL,
    name bytea NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (name, part)
);
ALTER TABLE large_part ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE SEQUENCE large_number;

-- Who refers to a large body.
CREATE INDEX message_large ON message (substr(body, 57, 8))
WHERE octet_length(body) = 64 AND substr(body, 1, 8) = '\x9364656a61717a02'::bytea;
