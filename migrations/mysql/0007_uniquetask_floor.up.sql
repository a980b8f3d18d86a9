-- exclusive: uniquetask_floor for mysql, version 1
-- Where the tokens of new rows begin: past the token of every row of the task
-- that was removed, so that no later grant can have the number of an earlier.
-- All that the role of the application needs:
-- GRANT SELECT, INSERT, UPDATE ON exclusive_task_floor TO app
CREATE TABLE exclusive_task_floor (
    task  VARBINARY(200) NOT NULL PRIMARY KEY,
    token BIGINT         NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET = binary;
