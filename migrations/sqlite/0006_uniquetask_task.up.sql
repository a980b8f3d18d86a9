-- exclusive: uniquetask_task for sqlite, version 1
-- Tasks: one row per run of a task, with its outcome. The primary key is what
-- makes a run unique.
-- Times are microseconds since 1970 (the clock of SQLite itself has
-- milliseconds).
-- free_at: while running, when the heartbeat counts as missing. After a failure,
-- when the run may be tried again. When done, when that was.
-- history has a line for each attempt that ended without a result: token,
-- attempt, state, started, ended, holder and error, with tabs between them. It
-- is here, and not in a table of its own, so that one statement can take a run
-- over and keep what it overwrites, on every server.
-- No index on a time: heartbeats change free_at, and prune walks the key.
-- WITHOUT ROWID: the key is the table.
CREATE TABLE exclusive_task (
    task       BLOB    NOT NULL, -- bytes: no collation can merge two names
    run        BLOB    NOT NULL,
    state      TEXT    NOT NULL, -- running, done or failed
    grant_id   TEXT    NOT NULL, -- who: unique to each grant
    holder     TEXT    NOT NULL, -- a name for operators
    token      INTEGER NOT NULL, -- rises with each grant of the run
    attempt    INTEGER NOT NULL, -- counts from 1
    started_at INTEGER NOT NULL,
    ended_at   INTEGER NOT NULL, -- 0 while running
    free_at    INTEGER NOT NULL,
    result     BLOB,             -- NULL: none was set
    error      TEXT    NOT NULL, -- of the last attempt, if that failed
    history    TEXT    NOT NULL,
    PRIMARY KEY (task, run)
) WITHOUT ROWID;
