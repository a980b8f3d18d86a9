-- exclusive: uniquetask_task for postgres, version 1
-- Tasks: one row per run of a task, with its outcome. The primary key is what
-- makes a run unique.
-- Times are microseconds since 1970 on this server's clock: integers mean the
-- same to every driver and time zone.
-- free_at: while running, when the heartbeat counts as missing. After a failure,
-- when the run may be tried again. When done, when that was.
-- history has a line for each attempt that ended without a result: token,
-- attempt, state, started, ended, holder and error, with tabs between them. It
-- is here, and not in a table of its own, so that one statement can take a run
-- over and keep what it overwrites, on every server.
-- No index on a time: heartbeats change free_at, and prune walks the key.
-- fillfactor leaves room for the heartbeats' updates on the page.
-- All that the role of the application needs:
-- GRANT SELECT, INSERT, UPDATE, DELETE ON exclusive_task TO app
CREATE TABLE exclusive_task (
    task       bytea  NOT NULL, -- bytes: no collation can merge two names
    run        bytea  NOT NULL,
    state      text   NOT NULL, -- running, done or failed
    grant_id   text   NOT NULL, -- who: unique to each grant
    holder     text   NOT NULL, -- a name for operators
    token      bigint NOT NULL, -- rises with each grant of the run
    attempt    bigint NOT NULL, -- counts from 1
    started_at bigint NOT NULL,
    ended_at   bigint NOT NULL, -- 0 while running
    free_at    bigint NOT NULL,
    result     bytea,           -- NULL: none was set
    error      text   NOT NULL, -- of the last attempt, if that failed
    history    text   NOT NULL,
    PRIMARY KEY (task, run)
) WITH (fillfactor = 70);
