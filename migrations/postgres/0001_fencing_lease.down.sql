-- exclusive: fencing_lease for postgres, version 1
-- Ends every lease and forgets every token. Stop all holders first: nothing here
-- tells them that another can get their key.
DROP TABLE exclusive_lease;
