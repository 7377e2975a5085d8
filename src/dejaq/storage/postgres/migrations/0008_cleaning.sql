-- Brokers clean the messages themselves, in time; the server does it when no broker runs, and no faster than other tables.
ALTER TABLE message SET (autovacuum_vacuum_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 2);
-- Parts of large bodies are large rows, so few of them take much space.
ALTER TABLE large_part SET (
    autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_scale_factor = 0.05,
    toast.autovacuum_vacuum_threshold = 5000
);
