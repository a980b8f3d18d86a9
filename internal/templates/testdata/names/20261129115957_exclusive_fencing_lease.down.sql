-- exclusive: fencing_lease for mariadb, version 1, prefix "order "
-- Ends every lease and forgets every token. Stop all holders first: nothing here
-- tells them that another can get their key.
DROP TABLE `order lease`;
