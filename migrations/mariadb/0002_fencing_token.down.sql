-- exclusive: fencing_token for mariadb, version 1
-- Tokens would begin again: destinations that remember marks refuse them then.
DROP SEQUENCE exclusive_token;
