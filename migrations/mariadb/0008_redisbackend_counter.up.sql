-- exclusive: redisbackend_counter for mariadb, version 1
-- Counters: for each key the last token that was drawn for a lease elsewhere
-- (package redisbackend with NewTokens). Rows are never deleted: tokens would
-- begin again.
-- All that the role of the application needs:
-- GRANT SELECT, INSERT, UPDATE ON exclusive_counter TO app
CREATE TABLE exclusive_counter (
    counter_key VARBINARY(200) NOT NULL PRIMARY KEY,
    token       BIGINT         NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET = binary;
