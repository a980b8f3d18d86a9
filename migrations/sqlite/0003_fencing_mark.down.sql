-- exclusive: fencing_mark for sqlite, version 1
-- Forgets whom this destination has accepted: a holder from before is accepted
-- again. Stop all holders first.
DROP TABLE exclusive_mark;
