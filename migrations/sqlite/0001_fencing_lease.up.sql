-- exclusive: fencing_lease for sqlite, version 1
-- Leases: one row per key. A row is never deleted while a destination may
-- remember one of its tokens: it is also the key's token counter.
-- Times are microseconds since 1970 (the clock of SQLite itself has
-- milliseconds). WITHOUT ROWID: the key is the table.
CREATE TABLE exclusive_lease (
    lease_key   BLOB    NOT NULL PRIMARY KEY, -- bytes: no collation can merge two keys
    grant_id    TEXT    NOT NULL,             -- who: unique to each grant
    holder      TEXT    NOT NULL,             -- a name for operators
    token       INTEGER NOT NULL,             -- rises with each grant of the key
    attempt     INTEGER NOT NULL,             -- 0: ended in good order
    acquired_at INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL
) WITHOUT ROWID;
