-- exclusive: uniquetask_floor for mysql, version 1
-- Forgets where tokens begin: those of runs that were removed can come again.
DROP TABLE exclusive_task_floor;
