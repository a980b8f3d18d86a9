-- exclusive: redisbackend_counter for postgres, version 1
-- Counters: for each key the last token that was drawn for a lease elsewhere
-- (package redisbackend with NewTokens). Rows are never deleted: tokens would
-- begin again.
-- All that the role of the application needs:
-- GRANT SELECT, INSERT, UPDATE ON exclusive_counter TO app
CREATE TABLE exclusive_counter (
    counter_key bytea  NOT NULL PRIMARY KEY,
    token       bigint NOT NULL
) WITH (fillfactor = 70);
