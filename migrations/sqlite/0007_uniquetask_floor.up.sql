-- exclusive: uniquetask_floor for sqlite, version 1
-- Where the tokens of new rows begin: past the token of every row of the task
-- that was removed, so that no later grant can have the number of an earlier.
CREATE TABLE exclusive_task_floor (
    task  BLOB    NOT NULL PRIMARY KEY,
    token INTEGER NOT NULL
) WITHOUT ROWID;
