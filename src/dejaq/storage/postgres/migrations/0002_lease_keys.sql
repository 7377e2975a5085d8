-- The keys of a lease in one text, by row number, with spaces between them: a key; a generated key and behind its mark how
-- many follow each other from it on; or a star for a row whose end has been told.
ALTER TABLE lease ADD COLUMN keys text COLLATE "C";
UPDATE lease SET keys = array_to_string(array_replace(ids, '', '*'), ' ');
ALTER TABLE lease ALTER COLUMN keys SET NOT NULL;
ALTER TABLE lease DROP COLUMN ids;
