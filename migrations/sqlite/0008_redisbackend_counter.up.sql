-- exclusive: redisbackend_counter for sqlite, version 1
-- Counters: for each key the last token that was drawn for a lease elsewhere
-- (package redisbackend with NewTokens). Rows are never deleted: tokens would
-- begin again.
CREATE TABLE exclusive_counter (
    counter_key BLOB    NOT NULL PRIMARY KEY,
    token       INTEGER NOT NULL
) WITHOUT ROWID;
