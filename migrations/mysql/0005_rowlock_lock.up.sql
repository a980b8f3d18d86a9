-- exclusive: rowlock_lock for mysql, version 1
-- Locks: a row per key, for keys that are no rows of the application's own. A
-- row says nothing: whoever has locked it holds the key. Rows are made when a
-- key is first used and may be deleted whenever nobody uses the key.
-- VARBINARY: no collation, case or padding rule can merge two keys.
-- All that the role of the application needs:
-- GRANT SELECT, INSERT, UPDATE ON exclusive_lock TO app
CREATE TABLE exclusive_lock (
    lock_key VARBINARY(200) NOT NULL PRIMARY KEY
) ENGINE = InnoDB DEFAULT CHARACTER SET = binary;
