-- exclusive: rowlock_lock for mysql, version 1
-- Waits for the transactions that hold a key, and has everybody else wait behind
-- itself. Stop all holders first. Nothing is forgotten: a row says nothing.
DROP TABLE exclusive_lock;
