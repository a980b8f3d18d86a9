-- exclusive: fencing_op for mariadb, version 1, prefix "order "
-- Forgets what was applied: a repeated operation is applied a second time.
DROP TABLE `order op`;
