-- exclusive: rowlock_lock for sqlite, version 1
-- SQLite has no row locks: a transaction that has written holds the database,
-- and so every key. The table is what it writes to, and stays empty.
CREATE TABLE exclusive_lock (
    lock_key BLOB NOT NULL PRIMARY KEY
) WITHOUT ROWID;
