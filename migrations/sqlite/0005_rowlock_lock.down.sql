-- exclusive: rowlock_lock for sqlite, version 1
-- Nothing is forgotten: the table is empty.
DROP TABLE exclusive_lock;
