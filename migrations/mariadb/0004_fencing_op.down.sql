-- exclusive: fencing_op for mariadb, version 1
-- Forgets what was applied: a repeated operation is applied a second time.
DROP TABLE exclusive_op;
