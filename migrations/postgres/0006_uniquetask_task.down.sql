-- exclusive: uniquetask_task for postgres, version 1
-- Forgets every run and its result: what was done can be done again.
DROP TABLE exclusive_task;
