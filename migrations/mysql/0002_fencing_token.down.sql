-- exclusive: fencing_token for mysql, version 1
-- Only floors of rows that are gone: the counters are in the lease rows.
DROP TABLE exclusive_token;
