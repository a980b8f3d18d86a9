-- exclusive: uniquetask_task for mariadb, version 1
-- Tasks: one row per run of a task, with its outcome. The primary key is what
-- makes a run unique.
-- VARBINARY: no collation, case or padding rule can merge two names.
-- Times are microseconds since 1970 on this server's clock: integers mean the
-- same to every DSN (parseTime, loc) and session time zone, and pass 2038.
-- free_at: while running, when the heartbeat counts as missing. After a failure,
-- when the run may be tried again. When done, when that was.
-- history has a line for each attempt that ended without a result: token,
-- attempt, state, started, ended, holder and error, with tabs between them. It
-- is here, and not in a table of its own, so that one statement can take a run
-- over and keep what it overwrites, on every server.
-- No index on a time: heartbeats change free_at, and prune walks the key.
-- All that the role of the application needs:
-- GRANT SELECT, INSERT, UPDATE, DELETE ON exclusive_task TO app
CREATE TABLE exclusive_task (
    task       VARBINARY(200) NOT NULL,
    run        VARBINARY(200) NOT NULL,
    state      VARBINARY(10)  NOT NULL COMMENT 'running, done or failed',
    grant_id   VARBINARY(64)  NOT NULL COMMENT 'who: unique to each grant',
    holder     VARBINARY(200) NOT NULL COMMENT 'a name for operators',
    token      BIGINT         NOT NULL COMMENT 'rises with each grant of the run',
    attempt    BIGINT         NOT NULL COMMENT 'counts from 1',
    started_at BIGINT         NOT NULL,
    ended_at   BIGINT         NOT NULL COMMENT '0 while running',
    free_at    BIGINT         NOT NULL,
    result     LONGBLOB           NULL COMMENT 'NULL: none was set',
    error      BLOB           NOT NULL COMMENT 'of the last attempt, if that failed',
    history    BLOB           NOT NULL,
    PRIMARY KEY (task, run)
) ENGINE = InnoDB DEFAULT CHARACTER SET = binary;
